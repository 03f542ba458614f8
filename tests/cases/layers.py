"""Cases of the layers in models/: small layers whose parameters, including biases and gains, are random."""

from hypothesis import strategies as st

import models
import npx
from autograd import operations as ops
from autograd.testing import strategies as s
from models.architectures.encoder_decoder import TargetSpaceEmbedding
from models.layers.norm import PLACEMENTS
from tests.cases.base import Call, case, edges, leading, sample, size
from tests.cases.neural import attention_sizes, attention_spec, norm_edges, norm_inputs, spec_edges


def draw_layer(draw, layer_class, *sizes, **options):
    """Like `make_layer`, with a drawn seed."""
    return make_layer(layer_class, *sizes, seed=draw(st.integers(0, 99)), **options)


def make_layer(layer_class, *sizes, seed=0, **options):
    """Return a layer whose parameters are all random."""
    with npx.keyed(seed, 0):
        layer = layer_class(*sizes, **options)
        for p in layer.parameters():
            p.data = p.data + 0.3 * npx.random.normal(npx.next_key(), p.shape, p.dtype)
    return layer


def sequence(draw, d, b=None, t=None):
    """Draw an array (B, T, D)."""
    return draw(s.arrays((b or draw(size(2)), t or draw(size(3)), d), ("normal", "plain")))


def rates(draw):
    return draw(st.sampled_from([0.3, 0.0]))


@case
def layer_Linear(draw):
    n_in = draw(size())
    options = {"bias": draw(st.booleans()), "activation": draw(st.sampled_from([None, "relu"]))}
    layer = draw_layer(draw, models.Linear, n_in, tuple(draw(st.lists(size(2), min_size=1, max_size=3))), **options)
    return Call((draw(s.arrays((*leading(draw), n_in), ("normal", "large"))),), layer=layer)


@case
def layer_Embedding(draw):
    rows = draw(size(4))
    layer = draw_layer(draw, models.Embedding, rows, draw(size(4)), init=draw(st.sampled_from(["normal", "xavier"])))
    return Call((draw(s.indices(rows)),), layer=layer)


@case
def layer_LayerNorm(draw):
    x, _, _ = norm_inputs(draw)
    return Call((x,), layer=draw_layer(draw, models.LayerNorm, x.shape[-1], 1e-2))


@case
def layer_Dropout(draw):
    return Call((draw(s.arrays((*leading(draw), 4), s.STYLES)),), layer=models.Dropout(rates(draw)))


@case
def layer_FeedForward(draw):
    layer = draw_layer(draw, models.FeedForward, draw(size()), draw(size()), rates(draw))
    return Call((draw(s.arrays((*leading(draw), layer.outer.weight.shape[1]), ("normal",))),), layer=layer)


def make_experts(d_model, n_experts, experts_per_token):
    """Return a mixture of small experts."""
    return models.layers.Experts(d_model, n_experts, experts_per_token, lambda: models.FeedForward(d_model, 2))


@case
def layer_Experts(draw):
    sizes = draw(size(3)), draw(st.integers(2, 4)), draw(st.integers(1, 2))
    layer = draw_layer(draw, make_experts, *sizes)
    return Call((draw(s.arrays((*leading(draw), sizes[0]), ("normal",))),), layer=layer)


@case
def layer_Residual(draw):
    x, _, _ = norm_inputs(draw)
    layer = draw_layer(draw, models.Residual, x.shape[-1], rates(draw), draw(st.sampled_from(PLACEMENTS)), 1e-1)
    layer.stochastic_depth.rate = rates(draw)
    return Call((x, ops.tanh), layer=layer)


@case
def layer_SinusoidalPositions(draw, layer_class=models.SinusoidalPositions):
    d = draw(size(4))
    return Call((sequence(draw, d),), {"start": draw(st.integers(0, 1))}, layer=layer_class(d))


