"""The check for a GPU on a machine without one: it says so; all of it is rehearsed in small on stand-ins."""

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

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++: none found")
PAGE = (parts.ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
CHECK = [sys.executable, "-m", "tests.gpu_check"]


@pytest.mark.skipif(is_available("cuda"), reason="there is a GPU: run make gpu-check")
def test_without_a_gpu_it_ends_with_status_2_and_one_line(tmp_path):
    out = tmp_path / "out.json"
    done = subprocess.run([*CHECK, "--out", str(out)], cwd=parts.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout and not out.exists()
    assert done.stderr.startswith("gpu-check: device cuda: expected") and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """What the whole check does where there is no GPU, a sanitizer that only starts what it is given, its file."""
    folder = tmp_path_factory.mktemp("rehearsal")
    sanitizer = folder / "compute-sanitizer"
    sanitizer.write_text('#!/bin/sh\n[ "$2" = memcheck ] || exit 0\nshift 4\nexec "$@"\n')
    sanitizer.chmod(0o755)
    out, environment = folder / "out.json", os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = [*CHECK, "--rehearse", "--out", str(out)]
    done = subprocess.run(command, cwd=parts.ROOT, capture_output=True, text=True, env=environment)
    return done, json.loads(out.read_text(encoding="utf-8"))


@needs_gxx
def test_all_of_it_runs_on_stand_ins(rehearsal):
    """Nothing but numbers can be a surprise on a GPU: each part ran, and said what it is there to say."""
    pytest.importorskip("ml_dtypes", reason="NumPy knows bfloat16 from ml_dtypes, which is not installed")
    done, file = rehearsal
    found = {name: part["found"] for name, part in file["parts"].items()}
    endings = {name: part["status"] for name, part in file["parts"].items()}
    assert done.returncode == 0, done.stdout + done.stderr
    torch = {name for name in endings if "torch" in name}
    assert {name for name, ending in endings.items() if ending != "passed"} <= torch
    assert {"memory and calls", "products", "steps: ours", "steps: floor", "training step, GPU = CPU"} < {*found}
    assert list(found)[-1] == "compute-sanitizer initcheck" and len(torch) == 3

    assert all(value["off"] == 0 and value["graphs"] == 3 for value in found["training step, graph = none"].values())
    assert all(value["choices"] == 2 for value in found["products by cublasLt"].values())
    assert found["steps: ours-graph"].keys() == found["steps: ours-lt"].keys() == {*REHEARSAL.shapes}
    steps = found["steps: ours"]
    for name in REHEARSAL.shapes:
        assert steps[name].keys() >= {"ms", "host_ms", "tokens_per_second", "gpu_mib", "launches"}
        table = steps[f"{name}, by kernel"]["table"]
        assert {"adam", "attention_backward", "layer_norm_grad"} < {*table}
        assert all(value["ms"] > 0 and value["bytes"] > 0 and value["calls"] > 0 for value in table.values())
        assert sum(value["calls"] for value in table.values()) == steps[name]["launches"]
    assert 0 < found["training step, GPU = CPU"]["float32"]["off"] < 1e-5
    assert found["short training"].keys() == {"cpu", "float32", "bf16", "fp16"}
    assert found["a run"].keys() == {"float32", "bf16"} and len(found["a run"]["bf16"]["translations"]) == 3
    assert found["kernels"]["tests"] >= 4 and found["operations, layers and laws"]["tests"] >= 2
    assert '{"calls": ' in file["parts"]["compute-sanitizer memcheck"]["said"]
    for words in ("memory and calls", "attention_backward", "steps: ours                  passed", "TFLOP/s"):
        assert words in done.stdout


@needs_gxx
def test_a_run_fills_the_page(rehearsal):
    file = rehearsal[1] | {"rehearsal": False}
    file["parts"]["steps: torch"]["found"] = {"base, 4k + 4k": {"ms": 1.5, "host_ms": 2, "tokens_per_second": 5400}}
    before, after = PAGE.splitlines(), page.filled(PAGE, file).splitlines()
    changed = {new.split("|")[1].strip(): new for old, new in zip(before, after, strict=True) if old != new}
    assert changed["base, 4k + 4k: torch"].endswith(" the host's | 1.50 ms, host 2.00, 5,400 tokens/s |")
    kernels = set(file["parts"]["steps: ours"]["found"]["base, 25k + 25k, by kernel"]["table"])
    named = {name for name in kernels if " x " not in name}
    rows = {*file["parts"]["memory and calls"]["found"], *named, "all of a step", "base, 25k + 25k: ours"}
    assert rows | {"short training: bf16", "training step, GPU = CPU: tf32"} <= {*changed}
    assert page.filled("\n".join(after) + "\n", file).splitlines() == after  # a second time changes nothing
    with pytest.raises(SystemExit, match="got one of a rehearsal"):
        page.filled(PAGE, file | {"rehearsal": True})


def rows_of_page():
    """Name -> the cells of each row of docs/gpu.md."""
    rows = (text.split("|")[1:-1] for text in PAGE.splitlines() if text.startswith("| "))
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows}


@needs_gxx
def test_the_page_counts_what_the_code_does(monkeypatch):
    """The calls of a base step, from a model of as many layers; the products' sizes from those of base."""
    pytest.importorskip("ml_dtypes", reason="NumPy knows bfloat16 from ml_dtypes, which is not installed")
    base = GPU.shapes["base, 25k + 25k"]
    small = {"d_model": 32, "d_ff": 64, "vocab": 61, "batch": 40, "length": 5}
    with monkeypatch.context() as patch:
        patch.setattr(cross_entropy, "CUDA_CHUNK", 1)  # 64 rows of 200 at a time: four chunks, as at the sizes of base
        shape = Namespace(**vars(base) | small)
        found, graph, rows = count.counted(shape), count.counted(shape, "ours-graph"), rows_of_page()
    lines = {line.name: line for line in found["lines"]}
    assert found["products"] == sum(line.calls for line in lines.values() if line.flops)
    for name, line in lines.items():
        if not line.flops:
            assert rows[name][0] == str(line.calls), name
    assert f"{found['kernels']} launches of our kernels, {found['products']} matmuls" in PAGE
    assert f"{found['empty']} times `empty`" in PAGE
    own = sum(calls for calls, _ in graph["cupy"].values())
    words = "by a graph has {} launch of our kernels, {} matmuls, {} kernels of CuPy's own and {} times `empty`"
    assert words.format(graph["kernels"], graph["products"], own, graph["empty"]) in " ".join(PAGE.split())
    for name, (calls, _) in found["cupy"].items():
        assert name not in rows or rows[name][0] == str(calls), name

    products = {name: cells for name, cells in rows.items() if " x " in name}
    assert sum(int(cells[0]) for cells in products.values()) == found["products"]
    sizes = {tuple(int(n) for n in name.rpartition(" ")[0].replace(",", "").split(" x ")) for name in products}
    assert {size for size in sizes if 2904 not in size} == set(measure.product_sizes(base))
    theirs = sum(float(cells[1].replace(",", "")) for cells in products.values()) * 1e9
    attention = 36 * base.layers * base.batch * base.length**2 * base.d_model
    assert theirs == pytest.approx(train_step.flops(base) - attention, rel=1e-3)


@needs_gxx
def test_the_products_that_are_timed_are_those_of_a_step():
    a = REHEARSAL.shapes["base, 25k + 25k"]
    found = [line.name.rpartition(" ")[0] for line in count.counted(a)["lines"] if line.flops]
    assert set(found) == {f"{m:,} x {n:,} x {k:,}" for m, n, k in measure.product_sizes(a)}


def told(tmp_path, monkeypatch, *chosen, seconds=60.0):
    """The results of these parts."""
    monkeypatch.setattr(parts, "parts", lambda rehearse: chosen)
    lines = []
    results = parts.all_parts(
        tmp_path / "out.json", seconds, False, [], lambda *part: lines.append(page.line(*part).split(maxsplit=4))
    )
    assert json.loads((tmp_path / "out.json").read_text())["parts"] == results
    return results, lines


def test_a_part_that_fails_or_takes_too_long_keeps_what_it_said_and_the_next_ones_run(tmp_path, monkeypatch):
    (tmp_path / "test_suite.py").write_text(
        "import time, warnings\n\ndef test_quick():\n    warnings.warn('of a foreign package')\n\n"
        "def test_wrong():\n    assert 1 == 2\n\ndef test_slow():\n    print('so far')\n    time.sleep(60)\n"
    )
    for name, choice in (("warns", "quick"), ("fails", "wrong"), ("sleeps", "wrong or slow")):
        monkeypatch.setitem(parts.SUITES, name, ([str(tmp_path / "test_suite.py"), "-k", choice], ""))
    monkeypatch.setattr(parts, "find_spec", lambda name: None if name == "xdist" else True)
    real = parts.command
    monkeypatch.setattr(parts, "command", lambda *args, **env: real(*args, **env | {"NPX_TEST_ENGINE": "numpy"}))

    def part(name, seconds):
        return parts.Part(name, seconds, lambda left: parts.suite(name, left, False))

    chosen = part("warns", 60), part("sleeps", 9), part("fails", 60), part("late", 0)
    results, lines = told(tmp_path, monkeypatch, *chosen)
    endings = [["warns", "passed"], ["sleeps", "timed"], ["fails", "failed"], ["late", "skipped"]]
    assert [line[:2] for line in lines] == endings
    assert results["warns"]["found"] == {"tests": 1, "failures": 0, "errors": 0, "skipped": 0}
    assert results["sleeps"]["status"] == "timed out" and "F" in results["sleeps"]["said"]
    assert results["fails"]["found"]["failures"] == 1 and "assert 1 == 2" in results["fails"]["said"]
    assert results["late"]["said"] == "no time left"


def test_a_part_keeps_the_figures_it_found_before_it_failed(tmp_path, monkeypatch):
    script = "import sys, time; print('{\"a\": 1}'); print('careful', file=sys.stderr); {}"

    def part(name, then, seconds=60):
        ours = [sys.executable, "-c", script.replace("{}", then)]
        return parts.Part(name, seconds, lambda left: of_ours(name, left, ours))

    def of_ours(name, left, ours):
        monkeypatch.setattr(parts, "command", lambda _, seconds: real(ours, seconds))
        return parts.of_ours(name, left, False)

    real = parts.command
    monkeypatch.setattr(parts, "NEVER_BELOW", 1)
    chosen = part("fails", "sys.exit(3)"), part("sleeps", "time.sleep(60)", 2), part("passes", "")
    results, _ = told(tmp_path, monkeypatch, *chosen)
    assert [result["status"] for result in results.values()] == ["failed", "timed out", "passed"]
    assert all(result["found"] == {"a": 1} and result["said"] == "careful" for result in results.values())


@needs_gxx
def test_the_benchmark_gives_each_version_what_it_keeps_itself(monkeypatch, capsys):
    names = "attention", "dropout", "dropout_residual_norm", "layer_norm"
    sizes = "--tokens", "8", "--length", "4", "--d-model", "16", "--heads", "2", "--repeats", "1"
    monkeypatch.setattr(sys, "argv", ["kernels", "--device", "cuda", *sizes, "--json", "--kernel", *names])
    with device(cuda=True):
        kernels.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["kernel"] for row in rows] == [part for name in names for part in (name, f"{name}_grad")]


def test_the_check_needs_no_tool_of_development():
    for file in Path(parts.__file__).parent.glob("*.py"):
        assert not {"ruff", "mypy", "pip"} & set(file.read_text(encoding="utf-8").split())
