"""The progress line of checks that take long, and how few calls a check needs."""

import io

import numpy as np
import pytest

import npx
from autograd import differentiable
from autograd.testing import GradientError, Report, check_layer, check_operation, from_jax, from_torch, progress
from autograd.testing.problem import Problem
from models import Linear

X = np.random.default_rng(0).normal(size=(4, 6))


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


@differentiable
def double(x):
    return 2 * x, lambda g: (2 * g,)


def test_a_long_check_shows_its_progress_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    check_operation(double, X)
    assert progress.sys.stderr.getvalue() == ""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    check_operation(double, X)
    shown = progress.sys.stderr.getvalue().split("\r\x1b[K")
    assert any(line.startswith("check_operation: double, derived: ") and " calls, " in line for line in shown)
    assert shown[-1] == "" and progress.lines == []


def test_no_progress_is_written_to_a_file(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(progress, "DELAY", 0.0)
    check_operation(double, X)
    assert progress.sys.stderr.getvalue() == ""


def test_the_caller_of_a_check_can_show_its_progress(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    shown = []
    with progress.progress_line(shown.append):
        check_operation(double, X, vary_inputs=False)
    assert shown[0].startswith("check_operation: double: ") and shown[-1] == ""


# Cost


def count_calls(monkeypatch):
    """Return a list that receives an item for each call to the checked function."""
    calls = []
    run = Problem.output_and_leaves

    def counted(self, *args, **options):
        calls.append(1)
        return run(self, *args, **options)

    monkeypatch.setattr(Problem, "output_and_leaves", counted)
    return calls


def test_entries_of_a_large_array_are_perturbed_in_chunks(monkeypatch):
    calls = count_calls(monkeypatch)
    check_operation(double, np.random.default_rng(0).normal(size=(20, 20)), vary_inputs=False)
    assert len(calls) < 400


@pytest.mark.parametrize("position", [0, 17, 399])
def test_one_wrong_entry_of_a_large_array_is_found(position):
    factor = np.full(400, 2.0)
    factor[position] += 1e-2
    wrong = differentiable(lambda x: (2 * x, lambda g: (factor[: x.size].reshape(x.shape) * g,)))
    with pytest.raises(GradientError, match="wrong gradient of input 0"):
        check_operation(wrong, np.random.default_rng(0).normal(size=(20, 20)), vary_inputs=False)


def test_a_layer_that_ignores_its_mode_is_not_compared_entry_by_entry_twice():
    with npx.keyed(0, 0):
        layer = Linear(6, 6)
    one, both = (check_layer(layer, X, vary_inputs=False, modes=modes) for modes in (("train",), ("train", "eval")))
    assert isinstance(one, Report) and one.compared < both.compared < 1.2 * one.compared


def running_sum(stack, x):
    """Return the running sums of the rows of x, with one operation per row."""
    rows = [x[0]]
    for i in range(1, len(x)):
        rows.append(rows[-1] + x[i])
    return stack(rows)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_operations_for_each_row_are_not_repeated_for_thousands_of_rows(framework):
    module = pytest.importorskip(framework, reason=f"needs {framework} (extra check-dev)")
    stack = module.stack if framework == "torch" else module.numpy.stack
    lengths = []

    def function(x):
        lengths.append(len(x))
        return running_sum(stack, x)

    check_operation({"torch": from_torch, "jax": from_jax}[framework](function), X)
    assert 71 in lengths and max(lengths) == 71
