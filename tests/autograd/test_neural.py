"""The fused operations (autograd/neural.py) equal their plain compositions, in values and gradients.

The cases come from the registry: an operation without an entry in CASES or in `neural.COMPOSITIONS` fails.
"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from autograd import OPERATIONS, Tensor, neural
from npx.dispatch import compare

NAMES = [name for name, operation in OPERATIONS.items() if operation.__module__ == neural.__name__]
SMOOTHING_CLASSES = ("all", "others", "others_without_pad")


class Draw:
    """Draws sizes with hypothesis and values with a seeded generator."""

    def __init__(self, data):
        self.data = data
        self.rng = np.random.default_rng(self.any(st.integers(0, 2**32)))

    def any(self, strategy):
        return self.data.draw(strategy)

    def size(self, min_value=1, max_value=3):
        return self.any(st.integers(min_value, max_value))

    def leading(self):
        return self.any(st.lists(st.integers(0, 3), max_size=2).map(tuple))

    def values(self, *shape):
        x = self.rng.normal(size=shape)
        return x if self.any(st.booleans()) else np.asarray(x, order="F")

    def mask(self, *shape):
        """Draw a mask that is True at the end of every row, because the composition needs an allowed position."""
        mask = self.rng.random(shape) < 0.6
        mask[..., -1:] = True
        return mask

    def dropout(self):
        rate = self.any(st.sampled_from([0.3, 0.5]))
        return {"drop": self.any(st.sampled_from([None, npx.DropoutSpec(rate, npx.Key(1, 2, 3))]))}


# Each case returns the arrays to differentiate and the keyword arguments.


def softmax(d):
    shape = (*d.leading(), d.size())
    mask = d.any(st.sampled_from([None, d.mask(*shape), d.mask(shape[-1])]))
    return (d.values(*shape),), {"mask": mask}


def layer_norm(d):
    size = d.size(2, 4)
    return (d.values(*d.leading(), size), d.values(size), d.values(size)), {"eps": 0.1}


def dropout(d):
    return (d.values(*d.leading(), d.size(1, 9)),), {"drop": npx.DropoutSpec(0.3, npx.Key(4, 5, 6))}


def dropout_residual_norm(d):
    size = d.size(2, 4)
    shape = (*d.leading(), size)
    return (d.values(*shape), d.values(*shape), d.values(size), d.values(size)), {"eps": 0.1, **d.dropout()}


def linear(d):
    n_in, n_out = d.size(), d.size()
    bias = (d.values(n_out),) if d.any(st.booleans()) else ()
    activation = d.any(st.sampled_from([None, "relu"]))
    return (d.values(*d.leading(), n_in), d.values(n_in, n_out), *bias), {"activation": activation}


def embedding(d):
    rows = d.size()
    ids = d.rng.integers(0, rows, d.leading())
    return (d.values(rows, d.size()), ids), {"scale": d.any(st.sampled_from([1.0, 2.5])), **d.dropout()}


def spec(d, b, h, t, s, d_k):
    """Draw a spec that leaves every query at least one key, because the composition needs one."""
    bias = npx.mask_bias(d.any(st.sampled_from([None, d.mask(b, 1, 1, s), d.mask(b, h, t, s)])))
    if d.any(st.booleans()):
        bias = d.values(h, t, s) if bias is None else bias + d.values(h, t, s)
    free = bias is None or np.isfinite(bias).all()
    lengths = d.rng.integers(1, s + 1, b) if free and d.any(st.booleans()) else None
    rotary = d.any(st.sampled_from([None, 10.0])) if d_k % 2 == 0 else None
    return npx.AttentionSpec(free and t <= s and d.any(st.booleans()), lengths, bias, rotary)


def attention(d):
    b, t, s, h, d_k, d_v = (d.size(max_value=2) for _ in range(6))
    arrays = d.values(b, t, h, d_k), d.values(b, s, h, d_k), d.values(b, s, h, d_v)
    return arrays, {"spec": spec(d, b, h, t, s, d_k), **d.dropout()}


def self_attention(d):
    b, t, h, d_k, d_v = (d.size(max_value=2) for _ in range(5))
    sizes = {"n_heads": h, "d_k": d_k, "spec": spec(d, b, h, t, t, d_k)}
    return (d.values(b, t, h * (2 * d_k + d_v)),), sizes | d.dropout()


def cross_attention(d):
    b, t, s, h, d_k, d_v = (d.size(max_value=2) for _ in range(6))
    sizes = {"n_heads": h, "d_k": d_k, "spec": spec(d, b, h, t, s, d_k)}
    return (d.values(b, t, h * d_k), d.values(b, s, h * (d_k + d_v))), sizes | d.dropout()


def cross_entropy(d):
    shape = d.leading()
    classes = d.size(4, 5)
    label_smoothing = d.any(st.sampled_from([0.0, 0.2]))
    smoothing_classes = d.any(st.sampled_from(SMOOTHING_CLASSES))
    targets = d.rng.integers(0, classes, shape)
    smoothing = npx.LabelSmoothing(label_smoothing, smoothing_classes, d.any(st.sampled_from([0, 2])))
    return (d.values(*shape, classes), targets), {"smoothing": smoothing}


def linear_cross_entropy(d):
    (logits, targets), options = cross_entropy(d)
    size = d.size(max_value=2)
    return (d.values(*targets.shape, size), d.values(logits.shape[-1], size), targets), options


CASES = {
    case.__name__: case
    for case in (
        softmax,
        layer_norm,
        dropout,
        dropout_residual_norm,
        linear,
        embedding,
        attention,
        self_attention,
        cross_attention,
        cross_entropy,
        linear_cross_entropy,
    )  # fmt: skip
}


def draw_case(name, data):
    assert name in CASES, f"operation {name!r} has no case in tests/autograd/test_neural.py"
    return CASES[name](Draw(data))


def value_and_gradients(operation, arrays, options):
    """Return the output and all gradients, for a random output gradient; all arrays are read-only."""
    for a in arrays:
        a.flags.writeable = False
    tensors = [Tensor(a, requires_grad=True) if a.dtype.kind == "f" else a for a in arrays]
    result = operation(*tensors, **options)
    g = np.cos(np.arange(result.size)).reshape(result.shape).astype(result.dtype)
    g.flags.writeable = False
    result.backward(g)
    return result.data, *(t.grad for t in tensors if isinstance(t, Tensor))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_fused_equals_composed(name, dtype, data):
    """Values, gradients and dtypes are equal, and neither an input nor the incoming gradient is written to."""
    arrays, options = draw_case(name, data)
    assert name in neural.COMPOSITIONS, f"operation {name!r} has no composition in autograd/neural.py"
    arrays = [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]
    fused = value_and_gradients(OPERATIONS[name], arrays, options)
    compare(name, value_and_gradients(neural.COMPOSITIONS[name], arrays, options), fused)
    assert all(part.dtype == dtype for part in fused)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fully_masked_rows_give_zeros_and_no_gradient(dtype):
    x = Tensor(np.ones((2, 3), dtype), requires_grad=True)
    y = neural.softmax(x, np.array([[False] * 3, [True] * 3]))
    y.backward(np.arange(6, dtype=dtype).reshape(2, 3))
    assert not y.data[0].any() and not x.grad[0].any() and x.grad[1].any()

    q, k, v = (Tensor(np.random.default_rng(i).normal(size=(2, 3, 2, 4)).astype(dtype), True) for i in range(3))
    y = neural.attention(q, k, v, npx.AttentionSpec(kv_lengths=np.array([0, 3])))
    y.sum().backward()
    assert not y.data[0].any() and np.isfinite(y.data).all()
    for t in (q, k, v):
        assert not t.grad[0].any() and np.isfinite(t.grad).all()
    assert v.grad[1].any()


@pytest.mark.parametrize("operation", [neural.softmax, neural.composed_softmax])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masked_values_have_no_influence(operation, dtype):
    """A masked value, however large, changes nothing and gets no gradient."""
    x = np.array([[1.0, 2.0, np.finfo(dtype).max]], dtype)
    t = Tensor(x, requires_grad=True)
    y = operation(t, np.array([[True, True, False]]))
    y.backward(np.array([[1, 2, 3]], dtype))
    assert y.data[0, 2] == 0 and t.grad[0, 2] == 0
    assert np.allclose(y.data[0, :2], np.exp([1, 2]) / np.exp([1, 2]).sum())


@pytest.mark.parametrize("smoothing_classes", SMOOTHING_CLASSES)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_large_logits_give_a_finite_loss(label_smoothing, smoothing_classes):
    logits = Tensor(np.array([[1e30, -1e30, 0.0, 5.0]]), requires_grad=True)
    loss = neural.cross_entropy(logits, np.array([0]), npx.LabelSmoothing(label_smoothing, smoothing_classes, 3))
    loss.backward()
    assert np.isfinite(loss.data) and np.isfinite(logits.grad).all()


@given(
    n_classes=st.integers(1, 5),
    pad_id=st.integers(-2, 6),
    classes=st.sampled_from(SMOOTHING_CLASSES),
    dtype=st.sampled_from(["float32", "float64"]),
    offset=st.sampled_from([0.0, 1e4]),
    data=st.data(),
)
def test_the_loss_is_that_of_the_smoothed_distribution(n_classes, pad_id, classes, dtype, offset, data):
    """A class without padding receives its share, and q sums to 1, for any padding id; in all three versions."""
    target = data.draw(st.integers(0, n_classes - 1))
    z = data.draw(st.lists(st.integers(-8, 8), min_size=n_classes, max_size=n_classes))
    smoothed = [
        k
        for k in range(n_classes)
        if classes == "all" or k != target and not (classes == "others_without_pad" and k == pad_id)
    ]
    q = np.zeros(n_classes)
    q[smoothed] = 0.25 / max(1, len(smoothed))
    q[target] += 1 - q.sum()
    log_p = z - np.log(np.exp(z).sum())
    expected = 0 if target == pad_id else -(q * log_p).sum()
    logits = (np.array([z]) + offset).astype(dtype)
    for mode, loss in (
        ("fast", neural.cross_entropy),
        ("reference", neural.cross_entropy),
        ("fast", neural.composed_cross_entropy),
    ):
        with npx.kernel_mode(mode):
            x = Tensor(logits, requires_grad=True)
            y = loss(x, np.array([target]), npx.LabelSmoothing(0.25, classes, pad_id))
            y.backward()
        assert np.isclose(y.data, expected, rtol=1e-5, atol=1e-5)
        assert np.allclose(x.grad, 0 if target == pad_id else np.exp(log_p) - q, atol=1e-5)


@pytest.mark.parametrize("activation", ["", "gelu"])
def test_a_linear_layer_rejects_activations_that_are_not_fused(activation):
    with pytest.raises(ValueError, match=r"linear: expected an activation in \(None, 'relu'\); got "):
        neural.linear(Tensor(np.ones((2, 3))), Tensor(np.ones((3, 4))), None, activation)


@pytest.mark.parametrize("shape", [(1,), (2, 1), (3,), ()])
def test_a_loss_needs_a_target_for_each_row(shape):
    """One target for two rows must not be broadcast."""
    x = np.ones((2, 3))
    w = np.ones((5, 3))
    targets = np.zeros(shape, int)
    for operation, args in ((neural.cross_entropy, (x,)), (neural.linear_cross_entropy, (x, w))):
        with pytest.raises(
            ValueError, match=re.escape(f"expected targets of shape (2,), one for each row; got {shape}")
        ):
            operation(*map(Tensor, args), targets)


@pytest.mark.parametrize("operation", [neural.cross_entropy, neural.composed_cross_entropy])
def test_gradient_of_the_loss_sums_to_zero_in_each_row_and_skips_padding(operation):
    rng = np.random.default_rng(0)
    for smoothing_classes in SMOOTHING_CLASSES:
        logits = Tensor(rng.normal(size=(5, 7)), requires_grad=True)
        operation(logits, np.array([0, 3, 3, 0, 6]), npx.LabelSmoothing(0.1, smoothing_classes)).backward()
        assert np.allclose(logits.grad.sum(axis=1), 0) and not logits.grad[[0, 3]].any()
        assert (logits.grad[[1, 2], 3] < 0).all()


def test_invalid_label_smoothing_raises():
    logits = Tensor(np.zeros((1, 4)))
    targets = np.array([1])
    with pytest.raises(
        ValueError, match="smoothing_classes: expected one of all, others, others_without_pad; got 'pad'"
    ):
        neural.cross_entropy(logits, targets, npx.LabelSmoothing(0.1, "pad"))
    for smoothing in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="label_smoothing: expected a number of at least 0 and below 1"):
            neural.linear_cross_entropy(logits, Tensor(np.zeros((5, 4))), targets, npx.LabelSmoothing(smoothing))


@pytest.mark.parametrize("ids", [1, np.int64(1), np.array(1), np.array([1, 1])])
def test_a_scaled_embedding_does_not_modify_its_table(ids):
    table = np.arange(6.0).reshape(3, 2)
    assert np.array_equal(neural.embedding(Tensor(table), ids, scale=2.0).data, 2 * np.arange(6.0).reshape(3, 2)[ids])
    assert np.array_equal(table, np.arange(6.0).reshape(3, 2))
