"""Successors of the paper's attention, positions and residual connections: their formulas, and models that use them."""

import numpy as np
import pytest

import npx
from autograd import Tensor, no_grad
from models import Residual, SelfAttention, Transformer, TransformerConfig
from models.layers import AlibiBias, ShawBias, T5Bias
from models.layers.alibi import slopes
from models.layers.norm import deep_norm_factors
from models.layers.t5_positions import relative_bucket
from tests.models.test_layers import RNG, build

CAUSAL = npx.AttentionSpec(causal=True)


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


# Positions


def test_slopes_of_alibi():
    """The slopes are the paper's for 8 and 16 heads, and those of the authors' code for 6 and 12 heads."""
    assert slopes(8) == [2.0**-h for h in range(1, 9)] and slopes(1) == [2.0**-8]
    assert np.allclose(slopes(16), [2 ** (-h / 2) for h in range(1, 17)])
    assert slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert np.allclose(slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_alibi_is_a_penalty_on_distances():
    q = Tensor(np.zeros((2, 3, 2, 4)))
    bias = AlibiBias(2)(q, 5).data
    for h, slope in enumerate(slopes(2)):
        for t in range(3):
            assert np.array_equal(bias[h, t], [-slope * abs(s - (t + 2)) for s in range(5)])


def bucket_of_one(distance, n, max_relative_distance, causal):
    """Return Raffel et al.'s bucket of a distance s - t, computed with Python numbers."""
    offset = 0
    if causal:
        distance = max(0, -distance)
    else:
        n //= 2
        offset = n * (distance > 0)
        distance = abs(distance)
    if distance < n // 2:
        return offset + distance
    n_exact = n // 2
    fraction = np.log(distance / n_exact) / np.log(max_relative_distance / n_exact)
    return offset + min(n - 1, n_exact + int(fraction * (n - n_exact)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n, max_relative_distance", [(32, 128), (4, 3), (16, 20)])
def test_buckets_of_t5(n, max_relative_distance, causal):
    offsets = np.arange(-150, 151)
    result = relative_bucket(offsets, n, max_relative_distance, causal)
    assert result.tolist() == [bucket_of_one(d, n, max_relative_distance, causal) for d in offsets.tolist()]
    assert result.min() == 0 and result.max() == n - 1
    if (n, causal) == (32, False):  # exact up to 7, then ranges, the last of which starts at 128
        assert result[150:158].tolist() == [0, *range(17, 24)] and result[150 - 128] == 15


def test_t5_bias_looks_up_its_table():
    layer = build(T5Bias, 2, 8, 10, True)
    q = Tensor(np.zeros((1, 4, 2, 3)))
    bias = layer(q, 6).data
    for t in range(4):
        for s in range(6):
            assert np.array_equal(bias[:, t, s], layer.weight.data[bucket_of_one(s - t - 2, 8, 10, True)])


def test_shaw_bias_adds_vectors_to_the_keys():
    """Equation 4 of Shaw et al.: e_ts = q_t (k_s + a_ts)^T / sqrt(d_k)."""
    layer = build(SelfAttention, 6, 2, score_bias=build(ShawBias, 2, 3, 2))
    x = RNG.normal(size=(2, 5, 6))
    q, k, _ = (part.data for part in layer.split(layer.query_key_value(Tensor(x))))
    a = layer.score_bias.weight.data
    z = np.empty((2, 2, 5, 5))
    for t in range(5):
        for s in range(5):
            z[:, :, t, s] = np.einsum("bhd,bhd->bh", q[:, t], k[:, s] + a[np.clip(s - t, -2, 2) + 2]) / 3**0.5
    assert np.allclose(layer.attention_weights(Tensor(x)), softmax(z))


# Attention


def test_query_heads_of_a_group_share_keys_and_values():
    """Grouped-query attention equals attention with the weights of each key and value head repeated."""
    grouped = build(SelfAttention, 8, 4, n_kv_heads=2)
    full = build(SelfAttention, 8, 4)
    q, k, v = np.split(grouped.query_key_value.weight.data, [8, 12], axis=1)
    repeated = [np.repeat(w.reshape(8, 2, 2), 2, axis=1).reshape(8, 8) for w in (k, v)]
    full.query_key_value.weight.data = np.concatenate([q, *repeated], axis=1)
    full.output.weight.data = grouped.output.weight.data
    x = Tensor(RNG.normal(size=(2, 5, 8)))
    assert np.allclose(grouped(x, CAUSAL).data, full(x, CAUSAL).data, rtol=0, atol=1e-14)
    assert np.allclose(grouped.attention_weights(x), full.attention_weights(x), rtol=0, atol=1e-14)
    assert grouped.new_cache(3, "float32").keys.shape[2:] == (2, 2)


def test_queries_and_keys_are_normalized_per_head():
    """The lengths of queries and keys therefore do not matter, for any gain of the norm."""
    layer = build(SelfAttention, 8, 2, qk_norm_type="rms_norm", eps=1e-30)
    x = RNG.normal(size=(2, 5, 8))
    before = layer.attention_weights(Tensor(x))
    layer.query_key_value.weight.data[:, :16] *= np.repeat([2.0, 3.0, 0.5, 7.0], 4)
    assert np.allclose(layer.attention_weights(Tensor(x)), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [None, AlibiBias(4), build(T5Bias, 4, 6, 7, True), build(ShawBias, 4, 2, 3)])
def test_cached_attention_equals_full_attention(bias):
    layer = build(SelfAttention, 8, 4, n_kv_heads=2, qk_norm_type="layer_norm", score_bias=bias)
    x = RNG.normal(size=(2, 20, 8))
    expected = layer(Tensor(x), CAUSAL).data
    for lengths in ([1] * 20, [7, 1, 12]):
        cache = layer.new_cache(2, x.dtype, capacity=4)
        start = 0
        for length in lengths:
            with no_grad():
                y = layer(Tensor(x[:, start : start + length]), CAUSAL, cache).data
            assert np.allclose(y, expected[:, start : start + length], rtol=0, atol=1e-12)
            start += length


# Residual connections


def test_residual_connections_equal_their_formulas():
    def f(y):
        return y * 3.0

    x = RNG.normal(size=(2, 3, 4))
    sandwich = build(Residual, 4, 0.0, "sandwich")
    deep = build(Residual, 4, 0.0, "deepnorm", alpha=1.7)
    expected = x + sandwich.output_norm(Tensor(3 * sandwich.norm(Tensor(x)).data)).data
    assert np.allclose(sandwich(Tensor(x), f).data, expected)
    assert np.allclose(deep(Tensor(x), f).data, deep.norm(Tensor(1.7 * x + 3 * x)).data)


def test_factors_of_deep_norm():
    """Figure 2 of Wang et al., for 18 encoder and 18 decoder layers, and for a single stack of 200."""
    assert deep_norm_factors("encoder", 18) == pytest.approx((0.81 * (18**5) ** (1 / 16), 0.87 * (18**5) ** (-1 / 16)))
    assert deep_norm_factors("decoder", 18) == pytest.approx((54**0.25, 216**-0.25))
    assert deep_norm_factors("single", 200) == pytest.approx((400**0.25, 1600**-0.25))


def test_deep_norm_scales_the_initialization_of_values_and_networks():
    sizes = {"d_model": 8, "d_ff": 12, "n_heads": 2, "n_layers": 2}
    plain, deep = (Transformer(TransformerConfig(9, **sizes, norm_placement=norm)) for norm in ("post", "deepnorm"))
    for name, stack in (("encoder", "encoder"), ("decoder", "decoder")):
        beta = deep_norm_factors(stack, 2)[1]
        for p, d in zip(getattr(plain, name), getattr(deep, name), strict=True):
            before, after = (x.attention.query_key_value.weight.data for x in (p, d))
            assert np.array_equal(after[:, :16], before[:, :16]) and np.allclose(after[:, 16:], beta * before[:, 16:])
            for part in ("attention.output", "feed_forward.inner", "feed_forward.outer"):
                outer, inner = part.split(".")
                a, b = (getattr(getattr(x, outer), inner).weight.data for x in (p, d))
                assert np.allclose(b, beta * a)


def test_sub_layers_are_skipped_at_their_rate_in_training_only():
    c = TransformerConfig(9, d_model=4, d_ff=4, n_heads=1, n_layers=4, stochastic_depth=0.4)
    layers = Transformer(c).encoder
    rates = [layer.attention_residual.stochastic_depth.rate for layer in layers]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert layers[3].feed_forward_residual.stochastic_depth.rate == rates[3]
    residual = Residual(4, 0.0, "pre")
    x = Tensor(np.ones((2, 3, 4), "float32"))
    residual.stochastic_depth.rate = 0.4
    outputs = []
    for step in range(400):
        with npx.keyed(0, step):
            outputs.append(residual(x, lambda y: y * 0.0 + 3.0).data)
    values, counts = np.unique(outputs, return_counts=True)
    assert np.allclose(values, [1, 1 + 3 / 0.6]) and abs(counts[0] / counts.sum() - 0.4) < 0.1
    assert all(len(np.unique(y)) == 1 for y in outputs)
    assert np.array_equal(residual.eval()(x, lambda y: y * 0.0 + 3.0).data, np.full(x.shape, 4.0))
