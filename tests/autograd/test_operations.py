"""The small operations (autograd/operations.py): values equal NumPy's, inputs are not modified, ties are broken.

Their gradients are checked on the cases in tests/cases."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import npx
from autograd import OPERATIONS, Tensor, neural
from autograd import operations as ops

NAMES = [name for name, operation in OPERATIONS.items() if operation.__module__ == "autograd.operations"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
FULL_SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3)


class Case:
    """A function of Tensors (default: the operation), its arguments, and NumPy's result."""

    def __init__(self, function, *arrays, numpy=None):
        self.function, self.arrays, self.numpy = function, arrays, numpy


class Draw:
    """Draws shapes with hypothesis and distinct values with a seeded generator."""

    def __init__(self, data):
        self.data = data
        self.rng = np.random.default_rng(self.any(st.integers(0, 2**32)))

    def any(self, strategy):
        return self.data.draw(strategy)

    def values(self, shape):
        """Return distinct values, at least 0.1 apart and 0.1 from 0, in random order, layout and sign."""
        size = int(np.prod(shape))
        x = (self.rng.permutation(size) - size // 2 + 0.5 + self.rng.uniform(-0.2, 0.2, size)) / 4
        return self.laid_out(x.reshape(shape))

    def positive(self, shape):
        return self.laid_out(self.rng.uniform(0.5, 2, shape))

    def laid_out(self, x):
        return np.asarray(x, order=self.any(st.sampled_from("CF")))

    def pair(self):
        """Two shapes that broadcast."""
        return self.any(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3)).input_shapes

    def axis(self, ndim):
        """None, an axis, or a tuple of axes."""
        one = st.integers(-ndim, ndim - 1)
        several = hnp.valid_tuple_axes(ndim)
        return self.any(st.none() | one | several if ndim else st.none())


def unary(name, numpy, positive=False):
    def case(d):
        shape = d.any(SHAPES)
        return Case(OPERATIONS[name], d.positive(shape) if positive else d.values(shape), numpy=numpy)

    return case


def binary(name, numpy):
    """Two Tensors, or a Tensor and a number in either order."""

    def case(d):
        first, second = d.pair()
        a = d.values(first)
        b = d.positive(second)
        number = d.any(st.sampled_from([None, None, 2, 0.75]))
        if number is None:
            return Case(OPERATIONS[name], a, b, numpy=numpy)
        if d.any(st.booleans()):
            return Case(lambda x: OPERATIONS[name](x, number), a, numpy=lambda x: numpy(x, number))
        return Case(lambda x: OPERATIONS[name](number, x), b, numpy=lambda x: numpy(number, x))

    return case


def reduction(name, numpy):
    def case(d):
        x = d.values(d.any(FULL_SHAPES if name != "sum" else SHAPES))
        options = {"axis": d.axis(x.ndim), "keepdims": d.any(st.booleans())}
        return Case(lambda t: OPERATIONS[name](t, **options), x, numpy=lambda a: numpy(a, **options))

    return case


def power(d):
    exponent = d.any(st.sampled_from([0, 1, 2, 3, -1, 0.5, -1.5]))
    x = d.positive(d.any(SHAPES))
    return Case(lambda t: t**exponent, x, numpy=lambda a: a**exponent)


def matmul(d):
    shapes = hnp.mutually_broadcastable_shapes(signature="(m?,n),(n,p?)->(m?,p?)", max_dims=2, max_side=3)
    first, second = d.any(shapes).input_shapes
    return Case(ops.matmul, d.values(first), d.values(second), numpy=np.matmul)


def where(d):
    first, second = d.pair()
    condition = d.rng.random(np.broadcast_shapes(first, second)) < 0.5
    return Case(ops.where, condition, d.values(first), d.values(second), numpy=np.where)


def reshape(d):
    x = d.values(d.any(FULL_SHAPES))
    shape = d.any(st.sampled_from([(-1,), x.shape[::-1], (1, *x.shape), (x.shape[0], -1)]))
    return Case(lambda t: t.reshape(*shape), x, numpy=lambda a: a.reshape(shape))


def transpose(d):
    x = d.values(d.any(SHAPES))
    axes = d.any(st.permutations(range(x.ndim)).map(tuple))
    signed = tuple(a - x.ndim if d.any(st.booleans()) else a for a in axes)
    chosen = d.any(st.sampled_from([None, axes, signed]))
    return Case(lambda t: ops.transpose(t, chosen), x, numpy=lambda a: np.transpose(a, chosen))


