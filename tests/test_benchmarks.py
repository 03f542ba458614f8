"""The benchmarks run with our engines on tiny models. Results: benchmarks/RESULTS.md."""

import json
import sys

import pytest

import npx
from benchmarks import found, growth, language_step, ranks_step, train_step, translate
from tests.helpers.distributed_jobs import needs_mpi

WIDTHS = "--d-model 8 --heads 2 --d-ff 16 --layers 1 --vocab 20 --threads 1 --steps 2 --warmup 1".split()
BATCH = ["--batch", "2", "--length", "4"]
SEARCH = "--sentences 2 --length 4 --output-length 5".split()


@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        (train_step, [*BATCH, "--engine", "ours", "--engine", "ours-recompute", "--engine", "floor"]),
        (language_step, [*BATCH, "--engine", "ours"]),
        (translate, [*SEARCH, "--engine", "ours", "--beam", "2"]),
    ],
)
def test_our_engines_run(benchmark, options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [benchmark.__name__, *WIDTHS, *options, "--json"])
    benchmark.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = result if isinstance(result, list) else [result]
    assert [row["engine"] for row in rows] == [word for word in options if word in benchmark.ENGINES]
    assert all(0 < row["fastest"] <= row["seconds"] <= row["slowest"] and row["peak_rss_mib"] > 0 for row in rows)


def test_a_profile_names_the_kernels_and_restores_them(monkeypatch, capsys):
    functions = [function for kernel in npx.KERNELS.values() for function in (kernel, kernel.grad) if function]
    versions = [dict(function.versions) for function in functions]
    monkeypatch.setenv("NPX_CUBLASLT", "0")  # the profiled step sets it too
    monkeypatch.setattr(sys, "argv", ["train_step", *WIDTHS, *BATCH, "--profile"])
    train_step.main()
    output = capsys.readouterr().out
    assert output.startswith("forward ") and "attention_grad" in output and "between kernels" in output
    assert [function.versions for function in functions] == versions


def test_growth_has_a_row_for_every_setting(monkeypatch, capsys):
    tiny = {"batch": 2, "length": 4, "vocab": 20, "layers": 1, "d_model": 8, "heads": 2, "d_ff": 16}
    monkeypatch.setattr(growth, "START", tiny)
    monkeypatch.setattr(growth, "RANGES", {"length": (4, 8)})
    monkeypatch.setattr(sys, "argv", ["growth", "--threads", "1", "--steps", "1"])
    growth.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line[:3] in ("| 4", "| 8")]
    assert len(rows) == 2 and rows[0][-1] == " |"
    assert npx.host.isfinite(float(rows[1][-1].strip(" |")))  # the slope of time in a log-log plot


@pytest.mark.slow
def test_two_ranks_are_compared_with_one_process(monkeypatch, capsys):
    needs_mpi()
    sizes = "--ranks 2 --preset tiny --vocab 50 --batch 2 --length 4 --steps 1 --json".split()
    monkeypatch.setattr(sys, "argv", ["ranks_step", *sizes])
    ranks_step.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["sent"] == result["minimum_bytes"] > 0
    for kind in ("overlapped", "after"):
        assert result[f"{kind}_speedup"] > 0 and 0 < result[f"{kind}_plan_network"] < result[f"{kind}_plan"]


@pytest.mark.parametrize(("framework", "modules"), [("torch", {"torch", "F"}), ("jax", {"jax", "jnp", "nn", "jsp"})])
def test_the_functions_to_check_are_distinct_and_use_known_names(framework, modules):
    expressions = found.expressions(framework)
    assert len(set(expressions)) == len(expressions)
    for expression in expressions:
        names = found.names_in(expression) - {"float", "len", "min", "require"}
        assert names <= modules | found.inputs().keys() and names & found.inputs().keys(), expression


def test_the_gradients_of_a_framework_are_checked(monkeypatch, capsys):
    pytest.importorskip("torch", reason="needs torch (extra check-dev)")

    def check_here(tasks, limit, seed):
        return [found.check(expression, framework, limit, seed) for framework, expression in tasks]

    monkeypatch.setattr(found, "check_all", check_here)
    monkeypatch.setattr(found, "expressions", lambda framework: ["v.sum()", "v * v.detach()", "v.missing()"])
    monkeypatch.setattr(sys, "argv", ["found", "--torch", "--json"])
    found.main()
    lines = capsys.readouterr().out.splitlines()
    outcomes = json.loads(lines[-1])["functions"]
    assert [(o["level"], o["rule"]) for o in outcomes[:2]] == [("right", ""), ("wrong", "gradient")]
    assert outcomes[2]["level"] == "not checked" and "missing" in outcomes[2]["rule"]
    assert "3 functions: 1 right, 0 convention, 1 wrong, 1 not checked" in lines[-2]


@pytest.mark.slow
def test_a_crash_ends_one_check():
    pytest.importorskip("torch", reason="needs torch (extra check-dev)")
    crash = "__import__('os')._exit(1) or v"
    outcomes = found.check_all([("torch", crash), ("torch", "v.sum()")], limit=60, seed=0)
    assert [outcome.level for outcome in outcomes] == ["not checked", "right"]


def test_a_check_that_takes_too_long_is_stopped(monkeypatch):
    pytest.importorskip("torch", reason="needs torch (extra check-dev)")
    outcome = found.check("torch.dot(v, w)", "torch", limit=0.01, seed=0)
    assert (outcome.level, outcome.rule) == ("not checked", "time limit of 0.01 s")
