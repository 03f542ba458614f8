"""Cases of the operations of the Transformer (autograd/neural.py)."""

from hypothesis import strategies as st

import npx
from autograd.testing import strategies as s
from tests.cases.base import Call, case, leading, size

BOUNDED = ("plain", "normal", "tiny", "zeros")  # no numbers whose products leave float32 few digits


def extra(x):
    """Bytes of a contiguous copy, which an operation may make of an input that is not contiguous."""
    return 0 if x.flags.c_contiguous else x.nbytes


def keys():
    return st.builds(npx.Key, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@case
def operation_softmax(draw):
    shape = (*leading(draw), draw(size(least=0)))
    mask = draw(s.masks(shape) | s.masks(shape[-1:]) | s.masks((*shape[:-1], 1)))
    return Call((draw(s.arrays(shape, s.STYLES)), mask))


def normed(draw, dtype="float64"):
    """x (..., D), gamma (D,), beta (D,)."""
    d = draw(size(4))
    shape, styles = (*leading(draw), d), ("plain", "normal", "large", "tiny", "zeros")
    return [draw(s.arrays(z, styles, dtype)) for z in (shape, (d,), (d,))]


@case
def operation_layer_norm(draw):
    x, gamma, beta = normed(draw)
    eps = draw(st.sampled_from([0.1, 1e-2]))
    return Call((x, gamma, beta), {"eps": eps}, saved=x.nbytes + x[..., :1].nbytes)


@case
def operation_dropout(draw):
    x = draw(s.arrays((*leading(draw), draw(size(9))), s.STYLES))
    return Call((x, draw(st.builds(npx.Drop, st.sampled_from([0.3, 0.5, 0.9]), keys()))), saved=x.size)


@case
def operation_dropout_residual_norm(draw):
    x, gamma, beta = normed(draw)
    residual = draw(s.arrays(x.shape, ("plain", "normal", "large")))
    saved = x.nbytes + x[..., :1].nbytes + x.size
    return Call((x, residual, gamma, beta), {**dropped(draw), "eps": 0.1}, saved)


@case
def operation_linear(draw):
    n_in, n_out = draw(size()), draw(size())
    x, w = draw(s.arrays((*leading(draw), n_in))), draw(s.arrays((n_in, n_out)))
    b = draw(st.none() | s.arrays((n_out,)))
    return Call((x, w, b), {"activation": draw(st.sampled_from(["", "relu"]))}, saved=extra(x))


@case
def operation_embedding(draw):
    rows = draw(size(4))
    table, ids = draw(s.arrays((rows, draw(size())), s.STYLES)), draw(s.indices(rows))
    return Call((table, ids), {"scale": draw(st.sampled_from([2.5, 1.0]))})


def attention_sizes(draw, least=1):
    """B, T, S, H, d_k, d_v, and what is done to the scores."""
    b, t, source = draw(size(2, least)), draw(size(3, least)), draw(size(3, least))
    h, d_k, d_v = draw(size(2)), draw(st.sampled_from([1, 2, 2, 3])), draw(size(2))
    return b, t, source, h, d_k, d_v, scores(draw, b, h, t, source, d_k)


def scores(draw, b, h, t, source, d_k):
    """Any of causal, lengths, rotary, and a bias: of a mask, of numbers, or of both."""
    bias = npx.mask_bias(draw(st.sampled_from([(b, 1, 1, source), (t, source), (b, h, t, source)]).flatmap(s.masks)))
    if draw(st.sampled_from([False, False, True])):
        numbers = draw(s.arrays((h, t, source), BOUNDED))
        bias = numbers if bias is None else bias + numbers
    lengths = draw(st.none() | st.none() | st.lists(st.integers(0, source + 1), min_size=b, max_size=b))
    return npx.Scores(
        causal=draw(st.booleans()),
        lengths=None if lengths is None else npx.asarray(lengths, "int64"),
        bias=bias,
        rotary=draw(st.sampled_from([None, 10.0, 10.0])) if d_k % 2 == 0 else None,
    )


def turned(how, *arrays):
    """Bytes of queries and keys that are turned by their positions."""
    return 0 if how.rotary is None else sum(x.nbytes for x in arrays)


def dropped(draw):
    rate, key = draw(st.sampled_from([0.3, 0.5])), draw(st.none() | keys())
    return {"drop": key and npx.Drop(rate, key)}


@case
def operation_attention(draw):
    b, t, source, h, d_k, d_v, how = attention_sizes(draw)
    shapes = (b, t, h, d_k), (b, source, h, d_k), (b, source, h, d_v)
    q, k, v = (draw(s.arrays(shape, BOUNDED)) for shape in shapes)
    return Call((q, k, v, how), dropped(draw), saved=9 * b * h * t * source + turned(how, q, k))


@case
def operation_self_attention(draw):
    b, t, _, h, d_k, d_v, _ = attention_sizes(draw)
    how, qkv = scores(draw, b, h, t, t, d_k), draw(s.arrays((b, t, h * (2 * d_k + d_v)), BOUNDED))
    return Call((qkv, h, d_k, how), dropped(draw), saved=9 * b * h * t * t + turned(how, qkv))


@case
def operation_cross_attention(draw):
    b, t, source, h, d_k, d_v, how = attention_sizes(draw)
    queries, pairs = (draw(s.arrays(z, BOUNDED)) for z in ((b, t, h * d_k), (b, source, h * (d_k + d_v))))
    saved = 9 * b * h * t * source + turned(how, queries, pairs)
    return Call((queries, pairs, h, d_k, how), dropped(draw), saved)


def smoothed(draw):
    over = draw(st.sampled_from(["all", "others", "others_without_pad"]))
    share, pad = draw(st.sampled_from([0.2, 0.0])), draw(st.sampled_from([0, 2]))
    return {"smoothing": npx.Smoothing(share, over, pad)}


@case
def operation_cross_entropy(draw):
    shape, classes = leading(draw), draw(size(5, least=4))
    logits = draw(s.arrays((*shape, classes), s.STYLES))
    return Call((logits, draw(s.indices(classes, shape))), smoothed(draw), saved=logits.nbytes)


@case
def operation_linear_cross_entropy(draw):
    shape, classes, d = leading(draw), draw(size(5, least=4)), draw(size(2))
    x, w = draw(s.arrays((*shape, d), BOUNDED)), draw(s.arrays((classes, d), BOUNDED))
    return Call((x, w, draw(s.indices(classes, shape))), smoothed(draw), saved=x.nbytes + w.nbytes)
