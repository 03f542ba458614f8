"""RMSNorm (models/layers/rms_norm.py): its formula, and models that use it."""

import numpy as np
import pytest

import npx
from autograd import Tensor
from models import Residual, Transformer, TransformerConfig
from models.layers.rms_norm import RMSNorm

RNG = np.random.default_rng(0)


def normalized(x, gain, eps):
    return gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def test_output_equals_the_formula():
    layer = RMSNorm(5, 0.1)
    x = RNG.normal(size=(2, 3, 5))
    layer.gain.data = RNG.normal(size=5)
    assert np.allclose(layer(Tensor(x)).data, normalized(x, layer.gain.data, 0.1))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtype_is_preserved_and_squares_do_not_overflow(dtype):
    layer = RMSNorm(4)
    x = Tensor(np.full((2, 4), 300, dtype), requires_grad=True)
    layer.gain.data = layer.gain.data.astype(dtype)
    y = layer(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == layer.gain.grad.dtype == dtype
    assert np.allclose(y.data, 1, atol=1e-3) and np.isfinite(x.grad).all()


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_rms_norm_in_a_residual_connection(placement):
    layer = Residual(5, 0.0, placement, 0.01, "rms_norm")
    x = RNG.normal(size=(2, 3, 5))
    layer.norm.gain.data = np.ones(5)
    y = layer(Tensor(x), lambda t: t * 2.0).data
    expected = normalized(3 * x, 1, 0.01) if placement == "post" else x + 2 * normalized(x, 1, 0.01)
    assert np.allclose(y, expected)


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_a_model_selects_rms_norm_by_name(placement):
    config = TransformerConfig(
        11, d_model=8, d_ff=12, n_heads=2, n_layers=1, norm_placement=placement, norm_type="rms_norm"
    )
    model = Transformer(config, seed=1)
    assert config.n_parameters() == model.n_parameters()
    norms = [name for name in model.state_dict() if "norm" in name]
    assert norms and all(name.endswith("gain") for name in norms)
    ids = np.array([[3, 4, 2]])
    with npx.keyed(1, 1):
        loss = model.loss(ids, ids)
    loss.backward()
    assert np.isfinite(loss.item()) and all(p.grad is not None for p in model.parameters())
