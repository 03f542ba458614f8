"""The activations (models/layers/): their formulas, and models that use them."""

import math

import numpy as np
import pytest

import npx
from autograd import Tensor
from models import FeedForward, Transformer, TransformerConfig
from models.layers.gelu import gelu
from models.layers.gelu_erf import gaussian_cdf, gelu_erf
from models.layers.silu import silu
from models.layers.swiglu import gated_silu

X = np.linspace(-9, 9, 200)


def test_gelu_approximates_the_exact_function():
    """The tanh approximation differs from x Phi(x) by less than 0.0005."""
    exact = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X]
    assert np.abs(gelu(Tensor(X)).data - exact).max() < 5e-4
    assert gelu(Tensor(np.zeros(1))).data == 0


def test_gelu_erf_is_exact_in_both_tails():
    x = np.linspace(-37, 37, 1000)
    exact = np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])
    np.testing.assert_allclose(gaussian_cdf(x), exact, rtol=3e-13)
    np.testing.assert_allclose(gaussian_cdf(X.astype("float32")), [math.erfc(-v / 2**0.5) / 2 for v in X], rtol=2e-5)
    np.testing.assert_allclose(gelu_erf(Tensor(x)).data, x * exact, rtol=3e-13)


def test_silu_equals_its_formula():
    np.testing.assert_allclose(silu(Tensor(X)).data, X / (1 + np.exp(-X)), rtol=1e-13)


def test_gated_silu_equals_silu_times_b():
    a, b = X, X[::-1] * 0.5
    y = gated_silu(Tensor(np.concatenate([a, b]))).data
    assert np.allclose(y, a / (1 + np.exp(-a)) * b)
    assert np.isfinite(gated_silu(Tensor(np.float32([-1000, 1000, 1, 1]))).data).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operation", [gelu, gelu_erf, silu, gated_silu])
def test_16_bit_activations_are_accurate_over_the_full_range(operation, dtype):
    """In float16, x^2 overflows from 256 on, and infinity times 0 would be NaN."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    extremes = [-6e4, -300, -30, 30, 300, 6e4]
    x = np.stack([np.array([*X, *extremes]), np.array([*X[::-1], *[1] * len(extremes)])], axis=-1).astype(
        npx.host.dtype(dtype)
    )
    results = []
    for tensor in (Tensor(x, True), Tensor(x.astype(float), True)):
        y = operation(tensor)  # g * a overflows in float16 where g * a * s does not
        g = np.broadcast_to(np.where(x.astype(float)[:, :1] < -20, 4000, 1), y.shape)
        y.backward(g.astype(tensor.dtype))
        results.append((y.data.astype(float), tensor.grad / g.astype(float)))
    unit = 2.0 ** (-10 if dtype == "float16" else -7)
    for low, high in zip(*results, strict=True):
        assert np.all(np.abs(low - high) <= 3 * unit * np.maximum(1, np.abs(high)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gelu", "gelu_erf", "silu", "swiglu"])
def test_a_feed_forward_network_selects_it_by_name(name, dtype):
    with npx.keyed(1, 0):
        layer = FeedForward(4, 6, activation=name)
    for p in layer.parameters():
        p.data = p.data.astype(dtype)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(dtype)
    weights = {p.shape for p in layer.parameters() if p.ndim == 2}
    assert weights == {(4, 12 if name == "swiglu" else 6), (6, 4)}
    assert layer(Tensor(x)).dtype == dtype and layer(Tensor(x)).shape == (2, 3, 4)


@pytest.mark.parametrize("name", ["gelu", "gelu_erf", "silu", "swiglu"])
def test_a_model_selects_the_activation_by_name(name):
    config = TransformerConfig(11, d_model=8, d_ff=12, n_heads=2, n_layers=1, activation=name)
    model = Transformer(config, seed=1)
    ids = np.array([[3, 4, 2]])
    with npx.keyed(1, 1):
        model.loss(ids, ids).backward()
    assert config.n_parameters() == model.n_parameters() and all(p.grad is not None for p in model.parameters())
    relu = TransformerConfig(11, d_model=8, d_ff=12, n_heads=2, n_layers=1).n_parameters()
    more = 2 * (8 * 12 + 12) if name == "swiglu" else 0  # a third matrix in each of the two networks
    assert model.n_parameters() == relu + more