def swapaxes(d):
    x = d.values(d.any(FULL_SHAPES))
    i, j = (d.any(st.integers(-x.ndim, x.ndim - 1)) for _ in range(2))
    return Case(lambda t: t.swapaxes(i, j), x, numpy=lambda a: np.swapaxes(a, i, j))


def broadcast_to(d):
    first, second = d.pair()
    shape = np.broadcast_shapes(first, second)
    return Case(lambda t: ops.broadcast_to(t, shape), d.values(first), numpy=lambda a: np.broadcast_to(a, shape))


def getitem(d):
    """Slices, ints, Ellipsis, new axes, integer arrays with repeats, masks, and mixtures."""
    x = d.values(d.any(FULL_SHAPES))
    index = d.any(
        hnp.basic_indices(x.shape, allow_newaxis=True, allow_ellipsis=True)
        | hnp.integer_array_indices(x.shape, result_shape=hnp.array_shapes(max_dims=2, min_side=0, max_side=4))
        | hnp.arrays(bool, x.shape)
        | st.lists(st.integers(-x.shape[0], x.shape[0] - 1), min_size=1, max_size=5)
        | st.integers(0, x.shape[0] - 1).map(lambda i: (slice(None), [0, 0, -1])[: x.ndim] if x.ndim > 1 else i)
    )
    return Case(lambda t: t[index], x, numpy=lambda a: a[index])


def concatenate(d):
    shape = list(d.any(FULL_SHAPES))
    axis = d.any(st.integers(-len(shape), len(shape) - 1))
    arrays = []
    for length in d.any(st.lists(st.integers(0, 3), min_size=1, max_size=3)):
        shape[axis] = length
        arrays.append(d.values(tuple(shape)))
    return Case(lambda *t: ops.concatenate(*t, axis=axis), *arrays, numpy=lambda *a: np.concatenate(a, axis=axis))


def stack(d):
    shape = d.any(SHAPES)
    axis = d.any(st.integers(-len(shape) - 1, len(shape)))
    arrays = [d.values(shape) for _ in range(d.any(st.integers(1, 3)))]
    return Case(lambda *t: ops.stack(*t, axis=axis), *arrays, numpy=lambda *a: np.stack(a, axis=axis))


CASES = {
    "add": binary("add", np.add),
    "subtract": binary("subtract", np.subtract),
    "multiply": binary("multiply", np.multiply),
    "divide": binary("divide", np.divide),
    "maximum": binary("maximum", np.maximum),
    "minimum": binary("minimum", np.minimum),
    "negative": unary("negative", np.negative),
    "exp": unary("exp", np.exp),
    "log": unary("log", np.log, positive=True),
    "sqrt": unary("sqrt", np.sqrt, positive=True),
    "tanh": unary("tanh", np.tanh),
    "sigmoid": unary("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    "relu": unary("relu", lambda x: np.maximum(x, 0)),
    "absolute": unary("absolute", np.absolute),
    "astype": lambda d: Case(lambda t: t.astype("float64"), d.values(d.any(SHAPES)), numpy=lambda x: x),
    "sum": reduction("sum", np.sum),
    "mean": reduction("mean", np.mean),
    "max": reduction("max", np.max),
    "min": reduction("min", np.min),
    **{case.__name__: case for case in (power, matmul, where, reshape, transpose, swapaxes)},
    **{case.__name__: case for case in (broadcast_to, getitem, concatenate, stack)},
}


def draw_case(name, data):
    assert name in CASES, f"operation {name!r} has no case in tests/autograd/test_operations.py"
    return CASES[name](Draw(data))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_value_equals_numpy_and_inputs_are_not_modified(name, data):
    """Check this in float64 and float32; the incoming gradient must not be modified either."""
    case = draw_case(name, data)
    for dtype in ("float64", "float32") if name != "astype" else ("float64",):
        arrays = [np.asarray(a if a.dtype == bool else a.astype(dtype)) for a in case.arrays]
        for a in arrays:
            a.flags.writeable = False
        tensors = [a if a.dtype == bool else Tensor(a, requires_grad=True) for a in arrays]
        result = case.function(*tensors)
        expected = np.asarray(case.numpy(*arrays))
        assert result.dtype == dtype and result.shape == expected.shape
        assert np.allclose(result.data, expected, rtol=1e-6 if dtype == "float32" else 1e-13, atol=0)
        g = np.ones_like(result.data)
        g.flags.writeable = False
        result.backward(g)
        for t in tensors:
            if isinstance(t, Tensor):
                assert t.grad is None or (t.grad.shape == t.shape and t.grad.dtype == dtype)


# Ties and kinks, where finite differences are ambiguous


@pytest.mark.parametrize("operation, best", [(ops.max, np.max), (ops.min, np.min)])
@given(data=st.data())
def test_tied_extremes_share_the_gradient(operation, best, data):
    x = data.draw(hnp.arrays(np.float64, FULL_SHAPES, elements=st.integers(0, 2).map(float)))
    axis = Draw(data).axis(x.ndim)
    a = Tensor(x, requires_grad=True)
    result = operation(a, axis=axis, keepdims=True)
    g = np.arange(1.0, result.size + 1).reshape(result.shape)
    result.backward(g)
    tied = x == best(x, axis=axis, keepdims=True)
    assert np.allclose(a.grad, g * tied / tied.sum(axis=axis, keepdims=True))
    assert np.allclose(a.grad.sum(axis=axis, keepdims=True), g), "the gradients must sum to the incoming one"


@pytest.mark.parametrize("operation", [ops.maximum, ops.minimum])
def test_equal_operands_share_the_gradient(operation):
    a, b = (Tensor(np.array(x), requires_grad=True) for x in ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]))
    operation(a, b).sum().backward()
    larger = [0, 0.5, 1] if operation is ops.maximum else [1, 0.5, 0]
    assert np.array_equal(a.grad, larger) and np.array_equal(b.grad, 1 - np.array(larger))


