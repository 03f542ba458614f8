"""Cases of the layers (models): small, every parameter at random, so that biases and gains count."""

from hypothesis import strategies as st

import models
import npx
from autograd import operations as ops
from autograd.testing import strategies as s
from tests.cases.base import Call, case, leading, size
from tests.cases.neural import attention_sizes, normed, scores


def built(draw, kind, *sizes, **options):
    seed = draw(st.integers(0, 99))
    with npx.keyed(seed, 0):
        layer = kind(*sizes, **options)
        for p in layer.parameters():
            p.data = p.data + 0.3 * npx.random.normal(npx.next_key(), p.shape, p.dtype)
    return layer


def sequence(draw, d, b=None, t=None):
    return draw(s.arrays((b or draw(size(2)), t or draw(size(3)), d), ("normal", "plain")))


def rates(draw):
    return draw(st.sampled_from([0.3, 0.0]))


@case
def layer_Linear(draw):
    n_in = draw(size())
    options = {"bias": draw(st.booleans()), "activation": draw(st.sampled_from(["", "relu"]))}
    layer = built(draw, models.Linear, n_in, *draw(st.lists(size(2), min_size=1, max_size=3)), **options)
    return Call((draw(s.arrays((*leading(draw), n_in), ("normal", "large"))),), layer=layer)


@case
def layer_Embedding(draw):
    rows = draw(size(4))
    layer = built(draw, models.Embedding, rows, draw(size(4)), init=draw(st.sampled_from(["normal", "xavier"])))
    return Call((draw(s.indices(rows)),), layer=layer)


@case
def layer_LayerNorm(draw):
    x, _, _ = normed(draw)
    return Call((x,), layer=built(draw, models.LayerNorm, x.shape[-1], 1e-2))


@case
def layer_Dropout(draw):
    return Call((draw(s.arrays((*leading(draw), 4), s.STYLES)),), layer=models.Dropout(rates(draw)))


@case
def layer_FeedForward(draw):
    layer = built(draw, models.FeedForward, draw(size()), draw(size()), rates(draw))
    return Call((draw(s.arrays((*leading(draw), layer.outer.weight.shape[1]), ("normal",))),), layer=layer)


@case
def layer_Residual(draw):
    x, _, _ = normed(draw)
    layer = built(draw, models.Residual, x.shape[-1], rates(draw), draw(st.sampled_from(["post", "pre"])), 1e-1)
    return Call((x, ops.tanh), layer=layer)


@case
def layer_Sinusoids(draw, kind=models.Sinusoids):
    d = draw(size(4))
    return Call((sequence(draw, d),), {"start": draw(st.integers(0, 1))}, layer=kind(d))


@case
def layer_SinusoidsInHalves(draw):
    return layer_Sinusoids(draw, models.SinusoidsInHalves)


@case
def layer_LearnedPositions(draw):
    d = draw(size(4))
    layer = built(draw, models.LearnedPositions, d, 4)
    return Call((sequence(draw, d),), {"start": draw(st.integers(0, 1))}, layer=layer)


@case
def layer_RotaryPositions(draw):
    return layer_Sinusoids(draw, models.RotaryPositions)


@case
def layer_SelfAttention(draw):
    b, t, _, h, d_k, d_v, _ = attention_sizes(draw)
    d, rotary = draw(size(3)), draw(st.sampled_from([None, 10.0]))
    how = {"bias": draw(st.booleans()), "dropout": rates(draw), "rotary": rotary}
    layer = built(draw, models.SelfAttention, d, h, 2 * d_k if rotary else d_k, d_v, **how)
    return Call((sequence(draw, d, b, t), scores(draw, b, h, t, t, 1)), layer=layer)


@case
def layer_CrossAttention(draw):
    b, t, source, h, d_k, d_v, _ = attention_sizes(draw)
    d = draw(size(3))
    layer = built(draw, models.CrossAttention, d, h, d_k, d_v, bias=draw(st.booleans()), dropout=rates(draw))
    return Call((sequence(draw, d, b, t), sequence(draw, d, b, source), scores(draw, b, h, t, source, 1)), layer=layer)


def config(draw):
    return models.TransformerConfig(
        **{"vocab_size": 7, "d_model": 4, "d_ff": draw(size()), "n_heads": draw(size(2)), "n_layers": 1},
        **{"dropout": rates(draw), "attention_dropout": rates(draw), "activation_dropout": rates(draw)},
        **{"norm": draw(st.sampled_from(["post", "pre"])), "attention_bias": draw(st.booleans())},
        positions=draw(st.sampled_from(["learned", "sinusoidal", "rotary"])),
        **{"max_positions": 4, "layer_norm_eps": 0.1},
    )


@case
def layer_EncoderLayer(draw):
    layer, x = built(draw, models.EncoderLayer, config(draw)), sequence(draw, 4)
    return Call((x, scores(draw, len(x), 1, x.shape[1], x.shape[1], 1)), layer=layer, directions=3)


@case
def layer_DecoderLayer(draw):
    layer, x = built(draw, models.DecoderLayer, config(draw)), sequence(draw, 4)
    memory = sequence(draw, 4, b=len(x))
    return Call((x, memory, scores(draw, len(x), 1, x.shape[1], memory.shape[1], 1)), layer=layer, directions=3)


@case
def layer_Transformer(draw):
    """Ids of sequences of drawn lengths, padded at their end."""
    layer, b = built(draw, models.Transformer, config(draw)), draw(size(2))
    sides = []
    for longest in (draw(size()), draw(size())):
        lengths = npx.asarray(draw(s.lengths(b, longest)))
        ids = 3 + draw(s.indices(4, (b, longest)))
        sides.append(npx.where(npx.asarray(npx.arange(longest)) < lengths[:, None], ids, 0))
    return Call(tuple(sides), layer=layer, directions=3)


@case
def operation_add_constant(draw):
    x = draw(s.arrays(s.shapes(min_dims=1, max_side=3), s.STYLES))
    return Call((x, draw(st.sampled_from([0.5, npx.host.arange(x.shape[-1])]))), float32=False)
