"""Observers (autograd/observe.py): calls, recorded graphs, and gradient hooks."""

import numpy as np
from hypothesis import given

from autograd import MemoryProfiler, Observer, Recorder, Tensor, backward, hook_gradient, neural, observing
from tests.helpers.expressions import expressions


def leaf(*values):
    return Tensor(np.array(values, float), requires_grad=True)


def test_an_observer_is_called_for_each_operation_and_vjp():
    calls = []

    class Log(Observer):
        def on_forward(self, name, args, result):
            calls.append(("forward", name))

        def on_backward(self, event):
            calls.append(("backward", event.node.name))

    a = leaf(2.0)
    with observing(Log()):
        y = (a * a + a).sum()
        backward(y)
    (a * a).sum().backward()
    assert calls == [
        ("forward", "multiply"),
        ("forward", "add"),
        ("forward", "sum"),
        ("backward", "sum"),
        ("backward", "add"),
        ("backward", "multiply"),
    ]


@given(expressions())
def test_observers_do_not_change_gradients(expression):
    f, arrays = expression
    results = []
    for observer in (Observer(), Recorder(), MemoryProfiler(), None):
        leaves = [Tensor(x.copy(), requires_grad=True) for x in arrays]
        with observing(observer):
            f(*leaves).backward()
        results.append([x.grad for x in leaves])
    for other in results[:-1]:
        assert all((a is b is None) or a.tobytes() == b.tobytes() for a, b in zip(other, results[-1], strict=True))


def test_recorder_reports_how_gradients_are_passed_on():
    a = leaf(3.0)
    with observing(Recorder()) as recorder:
        u = a * 2.0
        y = u * u + u + u
        y.backward()
    records = [record for _, record in sorted(recorder.operations.items())]
    assert [record.name for record in records] == ["multiply", "multiply", "add", "add"]
    assert [record.accumulation for record in records] == [
        ["copied"],
        ["added in place", "added in place"],
        ["borrowed", "sum allocated"],
        ["borrowed", "borrowed"],
    ]
    assert [record.backward_index for record in records] == [3, 2, 1, 0] and records[0].g.tolist() == [14.0]
    assert len(recorder.leaves) == 1 and records[0].parents == [-1]


def test_hook_gradient_receives_the_complete_gradient_and_may_replace_it():
    received = []
    a = leaf(3.0)
    u = hook_gradient(a * 2.0, lambda g: received.append(g.tolist()))
    (u * u + u).sum().backward()
    assert received == [[13.0]] and a.grad.tolist() == [26.0]
    b = leaf(3.0)
    hook_gradient(b, lambda g: 10 * g).sum().backward()
    assert b.grad.tolist() == [10.0]


def test_recorder_knows_a_second_gradient_of_the_same_event():
    a = leaf(3.0)
    with observing(Recorder()) as recorder:
        u = a + 1.0
        (a * a + u * u).backward()
    accumulations = {r.name: r.accumulation for _, r in sorted(recorder.operations.items())}
    assert accumulations["multiply"] == ["borrowed", "sum allocated"]  # the later operation, u * u
    first = next(r for _, r in sorted(recorder.operations.items()) if r.name == "multiply")
    assert first.accumulation == ["copied", "added in place"]  # the second gradient of the leaf


def test_recorder_knows_the_new_arrays_that_the_engine_owns():
    x, w = (Tensor(np.ones((2, 2), "float32"), requires_grad=True) for _ in range(2))
    with observing(Recorder()) as recorder:
        neural.linear(x, w).sum().backward()
    (linear,) = (r for r in recorder.operations.values() if r.name == "linear")
    assert linear.accumulation == ["owned", "owned"]