def test_gradients_at_kinks_are_zero():
    for operation in (ops.relu, ops.absolute):
        a = Tensor(np.array([-2.0, 0.0, 3.0]), requires_grad=True)
        operation(a).sum().backward()
        assert a.grad[1] == 0 and a.grad[2] == 1


def test_repeated_indices_sum_their_gradients():
    a = Tensor(np.zeros((3, 2)), requires_grad=True)
    (a[[0, 2, 0, 0]] * np.arange(8.0).reshape(4, 2)).sum().backward()
    assert np.array_equal(a.grad, [[0 + 4 + 6, 1 + 5 + 7], [0, 0], [2, 3]])


def test_large_arguments_do_not_overflow():
    x = np.array([-1e4, 0.0, 1e4])
    assert np.array_equal(ops.sigmoid(Tensor(x)).data, [0, 0.5, 1])
    assert np.array_equal(ops.tanh(Tensor(x)).data, [-1, 0, 1])


@given(data=st.data())
def test_unbroadcast_undoes_broadcasting(data):
    first, second = Draw(data).pair()
    full_shape = np.broadcast_shapes(first, second)
    for shape in (first, second):
        like = np.zeros(shape)
        copies = np.prod(full_shape, dtype=int) // max(1, like.size)
        assert np.array_equal(ops.unbroadcast(np.ones(full_shape), like), np.full(shape, copies))


def test_methods_and_operators_apply_their_operations():
    x = np.arange(6.0).reshape(2, 3) + 1
    t = Tensor(x)
    pairs = [
        (t + 1, x + 1), (1 + t, 1 + x), (t - 2, x - 2), (2 - t, 2 - x), (t * 3, x * 3), (3 * t, 3 * x),
        (t / 2, x / 2), (2 / t, 2 / x), (-t, -x), (t**2, x**2), (t @ x.T, x @ x.T), (x.T @ t, x.T @ x),
        (t.sum(0), x.sum(0)), (t.mean(1, True), x.mean(1, keepdims=True)), (t.max(), x.max()), (t.min(-1), x.min(-1)),
        (t.reshape(3, 2), x.reshape(3, 2)), (t.reshape((6,)), x.reshape(6)), (t.transpose(), x.T),
        (t.transpose(1, 0), x.T), (t.swapaxes(0, 1), x.T), (t.astype("float32"), x.astype("float32")), (t[1], x[1]),
        (t.detach(), x),
    ]  # fmt: skip
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype and np.array_equal(ours.data, theirs)