@case
def layer_SplitSinusoidalPositions(draw):
    return layer_SinusoidalPositions(draw, models.SplitSinusoidalPositions)


@case
def layer_TargetSpaceEmbedding(draw):
    d = draw(size(4))
    return Call((sequence(draw, d),), layer=draw_layer(draw, TargetSpaceEmbedding, d))


@case
def layer_LearnedPositions(draw):
    d = draw(size(4))
    layer = draw_layer(draw, models.LearnedPositions, d, 4)
    return Call((sequence(draw, d),), {"start": draw(st.integers(0, 1))}, layer=layer)


@case
def layer_RotaryPositions(draw):
    return layer_SinusoidalPositions(draw, models.RotaryPositions)


@case
def layer_SelfAttention(draw):
    b, t, _, h, d_k, d_v, _ = attention_sizes(draw)
    d, rotary = draw(size(3)), draw(st.sampled_from([None, 10.0]))
    options = {"projection_bias": draw(st.booleans()), "dropout": rates(draw), "rotary_base": rotary}
    layer = draw_layer(draw, models.SelfAttention, d, h, 2 * d_k if rotary else d_k, d_v, **options)
    return Call((sequence(draw, d, b, t), attention_spec(draw, b, h, t, t, 1)), layer=layer)


@case
def layer_CrossAttention(draw):
    b, t, source, h, d_k, d_v, _ = attention_sizes(draw)
    d = draw(size(3))
    layer = draw_layer(
        draw, models.CrossAttention, d, h, d_k, d_v, projection_bias=draw(st.booleans()), dropout=rates(draw)
    )
    return Call(
        (sequence(draw, d, b, t), sequence(draw, d, b, source), attention_spec(draw, b, h, t, source, 1)), layer=layer
    )


def config(draw):
    """Draw the configuration of a model of one layer."""
    return models.TransformerConfig(
        **{"vocab_size": 7, "d_model": 4, "d_ff": draw(size()), "n_heads": draw(size(2)), "n_layers": 1},
        **{"dropout": rates(draw), "attention_dropout": rates(draw), "activation_dropout": rates(draw)},
        **{"norm_placement": draw(st.sampled_from(["post", "pre"])), "attention_bias": draw(st.booleans())},
        positions=draw(st.sampled_from(["learned", "sinusoidal", "rotary"])),
        **{"max_positions": 4, "norm_eps": 0.1},
    )


@case
def layer_EncoderLayer(draw):
    layer = draw_layer(draw, models.EncoderLayer, config(draw))
    x = sequence(draw, 4)
    return Call((x, attention_spec(draw, len(x), 1, x.shape[1], x.shape[1], 1)), layer=layer, n_directions=3)


@case
def layer_DecoderLayer(draw):
    layer = draw_layer(draw, models.DecoderLayer, config(draw))
    x = sequence(draw, 4)
    memory = sequence(draw, 4, b=len(x))
    return Call(
        (x, memory, attention_spec(draw, len(x), 1, x.shape[1], memory.shape[1], 1)), layer=layer, n_directions=3
    )


@case
def operation_add_constant(draw):
    x = draw(s.arrays(s.shapes(min_dims=1, max_side=3), s.STYLES))
    return Call((x, draw(st.sampled_from([0.5, npx.arange(x.shape[-1])]))), compare_float32=False)


# Edges

RATES = 0.5, 0.0, 0.999


@edges("operation add_constant")
def add_constant_edges():
    for constant in (0.5, npx.arange(3), npx.arange(6).reshape(2, 3)):
        yield Call((sample(2, 3), constant), compare_float32=False)


@edges("layer Linear")
def linear_edges():
    for bias in (True, False):
        for activation in (None, "relu"):
            yield Call((sample(2, 2, 3),), layer=make_layer(models.Linear, 3, 2, bias=bias, activation=activation))
    yield Call((sample(3),), layer=make_layer(models.Linear, 3, (1, 2, 1)))


