"""The GPU check on a machine without a GPU: its error message, and a rehearsal with small sizes on fakes."""

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from autograd.testing.kernels import is_available
from benchmarks import kernels, train_step
from npx.kernels import cross_entropy
from tests.fakes.strict_cupy import device
from tests.gpu_check import count, measure, page, parts
from tests.gpu_check.sizes import GPU, REHEARSAL

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++ to compile kernels")
PAGE = (parts.ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
CHECK = [sys.executable, "-m", "tests.gpu_check"]


@pytest.mark.skipif(is_available("cuda"), reason="this machine has a GPU: run make gpu-check")
def test_without_a_gpu_the_status_is_2_with_one_line(tmp_path):
    out = tmp_path / "out.json"
    done = subprocess.run([*CHECK, "--out", str(out)], cwd=parts.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout and not out.exists()
    assert done.stderr.startswith("gpu-check: device cuda: expected") and done.stderr.count("\n") == 1


def rehearse(folder, *options):
    """Rehearse the check, with a fake sanitizer that only runs its command; return the process and the results."""
    sanitizer = folder / "compute-sanitizer"
    sanitizer.write_text('#!/bin/sh\n[ "$2" = memcheck ] || exit 0\nshift 4\nexec "$@"\n')
    sanitizer.chmod(0o755)
    out, environment = folder / "out.json", os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = [*CHECK, "--rehearse", "--out", str(out), *options]
    done = subprocess.run(command, cwd=parts.ROOT, capture_output=True, text=True, env=environment)
    return done, json.loads(out.read_text(encoding="utf-8"))


@needs_gxx
def test_steps_run_and_fill_the_page(tmp_path):
    """Rehearse two parts quickly, in the fast tests: the one with the most code, and the memory figures of the page."""
    pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bfloat16")
    done, results = rehearse(tmp_path, "--only", "memory", "--only", "steps: ours", "--seconds", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    statuses = {name: part["status"] for name, part in results["parts"].items()}
    assert statuses == dict.fromkeys(
        ("machine", "memory and calls", *(f"steps: {engine}" for engine in train_step.OURS[:4])), "passed"
    )
    table = results["parts"]["steps: ours"]["values"]["base, 25k + 25k, by kernel"]["table"]
    assert {"adam", "attention_backward", "layer_norm_grad"} < {*table}
    filled = page.filled(PAGE, results | {"rehearsal": False})
    assert filled != PAGE and page.filled(filled, results | {"rehearsal": False}) == filled


@pytest.mark.slow
@needs_gxx
def test_every_part_runs_on_fakes_and_fills_the_page(tmp_path):
    """Every part passes and reports results that can be filled into docs/gpu.md.

    A rehearsal takes 25 s, so this is one test.
    """
    pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bfloat16")
    done, file = rehearse(tmp_path)
    results = {name: part["values"] for name, part in file["parts"].items()}
    statuses = {name: part["status"] for name, part in file["parts"].items()}
    assert done.returncode == 0, done.stdout + done.stderr
    torch = {name for name in statuses if "torch" in name}
    assert {name for name, status in statuses.items() if status != "passed"} <= torch
    assert {"memory and calls", "matmuls", "steps: ours", "steps: floor", "training step, GPU = CPU"} < {*results}
    assert list(results)[-2:] == ["compute-sanitizer initcheck", "steps: torch-graph"] and len(torch) == 4

    assert all(
        value["off"] == 0 and value["graphs"] == 3 for value in results["training step, with graph = without"].values()
    )
    assert results["steps: ours-graph"].keys() == results["steps: ours-lt"].keys() == {*REHEARSAL.shapes}
    steps = results["steps: ours"]
    for name in REHEARSAL.shapes:
        assert steps[name].keys() >= {"ms", "host_ms", "tokens_per_second", "gpu_mib", "launches"}
        table = steps[f"{name}, by kernel"]["table"]
        assert {"adam", "attention_backward", "layer_norm_grad"} < {*table}
        assert all(value["ms"] > 0 and value["bytes"] > 0 and value["calls"] > 0 for value in table.values())
        assert sum(value["calls"] for value in table.values()) == steps[name]["launches"]
    assert 0 < results["training step, GPU = CPU"]["float32"]["off"] < 1e-5
    assert results["short training"].keys() == {"cpu", "float32", "bf16", "fp16"}
    assert results["a run"].keys() == {"float32", "bf16"} and len(results["a run"]["bf16"]["translations"]) == 3
    assert results["kernels"]["tests"] >= 4 and results["operations, layers and laws"]["tests"] >= 2
    assert '{"calls": ' in file["parts"]["compute-sanitizer memcheck"]["output"]
    for words in ("memory and calls", "attention_backward", "steps: ours                  passed", "TFLOP/s"):
        assert words in done.stdout
    check_filled_page(file | {"rehearsal": False})


def check_filled_page(file):
    """Assert that the results of all parts fill the rows of docs/gpu.md."""
    file["parts"]["steps: torch"]["values"] = {"base, 4k + 4k": {"ms": 1.5, "host_ms": 2, "tokens_per_second": 5400}}
    before, after = PAGE.splitlines(), page.filled(PAGE, file).splitlines()
    changed = {new.split("|")[1].strip(): new for old, new in zip(before, after, strict=True) if old != new}
    assert changed["base, 4k + 4k: torch"] == "| base, 4k + 4k: torch | 1.50 ms, host 2.00, 5,400 tokens/s |"
    kernels = set(file["parts"]["steps: ours"]["values"]["base, 25k + 25k, by kernel"]["table"])
    named = {name for name in kernels if " x " not in name}
    rows = {*named, "copy", "largest matmul", "launch", "matmul", "ufunc", "add: residual", "all of a step"}
    assert rows | {"base, 25k + 25k: ours", "short training: bf16", "training step, GPU = CPU: tf32"} <= {*changed}
    assert page.filled("\n".join(after) + "\n", file).splitlines() == after  # filling twice changes nothing
    with pytest.raises(SystemExit, match="got those of a rehearsal"):
        page.filled(PAGE, file | {"rehearsal": True})


def rows_of_page():
    """Return the cells of each row of docs/gpu.md by its name."""
    rows = (text.split("|")[1:-1] for text in PAGE.splitlines() if text.startswith("| "))
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


@needs_gxx
def test_the_counts_on_the_page_match_the_code(monkeypatch):
    """The calls are those of a small model with as many layers as base; the sizes of the matmuls are those of base."""
    pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bfloat16")
    base = GPU.shapes["base, 25k + 25k"]
    small = {"d_model": 32, "d_ff": 64, "vocab": 61, "batch": 40, "length": 5}
    with monkeypatch.context() as patch:
        patch.setattr(cross_entropy, "CUDA_CHUNK", 1)  # 64 of 200 rows per chunk: four chunks, as at the sizes of base
        shape = Namespace(**vars(base) | small)
        counts, graph, rows = count.counted(shape), count.counted(shape, "ours-graph"), rows_of_page()
    lines = {line.name: line for line in counts["lines"]}
    assert counts["matmuls"] == sum(line.calls for line in lines.values() if line.flops)
    for name, line in lines.items():
        if not line.flops:
            assert rows[name][0] == str(line.calls), name
    text = " ".join(PAGE.split())
    assert f"{counts['kernels']} launches of our kernels, {counts['matmuls']} matmuls" in text
    assert f"{counts['empty']} calls to `empty`" in text
    cupy_calls = sum(calls for calls, _ in graph["cupy"].values())
    sentence = "a graph has {} launch of our kernels, {} matmuls, {} launches of CuPy's kernels and {} calls to `empty`"
    assert sentence.format(graph["kernels"], graph["matmuls"], cupy_calls, graph["empty"]) in text
    for name, (calls, _) in counts["cupy"].items():
        assert name not in rows or rows[name][0] == str(calls), name

    matmuls = {name: cells for name, cells in rows.items() if " x " in name}
    assert sum(int(cells[0]) for cells in matmuls.values()) == counts["matmuls"]
    sizes = {tuple(int(n) for n in name.rpartition(" ")[0].replace(",", "").split(" x ")) for name in matmuls}
    assert {size for size in sizes if 2904 not in size} == set(measure.matmul_sizes(base))
    flops = sum(float(cells[1].replace(",", "")) for cells in matmuls.values()) * 1e9
    attention = 36 * base.layers * base.batch * base.length**2 * base.d_model
    assert flops == pytest.approx(train_step.flops(base) - attention, rel=1e-3)


@needs_gxx
def test_the_timed_matmuls_are_those_of_a_step():
    a = REHEARSAL.shapes["base, 25k + 25k"]
    names = [line.name.rpartition(" ")[0] for line in count.counted(a)["lines"] if line.flops]
    assert set(names) == {f"{m:,} x {n:,} x {k:,}" for m, n, k in measure.matmul_sizes(a)}


def run_parts(tmp_path, monkeypatch, *chosen, seconds=60.0):
    """Run these parts; return the results and the words of each reported line."""
    monkeypatch.setattr(parts, "parts", lambda rehearse: chosen)
    lines = []
    results = parts.all_parts(
        tmp_path / "out.json", seconds, False, [], lambda *part: lines.append(page.line(*part).split(maxsplit=4))
    )
    assert json.loads((tmp_path / "out.json").read_text())["parts"] == results
    return results, lines


def test_output_of_failed_and_timed_out_parts_is_recorded_and_the_next_part_runs(tmp_path, monkeypatch):
    (tmp_path / "test_suite.py").write_text(
        "import time, warnings\n\ndef test_quick():\n    warnings.warn('of another package')\n\n"
        "def test_wrong():\n    assert 1 == 2\n\ndef test_slow():\n    print('so far')\n    time.sleep(60)\n"
    )
    for name, choice in (("warns", "quick"), ("fails", "wrong"), ("sleeps", "wrong or slow")):
        monkeypatch.setitem(parts.SUITES, name, ([str(tmp_path / "test_suite.py"), "-k", choice], ""))
    monkeypatch.setattr(parts, "find_spec", lambda name: None if name == "xdist" else True)
    run_command = parts.command
    monkeypatch.setattr(parts, "command", lambda *args, **env: run_command(*args, **env | {"NPX_TEST_ENGINE": "numpy"}))

    def part(name, seconds):
        return parts.Part(name, seconds, lambda left: parts.suite(name, left, False))

    chosen = part("warns", 60), part("sleeps", 5), part("fails", 60), part("late", 0)
    results, lines = run_parts(tmp_path, monkeypatch, *chosen)
    expected = [["warns", "passed"], ["sleeps", "timed"], ["fails", "failed"], ["late", "skipped"]]
    assert [line[:2] for line in lines] == expected
    assert results["warns"]["values"] == {"tests": 1, "failures": 0, "errors": 0, "skipped": 0}
    assert results["sleeps"]["status"] == "timed out" and "F" in results["sleeps"]["output"]
    assert results["fails"]["values"]["failures"] == 1 and "assert 1 == 2" in results["fails"]["output"]
    assert results["late"]["output"] == "no time left"


def test_results_before_a_failure_are_recorded(tmp_path, monkeypatch):
    script = "import sys, time; print('{\"a\": 1}'); print('careful', file=sys.stderr); {}"

    def part(name, end, seconds=60):
        ours = [sys.executable, "-c", script.replace("{}", end)]
        return parts.Part(name, seconds, lambda left: of_ours(name, left, ours))

    def of_ours(name, left, ours):
        monkeypatch.setattr(parts, "command", lambda _, seconds: run_command(ours, seconds))
        return parts.of_ours(name, left, False)

    run_command = parts.command
    monkeypatch.setattr(parts, "MIN_SECONDS", 1)
    chosen = part("fails", "sys.exit(3)"), part("sleeps", "time.sleep(60)", 2), part("passes", "")
    results, _ = run_parts(tmp_path, monkeypatch, *chosen)
    assert [result["status"] for result in results.values()] == ["failed", "timed out", "passed"]
    assert all(result["values"] == {"a": 1} and result["output"] == "careful" for result in results.values())


@needs_gxx
def test_the_benchmark_passes_each_gradient_the_saved_values_of_its_version(monkeypatch, capsys):
    names = "attention", "dropout", "dropout_residual_norm", "layer_norm"
    sizes = "--tokens", "8", "--length", "4", "--d-model", "16", "--heads", "2", "--repeats", "1"
    monkeypatch.setattr(sys, "argv", ["kernels", "--device", "cuda", *sizes, "--json", "--kernel", *names])
    with device(cuda=True):
        kernels.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["kernel"] for row in rows] == [part for name in names for part in (name, f"{name}_grad")]


def test_the_check_needs_no_development_tools():
    for file in Path(parts.__file__).parent.glob("*.py"):
        assert not {"ruff", "mypy", "pip"} & set(file.read_text(encoding="utf-8").split())
