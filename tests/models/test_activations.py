"""GELU and SwiGLU (models/layers/) by their formulas, and as the activation of a whole model."""

import math

import numpy as np
import pytest

import npx
from autograd import Tensor
from models import FeedForward, Transformer, TransformerConfig
from models.layers.gelu import gelu
from models.layers.swiglu import gated_silu

X = np.linspace(-9, 9, 200)


def test_gelu_is_near_the_exact_one():
    """x Phi(x), from which the form with tanh differs by less than 0.0005."""
    exact = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X]
    assert np.abs(gelu(Tensor(X)).data - exact).max() < 5e-4
    assert gelu(Tensor(np.zeros(1))).data == 0


def test_the_gate_is_silu():
    a, b = X, X[::-1] * 0.5
    y = gated_silu(Tensor(np.concatenate([a, b]))).data
    assert np.allclose(y, a / (1 + np.exp(-a)) * b)
    assert np.isfinite(gated_silu(Tensor(np.float32([-1000, 1000, 1, 1]))).data).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operation", [gelu, gated_silu])
def test_in_16_bits_it_is_right_to_the_last_digits_over_the_whole_range(operation, dtype):
    """x^2 is beyond float16 from 256 on, and its infinity times 0 would be no number."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 in NumPy needs ml_dtypes")
    few = [-6e4, -300, -30, 30, 300, 6e4]
    x = np.stack([np.array([*X, *few]), np.array([*X[::-1], *[1] * len(few)])], axis=-1).astype(npx.host.dtype(dtype))
    found = []
    for each in (Tensor(x, True), Tensor(x.astype(float), True)):
        y = operation(each)  # g a is beyond float16 where g a s is not
        g = np.broadcast_to(np.where(x.astype(float)[:, :1] < -20, 4000, 1), y.shape)
        y.backward(g.astype(each.dtype))
        found.append((y.data.astype(float), each.grad / g.astype(float)))
    unit = 2.0 ** (-10 if dtype == "float16" else -7)
    for low, high in zip(*found, strict=True):
        assert np.all(np.abs(low - high) <= 3 * unit * np.maximum(1, np.abs(high)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_a_feed_forward_network_takes_it_by_name(name, dtype):
    with npx.keyed(1, 0):
        layer = FeedForward(4, 6, activation=name)
    for p in layer.parameters():
        p.data = p.data.astype(dtype)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(dtype)
    weights = {p.shape for p in layer.parameters() if p.ndim == 2}
    assert weights == {(4, 12 if name == "swiglu" else 6), (6, 4)}
    assert layer(Tensor(x)).dtype == dtype and layer(Tensor(x)).shape == (2, 3, 4)


@pytest.mark.parametrize("name", ["gelu", "swiglu"])
def test_a_model_takes_it_by_name(name):
    config = TransformerConfig(11, d_model=8, d_ff=12, n_heads=2, n_layers=1, activation=name)
    model, ids = Transformer(config, seed=1), np.array([[3, 4, 2]])
    with npx.keyed(1, 1):
        model.loss(ids, ids).backward()
    assert config.n_parameters() == model.n_parameters() and all(p.grad is not None for p in model.parameters())
    relu = TransformerConfig(11, d_model=8, d_ff=12, n_heads=2, n_layers=1).n_parameters()
    more = 2 * (8 * 12 + 12) if name == "swiglu" else 0  # a third matrix in each of the two networks
    assert model.n_parameters() == relu + more