@edges("layer Embedding")
def embedding_edges():
    for init in ("normal", "xavier"):
        for ids in ([[1, 1, 0], [3, 1, 3]], 2, [], [[0]]):
            yield Call((npx.asarray(ids, "int64"),), layer=make_layer(models.Embedding, 5, 3, init=init))


@edges("layer LayerNorm")
def layer_norm_edges():
    for x, eps in norm_edges():
        yield Call((x,), layer=make_layer(models.LayerNorm, x.shape[-1], eps))


@edges("layer Dropout")
def dropout_edges():
    for rate in (*RATES, 1.0):
        yield Call((sample(2, 3, 2),), layer=models.Dropout(rate))


@edges("layer FeedForward")
def feed_forward_edges():
    for i, activation in enumerate(models.ACTIVATIONS):
        for rate in RATES[:1] if i else RATES:
            layer = make_layer(models.FeedForward, 3, 4, rate, activation)
            yield Call((sample(2, 2, 3),), layer=layer, n_directions=3 if i else None)
    yield Call((sample(3),), layer=make_layer(models.FeedForward, 3, 2))


@edges("layer Experts")
def experts_edges():
    for i, (n_experts, experts_per_token) in enumerate(((2, 1), (2, 2), (5, 2))):
        layer = make_layer(make_experts, 3, n_experts, experts_per_token)
        yield Call((sample(2, 3, 3),), layer=layer, n_directions=3 if i else None)
    yield Call((sample(3),), layer=make_layer(make_experts, 3, 4, 1))
    yield Call((sample(0, 3),), layer=make_layer(make_experts, 3, 4, 2))


@edges("layer Residual")
def residual_edges():
    for norm_type in models.NORMS:
        for place in ("post", "pre"):
            for rate in RATES:
                layer = make_layer(models.Residual, 3, rate, place, 1e-2, norm_type)
                yield Call((sample(2, 2, 3), ops.tanh), layer=layer, n_directions=None if rate == RATES[0] else 3)
    for place in PLACEMENTS:
        layer = make_layer(models.Residual, 3, 0.5, place, 1e-2, alpha=1.5)
        layer.stochastic_depth.rate = 0.3
        yield Call((sample(2, 2, 3), ops.tanh), layer=layer)


def position_edges(layer_class):
    def calls():
        for start in (0, 1, 3):
            for d in (4, 3, 1):
                yield Call((sample(2, 3, d),), {"start": start}, layer=make_layer(layer_class, d, 6))
        yield Call((sample(1, 0, 2),), layer=make_layer(layer_class, 2, 6))

    return calls


for position_class in (
    models.SinusoidalPositions,
    models.SplitSinusoidalPositions,
    models.LearnedPositions,
    models.RotaryPositions,
):
    edges(f"layer {position_class.__name__}")(position_edges(position_class))


@edges("layer TargetSpaceEmbedding")
def target_space_edges():
    yield Call((sample(2, 3, 4),), layer=make_layer(TargetSpaceEmbedding, 4))
    yield Call((sample(1, 0, 2),), layer=make_layer(TargetSpaceEmbedding, 2))


@edges("layer SelfAttention", vary_inputs=False)
def self_attention_edges():
    for i, spec in enumerate(spec_edges(2, 2, 3, 3)):  # the operation's cases check every entry with each spec
        yield Call((sample(2, 3, 4), spec), layer=make_layer(models.SelfAttention, 4, 2), n_directions=3 if i else None)
    for options in (
        {"projection_bias": True},
        {"rotary_base": 10.0, "projection_bias": True},
        {"dropout": 0.5},
        {"dropout": 0.9, "rotary_base": 9.0},
    ):
        layer = make_layer(models.SelfAttention, 3, 2, 4, 1, **options)
        yield Call((sample(2, 3, 3), npx.AttentionSpec(causal=True)), layer=layer, n_directions=3)
    for bias in (models.layers.AlibiBias(4), make_layer(models.layers.ShawBias, 4, 2, 1)):
        options = {"n_kv_heads": 2, "qk_norm_type": "rms_norm", "eps": 1e-2, "score_bias": bias}
        layer = make_layer(models.SelfAttention, 3, 4, 2, 1, **options)
        for spec in (npx.AttentionSpec(causal=True), npx.AttentionSpec(constant_bias=sample(2, 4, 3, 3))):
            yield Call((sample(2, 3, 3), spec), layer=layer, n_directions=3)
    yield Call((sample(2, 3, 3),), layer=make_layer(models.SelfAttention, 3, 4, 2, 1, n_kv_heads=1))


