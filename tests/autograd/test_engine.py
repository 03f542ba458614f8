"""The engine (autograd/engine.py): the graph, the backward pass, ownership of gradients, and errors."""

import copy
import gc
import pickle
import sys
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograd import Tensor, backward, differentiable, engine, gradcheck, is_grad_enabled, no_grad
from autograd import operations as ops
from autograd.testing import GradientError


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    """Remove the operations that these tests define from the registry."""
    monkeypatch.setattr(engine, "OPERATIONS", dict(engine.OPERATIONS))


def leaf(*values, dtype="float64"):
    return Tensor(np.array(values, dtype), requires_grad=True)


def test_operations_are_not_overwritten_silently():
    """Names in the package are unique; a module of another package may define its operation again."""
    tanh = engine.OPERATIONS["tanh"]

    def another(x):
        return x, lambda g: (g,)

    another.__name__, another.__module__ = "tanh", "autograd.elsewhere"
    with pytest.raises(ValueError, match="expected a new name; autograd.operations already has 'tanh'"):
        differentiable(another)
    another.__module__, another.__qualname__ = "mine", "tanh"
    first, second = differentiable(another), differentiable(another)
    assert second is not first
    assert engine.OPERATIONS["mine.tanh"] is second
    assert engine.OPERATIONS["tanh"] is tanh


def test_gradients_equal_those_by_hand():
    a, b = leaf(2.0, 3.0), leaf(5.0, 7.0)
    ((a * b + a) / b).sum().backward()
    assert np.allclose(a.grad, [6 / 5, 8 / 7])
    assert np.allclose(b.grad, [-2 / 25, -3 / 49])


def test_no_grad_records_no_graph_and_nests():
    a = leaf(1.0, 2.0)
    with no_grad():
        assert not is_grad_enabled()
        with no_grad():
            pass
        assert not is_grad_enabled()
        b = a * 2
    assert is_grad_enabled()
    assert b.node is None and not b.requires_grad
    with pytest.raises(RuntimeError, match="requires_grad=True"):
        b.sum().backward()
    with pytest.raises(ZeroDivisionError), no_grad():
        raise ZeroDivisionError
    assert is_grad_enabled()

    @no_grad()
    def double(x):
        return x * 2

    assert double(a).node is None and is_grad_enabled()


def test_a_second_backward_raises():
    a = leaf(1.0, 2.0)
    shared = a * a
    first = shared.sum()
    second = (shared * 3).sum()
    first.backward()
    for consumed in (first, second):
        with pytest.raises(RuntimeError, match="an earlier backward has consumed the graph.*; compute the result"):
            consumed.backward()
    assert np.array_equal(a.grad, [2, 4]), "a rejected backward must change nothing"


@pytest.mark.parametrize("run_backward", [True, False])
def test_a_graph_20000_deep(run_backward):
    x = a = leaf(1.0)
    for _ in range(20_000):
        x = x + a * 0.5
    assert sys.getrecursionlimit() < 20_000
    if run_backward:
        x.sum().backward()
        assert a.grad == 10_001
    del x  # freeing the graph must not overflow the stack either


def test_shared_inputs_and_diamonds_add_up():
    a = leaf(3.0)
    b = a * 2
    c, d = b + a, b * b
    (c * d + a).sum().backward()  # 3a * 4a^2 + a
    assert np.allclose(a.grad, 36 * 9 + 1)


