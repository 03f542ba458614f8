"""Accumulation in place: `adds_in_place` vjps, `accumulate_into` of the kernels, and the flat gradient of a model."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import models
import npx
from autograd import Tensor, adds_in_place, differentiable, engine, neural
from autograd import operations as ops
from npx.dispatch import kernel_mode
from npx.precision import dtype_named
from tests.cases.kernels import edge_calls
from tests.helpers.small_models import SMALL, batch


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    """Remove the operations that these tests define from the registry."""
    monkeypatch.setattr(engine, "OPERATIONS", dict(engine.OPERATIONS))


def put(gradient, total):
    """Add the gradient to `total`, if given, and return `total`; otherwise return a copy of the gradient."""
    if total is None:
        return gradient.copy()
    total += gradient
    return total


def weighted(x, y):
    """2 x + 3 y, with a vjp that accumulates."""
    return 2 * x + 3 * y, adds_in_place(
        lambda g, accumulate_into: (put(2 * g, accumulate_into[0]), put(3 * g, accumulate_into[1]))
    )


def shared(x, y):
    """x + y, with a vjp that ignores the sums and returns one new array for both."""

    def vjp(g, accumulate_into):
        new = g.copy()
        return new, new

    return x + y, adds_in_place(vjp)


def first_only(x, y):
    """2 x + y, with a vjp that accumulates for x and ignores the sum of y."""
    return 2 * x + y, adds_in_place(lambda g, accumulate_into: (put(2 * g, accumulate_into[0]), g.copy()))


PLAIN = {  # the same functions with plain vjps
    "weighted": lambda x, y: (2 * x + 3 * y, lambda g: (2 * g, 3 * g)),
    "shared": lambda x, y: (x + y, lambda g: (g, g)),
    "first_only": lambda x, y: (2 * x + y, lambda g: (2 * g, g)),
}
ACCUMULATING = {"weighted": weighted, "shared": shared, "first_only": first_only}


def named(functions):
    operations = {}
    for name, function in functions.items():
        function.__name__ = function.__qualname__ = f"{name}_{id(functions)}"
        operations[name] = differentiable(function)
    return operations


@st.composite
def programs(draw):
    """Draw a random graph over two leaves; each step takes two earlier values, possibly the same."""
    names = st.sampled_from([*ACCUMULATING, "add", "multiply"])
    return [(draw(names), draw(st.integers(0, n)), draw(st.integers(0, n))) for n in range(1, draw(st.integers(2, 12)))]


@given(
    program=programs(),
    grads=st.lists(st.sampled_from(["none", "there", "wide", "strided"]), min_size=2, max_size=2),
    same_leaf=st.booleans(),
)
def test_random_graphs_have_equal_gradients_with_accumulating_vjps(program, grads, same_leaf):
    """Values are shared, borrowed and reused; leaves have no gradient, or a plain, a wider or a strided one.

    The values are small integers, so that sums are exact in any order.
    """

    def run(functions):
        operations = named(functions) | {"add": ops.add, "multiply": ops.multiply}
        leaves = [Tensor(np.float32([[1, -1, 2], [3, 0, 1]]) * (i + 1), requires_grad=True) for i in range(2)]
        for leaf, kind in zip(leaves, grads, strict=True):
            wide = np.ones((2, 6), "float64" if kind == "wide" else "float32")
            leaf.grad = {"none": None, "strided": wide[:, ::2]}.get(kind, wide[:, :3].copy())
        values = [leaves[0], leaves[0] if same_leaf else leaves[1]]
        for name, i, j in program:
            a, b = values[i], values[j]
            values.append(operations[name](a, b) if name != "multiply" else operations[name](a, b.data % 3 - 1))
        seed = np.float32([[1, 2, 1], [0, 1, -1]])
        values[-1].backward(seed)
        assert np.array_equal(seed, np.float32([[1, 2, 1], [0, 1, -1]])), (
            "backward must not write to the incoming gradient"
        )
        return [leaf.grad for leaf in leaves]

    for expected, actual in zip(run(PLAIN), run(ACCUMULATING), strict=True):
        assert (expected is None) == (actual is None)
        if expected is not None:
            assert expected.dtype == actual.dtype and np.array_equal(expected, actual)


def targets_of(*parents, before=()):
    """Return the arrays that a vjp over `parents` may add to, after the uses `before` of the first parent."""
    seen = []

    @differentiable
    def watched(*arrays):
        def vjp(g, accumulate_into):
            seen.append(accumulate_into)
            return tuple(g.copy() for _ in arrays)

        return sum(arrays), adds_in_place(vjp)

    @differentiable
    def use(x, way):
        return x * 1.0, adds_in_place(lambda g, accumulate_into: (g.copy(),)) if way == "adds" else lambda g: (g,)

    y = watched(*parents)
    for way in before:
        y = y + use(parents[0], way)
    y.backward(np.ones(y.shape, y.dtype))
    return seen[0]


def test_targets_are_owned_contiguous_sums():
    """The targets are the grads of leaves and the owned sums of inner nodes, each at most once."""
    leaf = Tensor(np.ones(3), requires_grad=True)
    assert targets_of(leaf) == (None,), "no gradient yet"
    buffer = leaf.grad = np.zeros(3)
    assert targets_of(leaf)[0] is buffer
    twice = targets_of(leaf, leaf)
    assert twice[0] is buffer and twice[1] is None, "two matmuls would write to one array at once"
    leaf.grad = np.zeros(6)[::2]
    assert targets_of(leaf) == (None,), "reshaping a strided sum would copy it"

    leaf.grad = None
    assert targets_of(leaf * 1.0) == (None,)
    assert targets_of(leaf * 1.0, before=["borrows"]) == (None,), "a borrowed gradient is not owned by the engine"
    assert targets_of(leaf * 1.0, before=["adds"])[0] is not None, "the engine owns a new array"
    assert targets_of(leaf * 1.0, before=["borrows", "borrows"])[0] is not None, "the engine owns sums"
    assert targets_of(Tensor(np.ones(3)), leaf)[0] is None


def test_new_arrays_of_an_accumulating_vjp_are_not_copied():
    returned = []

    @differentiable
    def returns_new(x):
        return x * 1.0, adds_in_place(lambda g, accumulate_into: returned.append(g * 2) or (returned[-1],))

    leaf = Tensor(np.ones(3), requires_grad=True)
    returns_new(leaf).backward(np.ones(3))
    assert leaf.grad is returned[0]


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 2)])
def test_an_input_of_several_matmuls_gets_the_sum_of_their_gradients(shape):
    """The vjp that runs second adds to the sum that the first began."""
    random = np.random.default_rng(0)
    leaf = random.normal(size=shape)
    weights = [random.normal(size=(2, 4)) for _ in range(3)]
    gradients = []
    for product in (neural.linear, neural.composed_linear):
        x = Tensor(leaf, requires_grad=True)
        y = ops.exp(x)
        parts = [ops.sum(product(y, Tensor(w)) * (k + 1.0)) for k, w in enumerate(weights)]
        (parts[0] + parts[1] + parts[2]).backward()
        gradients.append(x.grad)
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-13)


def test_an_array_returned_for_two_inputs_is_not_added_to():
    operation = named({"shared": shared})["shared"]
    a, b = (Tensor(np.ones(2), requires_grad=True) for _ in range(2))
    x, y = a * 1.0, b * 1.0
    (x * 10.0 + y * 100.0 + operation(x, y)).backward(np.ones(2))
    operation(a, b).backward(np.ones(2))
    assert np.array_equal(a.grad, [12, 12]) and np.array_equal(b.grad, [102, 102])
    a, b = (Tensor(np.ones(2), requires_grad=True) for _ in range(2))
    operation(a, b).backward(np.ones(2))
    a.grad += 5
    assert np.array_equal(b.grad, [1, 1])


def test_an_accumulating_vjp_with_a_wrong_shape_raises():
    @differentiable
    def faulty(x):
        return x * 1.0, adds_in_place(lambda g, accumulate_into: (g[:1].copy(),))

    with pytest.raises(RuntimeError, match=r"faulty: expected the vjp to return a gradient of shape \(2,\)"):
        faulty(Tensor(np.ones(2), requires_grad=True)).backward(np.ones(2))


# Kernels: `accumulate_into`


def takes_into(kernel):
    return kernel.grad is not None and "accumulate_into" in inspect.signature(kernel.grad.reference).parameters


INTO = [name for name, kernel in npx.KERNELS.items() if takes_into(kernel)]
MODES = [("reference", "float64"), ("fast", "float64"), ("fast", "float32")]
MODES += [("emulate", "float32")]
MODES += [pytest.param("emulate", name, marks=pytest.mark.slow) for name in ("float16", "bfloat16")]


def test_which_kernels_accumulate():
    assert sorted(INTO) == [
        "dropout_residual_norm", "embedding", "layer_norm", "linear", "linear_cross_entropy"
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "number_type"), MODES)
@pytest.mark.parametrize("name", INTO)
def test_a_kernel_adds_its_gradient_to_existing_sums(name, mode, number_type):
    """The existing sums have the kernel's dtype or float32; some or all gradients have one."""
    kernel = npx.KERNELS[name]
    number_type = dtype_named(number_type)
    for index, call in enumerate(edge_calls(name, number_type)):
        if call.options.get("grad") is False:
            continue

        def gradients(accumulate_into, call=call):
            with kernel_mode(mode):
                y, saved = kernel(*npx.dispatch.copy_arrays(call.inputs), **call.options)
                g = np.random.default_rng(1).normal(size=y.shape).astype(y.dtype)
                options = {} if accumulate_into is None else {"accumulate_into": accumulate_into}
                result = kernel.grad(g, saved, **options)
            return result if isinstance(result, tuple) else (result,)

        plain = gradients(None)
        without = {
            "layer_norm": 1,
            "dropout_residual_norm": 2,
            "linear_cross_entropy": 1,
        }  # gradients that cannot be accumulated
        tail = len(plain) - without.get(name, 0)
        accumulated = plain[len(plain) - tail :]
        for kind in {number_type, np.result_type(number_type, "float32")}:
            for selected in {(True,) * tail, tuple(i == (index + 1) % tail for i in range(tail))}:
                before = [
                    None if x is None or not take else np.random.default_rng(2).normal(size=x.shape).astype(kind)
                    for x, take in zip(accumulated, selected, strict=True)
                ]
                accumulate_into = [None if x is None else x.copy() for x in before]
                results = gradients(accumulate_into[0] if tail == 1 else tuple(accumulate_into))[len(plain) - tail :]
                for value, start, total, result in zip(accumulated, before, accumulate_into, results, strict=True):
                    if value is None:
                        assert result is None
                        continue
                    assert result is total or result.dtype == value.dtype
                    expected = value.astype("float64") + (0 if result is not total else start.astype("float64"))
                    tolerance = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}[number_type.name]
                    size = max(1.0, float(np.abs(expected).max(initial=0)))
                    assert np.abs(result.astype("float64") - expected).max(initial=0) <= tolerance * size
                    if kind == np.result_type(number_type, "float32") and all(selected) and mode != "reference":
                        assert result is total, "float32 sums must always be used"