@edges("layer CrossAttention", vary_inputs=False)
def cross_attention_edges():
    memory = sample(2, 4, 4, seed=1)
    for i, spec in enumerate(spec_edges(2, 2, 3, 4)):
        layer = make_layer(models.CrossAttention, 4, 2)
        yield Call((sample(2, 3, 4), memory, spec), layer=layer, n_directions=3 if i else None)
    for options in ({"projection_bias": True}, {"dropout": 0.5}, {"dropout": 0.999, "projection_bias": True}):
        layer = make_layer(models.CrossAttention, 4, 2, 2, 1, **options)
        yield Call((sample(2, 3, 4), memory), layer=layer, n_directions=3)
    for options in ({"n_kv_heads": 1}, {"n_kv_heads": 1, "qk_norm_type": "layer_norm", "eps": 1e-2}):
        yield Call((sample(2, 3, 4), memory), layer=make_layer(models.CrossAttention, 4, 2, 2, 1, **options))


SMALL = {"vocab_size": 7, "d_model": 4, "d_ff": 3, "n_heads": 2, "n_layers": 1, "max_positions": 6}
SMALL |= {"norm_eps": 1e-2, "dropout": 0.0}
BLOCKS = (
    {"norm_placement": "post"},
    {"norm_placement": "pre"},
    {"norm_placement": "post", "norm_type": "rms_norm", "attention_bias": True, "activation": "gelu"},
    {"norm_placement": "pre", "norm_type": "rms_norm", "activation": "swiglu", "d_k": 1, "d_v": 3},
    {
        "norm_placement": "post",
        "positions": "rotary",
        "dropout": 0.5,
        "attention_dropout": 0.3,
        "activation_dropout": 0.4,
    },
    {
        "norm_placement": "pre",
        "positions": "rotary",
        "dropout": 0.5,
        "attention_dropout": 0.3,
        "activation_dropout": 0.4,
    },
    {
        "norm_placement": "sandwich",
        "positions": "t5",
        "n_kv_heads": 1,
        "relative_buckets": 4,
        "max_relative_distance": 3,
    },
    {"norm_placement": "deepnorm", "positions": "shaw", "qk_norm": True, "max_relative_distance": 1},
)


def small(**options):
    """Return a minimal configuration with other options."""
    return models.TransformerConfig(**SMALL | options)


@edges("layer EncoderLayer", vary_inputs=False)
def encoder_layer_edges():
    for i, options in enumerate(BLOCKS):
        layer = make_layer(models.EncoderLayer, small(**options))
        spec = npx.AttentionSpec(kv_lengths=npx.asarray([3, 2]))
        yield Call((sample(2, 3, 4), spec), layer=layer, n_directions=3 if i else None)


@edges("layer DecoderLayer", vary_inputs=False)
def decoder_layer_edges():
    for i, options in enumerate(BLOCKS):
        layer = make_layer(models.DecoderLayer, small(**options))
        spec = npx.AttentionSpec(kv_lengths=npx.asarray([2, 1]))
        yield Call((sample(2, 3, 4), sample(2, 2, 4, seed=1), spec), layer=layer, n_directions=3 if i else None)