@given(shape=st.sampled_from([(), (1,), (3,), (2, 2)]), weights=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_any_number_of_uses_of_an_inner_value_add_up(shape, weights):
    """Shape () is a special case: NumPy returns 0-d sums as scalars, which `+=` does not change in place."""
    a = Tensor(np.ones(shape), requires_grad=True)
    inner = a * 1.0
    total = inner * weights[0]
    for weight in weights[1:]:
        total = total + inner * weight
    total.sum().backward()
    assert isinstance(a.grad, np.ndarray) and a.grad.shape == shape
    assert np.array_equal(a.grad, np.full(shape, sum(weights)))


@st.composite
def programs(draw):
    """Draw a random graph; each step combines two earlier values."""
    steps = draw(st.integers(1, 12))
    return [
        (
            draw(st.sampled_from(["add", "subtract", "multiply", "maximum"])),
            draw(st.integers(0, n)),
            draw(st.integers(0, n)),
        )
        for n in range(1, steps + 1)
    ]


@given(program=programs(), seed=st.integers(0, 99))
def test_gradients_of_random_graphs(program, seed):
    def run(a, b):
        values = [a, b]
        for name, i, j in program:
            values.append(ops.tanh(engine.OPERATIONS[name](values[i], values[j])))
        return values[-1].sum() + values[len(values) // 2].sum()

    rng = np.random.default_rng(seed)
    if all(i != j or name != "maximum" for name, i, j in program):
        gradcheck(run, rng.normal(size=3), rng.normal(size=(2, 1)))


def test_borrowed_gradients_are_never_modified():
    """A vjp may return the same array, even its argument, for several parents, whose sums must stay separate."""

    @differentiable
    def shared_vjp(a, b):
        return a + b, lambda g: (g, g)

    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    x, y = a * 1.0, b * 1.0
    later = x * 10.0 + x * 100.0  # these gradients arrive before that of `shared_vjp` here, after it below
    out = shared_vjp(x, y) + later
    seed_gradient = np.array([1.0, 1.0])
    out.backward(seed_gradient)
    assert np.array_equal(a.grad, [111, 111]) and np.array_equal(b.grad, [1, 1])
    assert np.array_equal(seed_gradient, [1, 1])

    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    x, y = a * 1.0, b * 1.0
    early = shared_vjp(x, y)
    (x * 10.0 + early + x * 100.0 + shared_vjp(y, x)).backward(seed_gradient)
    assert np.array_equal(a.grad, [112, 112]) and np.array_equal(b.grad, [2, 2])
    assert np.array_equal(seed_gradient, [1, 1])

    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    shared_vjp(a, b).backward(seed_gradient)
    a.grad += 5  # each leaf has its own array
    assert np.array_equal(b.grad, [1, 1]) and np.array_equal(seed_gradient, [1, 1])


def test_read_only_and_broadcast_gradients_are_accepted():
    a = leaf(1.0, 2.0, 3.0)
    b = a * 1.0
    g = np.ones(3)
    g.flags.writeable = False
    (b.sum() + b.sum() + b.sum()).backward()
    (a + a).backward(g)
    assert np.array_equal(a.grad, [5, 5, 5]) and a.grad.flags.writeable


def test_memory_falls_during_backward():
    """Saved arrays are freed as soon as the vjp has run, before the vjps of earlier operations."""
    references, counts = [], []

    @differentiable
    def saves(x):
        array = np.ones(x.shape)
        references.append(weakref.ref(array))
        return x * 1.0, lambda g: (counts.append(sum(r() is not None for r in references)) or g * array,)

    x = leaf(1.0)
    for _ in range(5):
        x = saves(x)
    gc.disable()
    try:
        x.backward()
    finally:
        gc.enable()
    assert counts == [5, 4, 3, 2, 1] and all(r() is None for r in references)


def test_no_grad_saves_nothing():
    references = []

    @differentiable
    def saves(x):
        array = np.ones(3)
        references.append(weakref.ref(array))
        return x * 1.0, lambda g: (g * array,)

    with no_grad():
        y = saves(leaf(1.0, 2.0, 3.0))
    assert references[0]() is None and y.shape == (3,)


def test_gradients_of_leaves_accumulate_over_backwards():
    a = leaf(1.0, 2.0)
    buffer = a.grad = np.zeros(2)
    for n in (1, 2, 3):
        (a * 3).sum().backward()
        assert np.array_equal(a.grad, [3 * n, 3 * n])
    assert a.grad is buffer, "an existing grad must be added to in place"
    a.backward(np.array([1.0, 0.0]))
    assert np.array_equal(a.grad, [10, 9])


def test_only_leaves_with_requires_grad_get_a_gradient():
    a = leaf(1.0)
    b = Tensor(np.array([2.0]))
    c = a * b
    (c + c.detach()).sum().backward()
    assert a.grad == 2 and b.grad is None and c.grad is None


def test_none_from_a_vjp_cuts_the_path():
    """The earlier nodes on that path are not visited."""

    @differentiable
    def stop(x):
        return x * 1.0, lambda g: (None,)

    a = leaf(2.0)
    (stop(a * a) + a).sum().backward()
    assert a.grad == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dtype_is_preserved(dtype):
    a = leaf(1.0, 2.0, 4.0, dtype=dtype)
    steps = [a, a * 2, 1 - a, a / 3, 2 / a, a**2, a**-0.5, -a, a.mean(), a.max() + 1, ops.sqrt(a), ops.exp(a) * 0.5]
    steps += [
        ops.sigmoid(a),
        ops.where(a.data > 1, a, 0.0),
        ops.maximum(a, 0.5),
        a @ a,
        a[[0, 0]],
        a.sum(keepdims=True),
    ]
    for step in steps:
        assert step.dtype == dtype
        a.grad = None
        step.backward(np.ones_like(step.data))
        assert a.grad.dtype == dtype


def test_numbers_and_lists_become_float32_and_arrays_are_not_copied():
    assert Tensor(1.5).dtype == "float32" and Tensor([1.0, 2.0]).dtype == "float32"
    assert Tensor([1, 2]).dtype.kind == "i"
    x = np.zeros((2, 3))
    assert Tensor(x).data is x and Tensor(x).numpy() is x
    assert len(Tensor(x)) == 2 and Tensor(x).ndim == 2 and Tensor(x).size == 6 and Tensor([2.5]).item() == 2.5
    assert float(Tensor([2.5])) == 2.5


@pytest.mark.parametrize("take", [np.asarray, lambda x: np.concatenate([x, x]), lambda x: np.mean([x, x]), np.exp])
def test_numpy_functions_reject_tensors(take):
    """NumPy functions would lose the gradient silently."""
    with pytest.raises(TypeError, match="Tensor|ufunc"):
        take(leaf(1.0, 2.0))


@pytest.mark.parametrize(
    "other", [leaf(1.0, 2.0), np.array([1.0, 2.0]), np.float64(3)], ids=["Tensor", "array", "scalar"]
)
def test_mixed_dtypes_raise(other):
    a = leaf(1.0, 2.0, dtype="float32")
    for operation in (ops.add, ops.multiply, ops.maximum, ops.divide):
        for pair in ((a, other), (other, a)):
            with pytest.raises(TypeError, match=rf"{operation.__name__}: .*float32 and float64; try .astype"):
                operation(*pair)
    with no_grad(), pytest.raises(TypeError, match="float32 and float64"):
        a * other
    if isinstance(other, Tensor):
        assert (a.astype("float64") * other).dtype == "float64"


def test_arrays_and_tensors_combine_in_either_order():
    a = leaf(1.0, 2.0)
    for result in (np.array([10.0, 20.0]) - a, np.array([10.0, 20.0]) * a, np.ones((3, 2)) @ a):
        assert isinstance(result, Tensor) and result.requires_grad


BAD_VJPS = {
    "shape": lambda g: (g[:1],),
    "broadcast": lambda g: (g[None],),
    "dtype": lambda g: (g.astype("float32"),),
}


@pytest.mark.parametrize("vjp", BAD_VJPS.values(), ids=BAD_VJPS)
@pytest.mark.parametrize("inner", [True, False])
def test_a_vjp_of_wrong_shape_or_dtype_raises(vjp, inner):
    @differentiable
    def faulty(x):
        return x * 1.0, vjp

    a = leaf(1.0, 2.0)
    with pytest.raises(
        RuntimeError, match=r"faulty: expected the vjp to return a gradient of shape \(2,\) and dtype float64; got"
    ):
        faulty(a * 1.0 if inner else a).sum().backward()


def test_errors_of_backward():
    a = leaf(1.0, 2.0)
    with pytest.raises(ValueError, match=r"one element; got shape \(2,\); try .sum\(\).backward\(\), or backward\(g\)"):
        (a * 2).backward()
    with pytest.raises(ValueError, match=r"expected g with shape \(2,\) and dtype float64; got shape \(3,\) and dtype"):
        (a * 2).backward(np.ones(3))
    with pytest.raises(ValueError, match="got .* float32"):
        (a * 2).backward(np.ones(2, "float32"))
    with pytest.raises(RuntimeError, match="got a Tensor with requires_grad=False; try .* requires_grad=True"):
        Tensor([1.0]).backward()
    with no_grad(), pytest.raises(RuntimeError, match="try .* computing it outside no_grad and without detach"):
        (a * 2).backward()
    assert a.grad is None
    (a * 2).backward([1, 3])
    backward(a * 2, Tensor(np.array([1.0, 0.0])))
    (a * 2).sum().backward(10)
    assert np.array_equal(a.grad, [24, 26])


def test_errors_of_tensor():
    with pytest.raises(TypeError, match="got a Tensor; try its .data"):
        Tensor(Tensor([1.0]))
    for data in (
        "x",
        [["a", "b"]],
        [1, None],
        np.array([1.0], object),
        b"x",
        np.zeros(1, "M8[D]"),
        np.zeros(1, "f4,f4"),
    ):
        with pytest.raises(TypeError, match="Tensor: expected numbers or booleans; got the dtype"):
            Tensor(data)
    with pytest.raises(TypeError, match="expected an array without a mask; got a masked array; try .filled"):
        Tensor(np.ma.array([1.0, 2.0], mask=[False, True]))
    assert Tensor([True]).dtype == bool and Tensor(3).data == 3 and Tensor([]).shape == (0,)
    with pytest.raises(TypeError, match="requires_grad: expected a floating dtype; got int"):
        Tensor(np.array([1, 2]), requires_grad=True)
    with pytest.raises(TypeError, match="power: expected a Python number"):
        leaf(1.0) ** leaf(2.0)
    assert "made by multiply" in repr(leaf(1.0) * 2) and "requires_grad" in repr(leaf(1.0))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_only_leaves_are_copied(copied):
    """A copy of a graph would share its saved arrays, which vjps overwrite."""
    copied(leaf(1.0))
    copied((leaf(1.0) * 2).detach())
    with pytest.raises(TypeError, match=r"expected a leaf to copy or pickle; got a result of 'multiply', .*detach"):
        copied(leaf(1.0) * 2)


def test_nodes_are_visited_from_the_newest_to_the_oldest():
    order = []

    @differentiable
    def note(x, name):
        return x * 1.0, lambda g: (order.append(name) or g,)

    a = leaf(1.0)
    x = note(a, 0)
    y = note(x, 1)
    z = note(x, 2)
    note(z + note(y, 3) + x, 4).backward()
    assert order == [4, 3, 2, 1, 0] and all(i > j for i, j in pairwise(order))


# gradcheck


def test_a_star_import_brings_the_gradient_checker():
    names = {}
    exec("from autograd import *", names)
    assert names["gradcheck"] is gradcheck and {"GradientError", "testing", "Tensor"} <= names.keys()


def test_gradcheck_reports_a_wrong_gradient_with_both_values():
    @differentiable
    def square(x):
        return x * x, lambda g: (g * 2.001 * x,)

    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(GradientError, match=r"(?s)input 0, \(2, 2\).* analytic .* numerical .* difference .*; the"):
        gradcheck(square, x)
    with pytest.raises(GradientError, match="wrong gradient of input 0"):
        gradcheck(square, x, n_directions=2)
    assert gradcheck(lambda a: a * a, x) and gradcheck(lambda a: a * a, x, n_directions=2)


def test_gradcheck_reports_a_missing_gradient():
    @differentiable
    def lost(a, b):
        return a * b, lambda g: (g * b, None)

    with pytest.raises(GradientError, match="input 1"):
        gradcheck(lost, np.array([1.0]), np.array([2.0]))


def test_gradcheck_checks_its_arguments():
    with pytest.raises(TypeError, match="expected a floating-point input; got int64"):
        gradcheck(ops.exp, np.ones(2, "int64"))
    with pytest.raises(TypeError, match="return a Tensor; got float"):
        gradcheck(lambda a: 1.0, np.ones(2))
    x = np.arange(6.0).reshape(2, 3)
    for layout in (x, x.T, np.asfortranarray(x), x[:, ::2], np.broadcast_to(x[:1], (2, 3))):
        assert gradcheck(lambda a: a * a, layout)
    x = np.ones(3)
    x.flags.writeable = False
    assert gradcheck(lambda a, ids: a[ids] * 2, x, np.array([0, 0, 2]))
