"""The layers (models/layers/): initialization, and outputs computed in plain NumPy."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from autograd import Tensor
from models import (
    CrossAttention,
    Dropout,
    Embedding,
    FeedForward,
    LayerNorm,
    LearnedPositions,
    Linear,
    Residual,
    RotaryPositions,
    SelfAttention,
    SinusoidalPositions,
    SplitSinusoidalPositions,
    TransformerConfig,
    sinusoids,
)
from models.layers.norm import Norm
from models.registry import ACTIVATIONS, NORMS, POSITIONS
from tests.helpers.small_models import SMALL

RNG = np.random.default_rng(0)


class NarrowNorm(Norm):
    """A norm without the argument eps."""

    def __init__(self, d_model):
        self.d_model = d_model


@pytest.mark.parametrize(
    "registry, part, message",
    [
        (NORMS, Linear, "norm_type 'new': expected a subclass of models.layers.norm.Norm; got <"),
        (NORMS, NarrowNorm, r"norm_type 'new': expected the arguments \(d_model, eps\); got \(d_model\)$"),
        (
            POSITIONS,
            LayerNorm,
            "positions 'new': expected a subclass of models.layers.positions.Positions; got <class ",
        ),
        (ACTIVATIONS, NarrowNorm, r"activation 'new': expected the arguments \(d_model, d_ff\); got \(d_model\)$"),
    ],
)
def test_registration_rejects_parts_that_a_model_cannot_use(registry, part, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        registry.register("new")(part)
    assert "new" not in registry


def build(layer, *args, **kwargs):
    """Return a float64 layer with random parameters, so that no initial zero or one hides a bug."""
    with npx.keyed(1, 0):
        module = layer(*args, **kwargs)
    for p in module.parameters():
        p.data = p.data + RNG.normal(size=p.shape) * 0.3
    return module.eval()


def normalized(x, gamma, beta, eps):
    return gamma * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) + beta


# Initialization


@given(n_in=st.integers(1, 200), n_out=st.lists(st.integers(1, 200), min_size=1, max_size=3))
def test_xavier_bounds_of_each_merged_matrix(n_in, n_out):
    """U(-a, a), a = sqrt(6 / (n_in + n_out)), with the n_out of each part."""
    with npx.keyed(3, 0):
        layer = Linear(n_in, tuple(n_out))
    assert layer.weight.shape == (n_in, sum(n_out)) and layer.weight.dtype == "float32"
    assert not layer.bias.data.any() and layer.bias.shape == (sum(n_out),)
    start = 0
    for n in n_out:
        part = layer.weight.data[:, start : start + n]
        limit = math.sqrt(6 / (n_in + n))
        assert abs(part).max() <= limit * (1 + 1e-6)
        if part.size > 1000:
            assert abs(part).max() > 0.98 * limit and abs(part.std() - limit / math.sqrt(3)) < 0.1 * limit
        start += n


@given(st.sampled_from(["encoder_decoder", "decoder"]), st.floats(0.01, 10))
def test_attention_gain_scales_only_the_initial_queries_keys_and_values(architecture, gain):
    config = TransformerConfig(**SMALL, architecture=architecture)
    plain = config.build()
    scaled = replace(config, attention_gain=gain).build()
    for (name, before), (_, after) in zip(plain.named_parameters(), scaled.named_parameters(), strict=True):
        factor = gain if "query" in name or "key_value" in name else 1.0
        np.testing.assert_allclose(after.data, factor * before.data, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("widths", [(4, ()), (0, 3), (4, 0), (4, (3, 0))])
def test_linear_rejects_widths_that_are_no_widths(widths):
    with pytest.raises(ValueError, match="Linear: expected widths of at least 1; got "):
        Linear(*widths)


def test_a_third_width_is_not_taken_for_the_bias():
    with pytest.raises(TypeError, match="positional"):
        Linear(4, 3, 3)


def test_embedding_is_normal_with_a_zero_padding_row_or_xavier():
    with npx.keyed(1, 0):
        normal = Embedding(2000, 64, pad_id=7)
        xavier = Embedding(2000, 64, init="xavier")
    table = normal.weight.data
    assert not table[7].any() and abs(np.delete(table, 7, 0).std() - 64**-0.5) < 1e-3 and abs(table.mean()) < 1e-3
    limit = math.sqrt(6 / 2064)
    assert 0.99 * limit < abs(xavier.weight.data).max() <= limit


def test_initialization_depends_on_the_seed_only():
    def weights(seed):
        with npx.keyed(seed, 0):
            return [Linear(3, 4).weight.data, Linear(3, 4).weight.data]

    (a, b) = weights(1)
    (c, d) = weights(1)
    (e, _) = weights(2)
    assert np.array_equal(a, c) and np.array_equal(b, d)
    assert not np.array_equal(a, b) and not np.array_equal(a, e)


# Positions


@pytest.mark.parametrize("position, i, d", [(0, 0, 8), (1, 0, 8), (5, 3, 8), (37, 2, 512), (999, 255, 512), (7, 1, 5)])
def test_sinusoids_at_chosen_entries(position, i, d):
    table = sinusoids(position + 1, d, dtype="float64")
    halves = sinusoids(position + 1, d, interleaved=False, dtype="float64")
    angle = position / 10000 ** (2 * i / d)
    assert table.shape == halves.shape == (position + 1, d)
    assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-12)
    assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-12)
    angle = position / 10000 ** (i / (d // 2 - 1))  # in halves: the largest wavelength is exactly 10000 * 2 pi
    assert halves[position, i] == pytest.approx(math.sin(angle), abs=1e-12)
    assert halves[position, d // 2 + i] == pytest.approx(math.cos(angle), abs=1e-12)
    if d % 2:
        assert halves[position, -1] == 0


@pytest.mark.parametrize("rate_scheme", ["paper", "tensor2tensor"])
def test_sinusoids_in_halves_are_the_same_columns_reordered(rate_scheme):
    table = sinusoids(20, 12, rate_scheme=rate_scheme)
    halves = sinusoids(20, 12, interleaved=False, rate_scheme=rate_scheme)
    assert np.array_equal(halves, np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_sinusoids_of_tiny_widths_are_finite(d):
    assert np.isfinite(sinusoids(9, d, interleaved=False)).all() and np.isfinite(sinusoids(9, d)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [SinusoidalPositions, SplitSinusoidalPositions])
def test_positions_add_their_rows_from_any_start(kind, dtype):
    positions = kind(6)
    for start, length in ((0, 3), (60, 10), (500, 2), (0, 5)):  # the table grows
        x = RNG.normal(size=(2, length, 6)).astype(dtype)
        y = positions(Tensor(x), start=start)
        table = sinusoids(start + length, 6, kind is SinusoidalPositions, dtype)
        assert y.dtype == dtype and np.array_equal(y.data, x + table[start:])


def test_learned_positions_have_a_limit():
    positions = build(LearnedPositions, 4, max_positions=5)
    x = RNG.normal(size=(2, 3, 4))
    assert np.array_equal(positions(Tensor(x), start=2).data, x + positions.weight.data[2:5])
    with pytest.raises(ValueError, match="at most max_positions = 5 tokens; got 6; try"):
        positions(Tensor(x), start=3)


def test_sinusoids_get_no_gradient():
    """Summing a gradient of the sinusoids over the batch would be wasted work."""
    x = Tensor(np.ones((3, 2, 4)), requires_grad=True)
    g = np.ones((3, 2, 4))
    (gradient,) = SinusoidalPositions(4)(x).node.vjp(g)
    assert gradient is g


# Layers


def test_linear_and_feed_forward():
    layer = build(Linear, 3, (2, 4))
    x = RNG.normal(size=(2, 5, 3))
    assert np.allclose(layer(Tensor(x)).data, x @ layer.weight.data + layer.bias.data)
    ff = build(FeedForward, 3, 7)
    inner = np.maximum(0, x @ ff.inner.weight.data + ff.inner.bias.data)
    assert inner.shape == (2, 5, 7) and (inner == 0).any()
    assert np.allclose(ff(Tensor(x)).data, inner @ ff.outer.weight.data + ff.outer.bias.data)


def test_embedding_is_scaled_by_the_root_of_d():
    embedding = build(Embedding, 10, 4)
    ids = np.array([[1, 2], [2, 9]])
    assert np.allclose(embedding(ids).data, embedding.weight.data[ids] * 2)


def test_layer_norm():
    layer = build(LayerNorm, 5, eps=0.1)
    x = RNG.normal(size=(2, 3, 5))
    assert np.allclose(layer(Tensor(x)).data, normalized(x, layer.gamma.data, layer.beta.data, 0.1))
    assert LayerNorm(5).eps == 1e-6


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_residual(norm):
    layer = build(Residual, 5, 0.5, norm, 0.01)
    x = RNG.normal(size=(2, 3, 5))
    f, gamma, beta = np.tanh, layer.norm.gamma.data, layer.norm.beta.data
    seen = []

    def sublayer(t):
        seen.append(t.data)
        return Tensor(f(t.data))

    y = layer(Tensor(x), sublayer).data
    if norm == "post":
        assert np.allclose(y, normalized(x + f(x), gamma, beta, 0.01)) and np.array_equal(seen[0], x)
    else:
        assert np.allclose(y, x + f(normalized(x, gamma, beta, 0.01)))

    layer.train()
    with npx.keyed(1, 1):
        y = layer(Tensor(x), sublayer).data
    dropped = npx.dropout.reference(f(x if norm == "post" else seen[0]), npx.DropoutSpec(0.5, npx.Key(1, 1, 0)))[0]
    assert np.allclose(y, normalized(x + dropped, gamma, beta, 0.01) if norm == "post" else x + dropped)


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_an_invalid_dropout_rate_raises(rate):
    with pytest.raises(ValueError, match="Dropout: expected a rate from 0 to 1"):
        Dropout(rate)


def test_dropout_is_off_in_evaluation_and_at_rate_zero():
    x = Tensor(np.ones((20, 20)))
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x
    with npx.keyed(1, 1):
        layer = Dropout(0.5)
        first, second = layer(x).data, layer(x).data
    assert set(np.unique(first)) == {0.0, 2.0} and not np.array_equal(first, second)


# Attention


def attend(q, k, v, mask):
    """softmax(q k^T / sqrt(d_k)) v for one sentence and head. q (T, d_k); k (S, d_k); v (S, d_v); mask (T, S)."""
    out = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        seen = np.flatnonzero(mask[t])
        scores = np.array([q[t] @ k[s] / math.sqrt(q.shape[1]) for s in seen])
        weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        out[t] = sum(w * v[s] for w, s in zip(weights, seen, strict=True))
    return out


def reference_attention(layer, x, memory, mask):
    """Compute multi-head attention head by head, from slices of the merged projections."""
    h, d_k, d_v = layer.n_heads, layer.d_k, layer.d_v

    def project(name, inputs):
        part = getattr(layer, name)
        return inputs @ part.weight.data + (0 if part.bias is None else part.bias.data)

    if memory is not None:
        q = project("query", x)
        kv = project("key_value", memory)
        k, v = kv[..., : h * d_k], kv[..., h * d_k :]
    else:
        qkv = project("query_key_value", x)
        q, k, v = qkv[..., : h * d_k], qkv[..., h * d_k : 2 * h * d_k], qkv[..., 2 * h * d_k :]
    rows = []
    for b in range(len(x)):
        heads = [
            attend(*(a[b, :, i * n : (i + 1) * n] for a, n in ((q, d_k), (k, d_k), (v, d_v))), mask[b])
            for i in range(h)
        ]
        rows.append(np.concatenate(heads, axis=-1))
    return project("output", np.stack(rows))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(None, None), (3, 5)])
def test_self_attention(bias, sizes):
    layer = build(SelfAttention, 8, 2, *sizes, projection_bias=bias)
    x = RNG.normal(size=(2, 3, 8))
    for spec, mask in (
        (npx.AttentionSpec(kv_lengths=np.array([3, 2])), [[[True, True, True]] * 3, [[True, True, False]] * 3]),
        (npx.AttentionSpec(causal=True), [np.tril(np.ones((3, 3), bool))] * 2),
    ):
        y = layer(Tensor(x), spec)
        assert y.shape == (2, 3, 8) and np.allclose(y.data, reference_attention(layer, x, None, np.array(mask)))
    assert sum("bias" in name for name, _ in layer.named_parameters()) == (bias and 2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(None, None), (3, 5)])
def test_cross_attention(bias, sizes):
    layer = build(CrossAttention, 8, 2, *sizes, projection_bias=bias)
    x, memory = RNG.normal(size=(2, 3, 8)), RNG.normal(size=(2, 4, 8))
    mask = np.array([[[True, True, True, True]] * 3, [[True, True, False, False]] * 3])
    y = layer(Tensor(x), Tensor(memory), npx.AttentionSpec(kv_lengths=np.array([4, 2])))
    assert y.shape == (2, 3, 8) and np.allclose(y.data, reference_attention(layer, x, memory, mask))
    assert sum("bias" in name for name, _ in layer.named_parameters()) == (bias and 3)


@pytest.mark.parametrize("rotary", [None, 10000.0])
def test_cached_self_attention_equals_full_attention(rotary):
    layer = build(SelfAttention, 8, 2, 4, 5, rotary_base=rotary)
    x = RNG.normal(size=(2, 40, 8))
    causal = npx.AttentionSpec(causal=True)
    expected = layer(Tensor(x), causal).data
    for lengths in ([1] * 40, [7, 1, 20, 1, 11]):
        cache = layer.new_cache(2, x.dtype, capacity=4)  # the cache grows several times
        start = 0
        for length in lengths:
            y = layer(Tensor(x[:, start : start + length]), causal, cache).data
            assert np.allclose(y, expected[:, start : start + length], atol=1e-12)
            start += length
        assert cache.length == 40


def test_rotary_attention_depends_on_distances_only():
    """Shifting a sequence does not change its attention; changing distances does."""
    layer = build(SelfAttention, 8, 2, rotary_base=RotaryPositions.rotary_base)
    x = RNG.normal(size=(1, 5, 8))
    first = RNG.normal(size=(1, 3, 8))  # the bias hides these positions
    bias = np.where(np.arange(8) < 3, -np.inf, 0.0)
    later = layer(Tensor(np.concatenate([first, x], axis=1)), npx.AttentionSpec(constant_bias=bias)).data[:, 3:]
    assert np.allclose(later, layer(Tensor(x)).data, atol=1e-12)
    assert not np.allclose(layer(Tensor(x[:, ::-1])).data[:, ::-1], layer(Tensor(x)).data)


def test_attention_weights_reproduce_the_output():
    layer = build(CrossAttention, 8, 2)
    x = RNG.normal(size=(2, 3, 8))
    memory = RNG.normal(size=(2, 4, 8))
    spec = npx.AttentionSpec(kv_lengths=np.array([4, 2]))
    p = layer.attention_weights(Tensor(x), Tensor(memory), spec)  # (B, H, T, S)
    v = (memory @ layer.key_value.weight.data)[..., 8:].reshape(2, 4, 2, 4)
    y = np.einsum("bhts,bshd->bthd", p, v).reshape(2, 3, 8) @ layer.output.weight.data
    assert np.allclose(p.sum(axis=-1), 1) and np.allclose(y, layer(Tensor(x), Tensor(memory), spec).data)


@pytest.mark.parametrize("name", ["sinusoidal", "sinusoidal_halves", "learned", "rotary"])
@pytest.mark.parametrize("start", [0, 3])
def test_fused_embedding_equals_embedding_positions_and_dropout(name, start):
    """Results and the gradients of both tables are equal bit for bit in both modes, with the same dropout mask."""
    ids = np.array([[1, 2, 2], [9, 2, 0]])
    dropout = Dropout(0.3)
    results = []
    embedding = build(Embedding, 10, 4)
    positions = build(POSITIONS[name], 4, 16)
    parameters = [p for module in (embedding, positions) for p in module.parameters()]
    for is_fused in (True, False):
        for mode in (True, False):
            dropout.train(mode)
            with npx.keyed(1, 2):
                x = positions.embed(embedding, ids, start, dropout) if is_fused else dropout(
                    positions(embedding(ids), start))  # fmt: skip
            x.backward(np.arange(24.0).reshape(x.shape).astype(x.dtype))
            results.append((x.data, *(p.grad for p in parameters)))
            for p in parameters:
                p.grad = None
    for fused, separate in zip(results[:2], results[2:], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(fused, separate, strict=True))