def test_add_at_adds_every_repeat():
    x = np.zeros(3)
    npx.add_at(x, np.array([0, 0, 2]), np.array([1.0, 2.0, 4.0]))
    npx.add_at(x, slice(1, None), 10.0)
    assert np.array_equal(x, [3, 10, 14])


@pytest.mark.parametrize("dtype", [int, "uint8", "float16", "float32", float])
def test_sigmoid_is_accurate_in_both_tails_and_for_integers(dtype):
    x = np.array([-1000, -30, -12, -1, 0, 1, 40, 1000]).astype(dtype)
    y = ops.sigmoid(Tensor(x)).data
    expected = 1 / (1 + np.exp(-x.astype(np.longdouble)))
    assert y.dtype == {int: float, "uint8": "float32"}.get(dtype, dtype)
    assert np.allclose(y, expected, rtol=4 * np.finfo(y.dtype).eps, atol=np.finfo(y.dtype).smallest_subnormal)


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0.3,
        lambda x: 0.3 - x,
        lambda x: x * 0.3,
        lambda x: x / 0.3,
        lambda x: 0.3 / x,
        lambda x: x**1.5,
        lambda x: ops.maximum(x, 0.3),
        lambda x: ops.where(x.data > 0.3, x, 0.3),
    ],
)
def test_a_python_float_does_not_change_a_16_bit_dtype(low, function):
    if low == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    x, wide = (Tensor(np.array([0.125, 0.5, 2.0], dtype), True) for dtype in (low, "float64"))
    y, expected = function(x), function(wide)
    y.sum().backward()
    expected.sum().backward()
    assert y.dtype == x.grad.dtype == low
    np.testing.assert_allclose(y.data.astype(float), expected.data, rtol=1e-2)
    np.testing.assert_allclose(x.grad.astype(float), wide.grad, rtol=2e-2)


@pytest.mark.parametrize("dtype, n", [("float16", 66_000), ("bfloat16", 1_000)])
@pytest.mark.parametrize("name", [
    "sum", "mean", "max", "softmax", "cross_entropy", "linear", "unbroadcast", "embedding", "getitem", "mean_grad",
])  # fmt: skip
def test_sums_of_many_16_bit_values_are_rounded_only_once(dtype, n, name):
    """In 16 bits, sums of ones stop at 2,048 or 256, and above 65,504 they are infinite."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    x = Tensor(np.zeros((n, 1), dtype), requires_grad=True)
    scale = Tensor(np.full((), 1 / n, "float32").astype(dtype))  # keeps totals below the largest float16

    def gradient_of_row(use):
        row = Tensor(np.zeros(1, dtype), requires_grad=True)
        (use(row) * scale).sum().backward()
        return row.grad

    def gradient_sum(y):
        y.backward()
        return x.grad.astype("float32").sum()

    def with_reference(function):
        with npx.kernel_mode("reference"):
            return function()

    ids = np.zeros(n, int)
    actual = {
        "sum": lambda: (x + scale).sum().data,
        "mean": lambda: (x + 1.0).mean().data,
        "max": lambda: gradient_sum(x.max()),
        "softmax": lambda: neural.softmax(x.transpose()).data.astype("float32").sum(),
        "cross_entropy": lambda: neural.cross_entropy(x.transpose(), np.array([1])).data / np.log(n),
        "linear": lambda: with_reference(lambda: gradient_of_row(lambda row: neural.linear(x, x.data[:1], row))),
        "unbroadcast": lambda: gradient_of_row(lambda row: x + row),
        "embedding": lambda: with_reference(
            lambda: gradient_of_row(lambda r: neural.embedding(r.reshape((1, 1)), ids))
        ),
        "getitem": lambda: gradient_of_row(lambda row: row[ids]),
        "mean_grad": lambda: gradient_sum(x.mean()),
    }[name]()
    assert np.asarray(actual).astype(float) == pytest.approx(1.0, rel=1e-2)


def test_the_sums_of_npx_take_what_those_of_numpy_take():
    half = np.ones(3000, "float16")
    assert npx.sum([1, 2]) == 3 and npx.mean(4.0) == 4 and npx.sum(half, dtype="float64").dtype == "float64"
    assert npx.sum(half, keepdims=True).shape == (1,) and npx.mean(half).dtype == "float16"