# A model: gradients in a flat buffer


@pytest.mark.parametrize("mode", ["fast", "reference", "emulate"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_in_a_flat_buffer_equal_separate_ones(mode, norm):
    """Both are equal after one backward pass and twice as large after two, even with tied weights."""
    src, tgt = batch([[3, 4, 5, 4], [6]], [[7, 8], [9, 10, 3]])
    config = models.TransformerConfig(**SMALL | {"norm_placement": norm, "dropout": 0.1, "attention_bias": True})
    gradients = []
    for flat in (False, True):
        model = models.Transformer(config, seed=3)
        buffer = models.FlatParameters(model) if flat else None
        with kernel_mode(mode):
            for _ in range(2 if flat else 1):
                with npx.keyed(1, 1):
                    model.loss(src, tgt).backward()
                if buffer is not None and len(gradients) < 2:
                    gradients.append({n: p.grad.copy() for n, p in model.named_parameters()})
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    separate, once, twice = gradients
    for name, g in separate.items():
        size = max(1e-3, float(np.abs(g).max()))
        assert np.abs(once[name] - g).max() <= 2e-6 * size, name
        assert np.abs(twice[name] - 2 * g).max() <= 1e-5 * size, name


def test_matmuls_write_directly_to_an_existing_gradient(monkeypatch):
    """The engine itself performs no addition."""
    w = Tensor(np.random.default_rng(0).normal(size=(4, 5)), requires_grad=True)
    w.grad = buffer = np.zeros((4, 5))
    fail = lambda *args: pytest.fail("added by the engine")  # noqa: E731
    monkeypatch.setattr(engine, "add_to_leaf", fail)
    neural.linear(Tensor(np.ones((3, 4))), w).backward(np.ones((3, 5)))
    assert w.grad is buffer and np.array_equal(buffer, np.full((4, 5), 3.0))
