"""Cases of the operations of the Transformer (autograd/neural.py): drawn calls, then edges."""

from itertools import count

from hypothesis import strategies as st

import npx
from autograd.testing import strategies as s
from npx.dispatch import is_emulating
from npx.kernels import layer_norm
from tests.cases.base import REAL, Call, array, case, edges, leading, packing, sample, size

BOUNDED = ("plain", "normal", "tiny", "zeros")  # products of larger numbers leave float32 few digits


def copy_bytes(x):
    """Return the bytes of the contiguous copy that an operation may make of a non-contiguous input."""
    return 0 if x.flags.c_contiguous else x.nbytes


def keys():
    """Draw a random key."""
    return st.builds(npx.Key, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@case
def operation_softmax(draw):
    shape = (*leading(draw), draw(size(min_side=0)))
    mask = draw(s.masks(shape) | s.masks(shape[-1:]) | s.masks((*shape[:-1], 1)))
    return Call((draw(s.arrays(shape, s.STYLES)), mask))


def norm_saved_bytes(x, gamma, beta):
    """Return the bytes that a norm saves beyond its output: a deviation per row, and the columns that gamma hides.

    The reference, which runs in float64 on a GPU and where CUDA kernels are emulated, saves all columns.
    """
    if is_emulating() or npx.device() == "cuda":
        return x.nbytes + x[..., :1].nbytes
    hidden = layer_norm.lossy_columns(gamma, beta)
    return x[..., :1].nbytes * (1 + len(hidden)) + hidden.nbytes


def norm_inputs(draw, dtype="float64"):
    """Draw x (..., D), gamma (D,) and beta (D,)."""
    d = draw(size(4))
    shape = (*leading(draw), d)
    styles = ("plain", "normal", "large", "tiny", "zeros")
    return [draw(s.arrays(z, styles, dtype)) for z in (shape, (d,), (d,))]


@case
def operation_layer_norm(draw):
    x, gamma, beta = norm_inputs(draw)
    eps = draw(st.sampled_from([0.1, 1e-2]))
    return Call((x, gamma, beta), {"eps": eps}, saved=norm_saved_bytes(x, gamma, beta))


@case
def operation_dropout(draw):
    x = draw(s.arrays((*leading(draw), draw(size(9))), s.STYLES))
    return Call((x, draw(st.builds(npx.DropoutSpec, st.sampled_from([0.3, 0.5, 0.9]), keys()))), saved=x.size)


@case
def operation_dropout_residual_norm(draw):
    x, gamma, beta = norm_inputs(draw)
    residual = draw(s.arrays(x.shape, ("plain", "normal", "large")))
    saved = norm_saved_bytes(x, gamma, beta) + x.size
    return Call((x, residual, gamma, beta), {**dropout_options(draw), "eps": 0.1}, saved)


@case
def operation_linear(draw):
    n_in, n_out = draw(size()), draw(size())
    x, w = draw(s.arrays((*leading(draw), n_in))), draw(s.arrays((n_in, n_out)))
    b = draw(st.none() | s.arrays((n_out,)))
    return Call((x, w, b), {"activation": draw(st.sampled_from([None, "relu"]))}, saved=copy_bytes(x))


@case
def operation_embedding(draw):
    rows = draw(size(4))
    table = draw(s.arrays((rows, draw(size())), s.STYLES))
    ids = draw(s.indices(rows))
    options = {"scale": draw(st.sampled_from([2.5, 1.0]))}
    if ids.ndim and draw(st.booleans()):
        options |= {"encodings": draw(s.arrays((ids.shape[-1], table.shape[1]), BOUNDED)), **dropout_options(draw)}
    return Call((table, ids), options, saved=ids.size * table.shape[1])


def attention_sizes(draw, min_side=1):
    """Draw B, T, S, H, d_k, d_v and an AttentionSpec."""
    b = draw(size(2, min_side))
    t = draw(size(3, min_side))
    source = draw(size(3, min_side))
    h, d_k, d_v = draw(size(2)), draw(st.sampled_from([1, 2, 2, 3])), draw(size(2))
    return b, t, source, h, d_k, d_v, attention_spec(draw, b, h, t, source, d_k)


def attention_spec(draw, b, h, t, source, d_k):
    """Draw any of causal, kv_lengths, rotary positions, and a bias from a mask, from numbers, or from both."""
    bias = npx.mask_bias(draw(st.sampled_from([(b, 1, 1, source), (t, source), (b, h, t, source)]).flatmap(s.masks)))
    if draw(st.sampled_from([False, False, True])):
        numbers = draw(s.arrays((h, t, source), BOUNDED))
        bias = numbers if bias is None else bias + numbers
    lengths = draw(st.none() | st.none() | st.lists(st.integers(0, source + 1), min_size=b, max_size=b))
    return npx.AttentionSpec(
        causal=draw(st.booleans()),
        kv_lengths=None if lengths is None else npx.asarray(lengths, "int64"),
        constant_bias=bias,
        rotary_base=draw(st.sampled_from([None, 10.0, 10.0])) if d_k % 2 == 0 else None,
    )


def rotated_bytes(spec, *arrays):
    """Return the bytes of the queries and keys that rotary positions rotate."""
    return 0 if spec.rotary_base is None else sum(x.nbytes for x in arrays)


def dropout_options(draw):
    """Draw the `drop` option."""
    rate, key = draw(st.sampled_from([0.3, 0.5])), draw(st.none() | keys())
    return {"drop": key and npx.DropoutSpec(rate, key)}


@case
def operation_attention(draw):
    b, t, source, h, d_k, d_v, spec = attention_sizes(draw)
    shapes = (b, t, h, d_k), (b, source, h, d_k), (b, source, h, d_v)
    q, k, v = (draw(s.arrays(shape, BOUNDED)) for shape in shapes)
    return Call((q, k, v, spec), dropout_options(draw), saved=9 * b * h * t * source + rotated_bytes(spec, q, k))


@case
def operation_self_attention(draw):
    b, t, _, h, d_k, d_v, _ = attention_sizes(draw)
    spec = attention_spec(draw, b, h, t, t, d_k)
    qkv = draw(s.arrays((b, t, h * (2 * d_k + d_v)), BOUNDED))
    return Call((qkv, h, d_k, spec), dropout_options(draw), saved=9 * b * h * t * t + rotated_bytes(spec, qkv))


@case
def operation_cross_attention(draw):
    b, t, source, h, d_k, d_v, spec = attention_sizes(draw)
    queries, pairs = (draw(s.arrays(z, BOUNDED)) for z in ((b, t, h * d_k), (b, source, h * (d_k + d_v))))
    saved = 9 * b * h * t * source + rotated_bytes(spec, queries, pairs)
    return Call((queries, pairs, h, d_k, spec), dropout_options(draw), saved)


def smoothing_options(draw):
    """Draw the `smoothing` option."""
    classes = draw(st.sampled_from(["all", "others", "others_without_pad"]))
    label_smoothing = draw(st.sampled_from([0.2, 0.0]))
    pad_id = draw(st.sampled_from([0, 2, -1, 99]))  # the last two are no classes
    return {"smoothing": npx.LabelSmoothing(label_smoothing, classes, pad_id)}


@case
def operation_cross_entropy(draw):
    shape = leading(draw)
    classes = draw(size(5, min_side=4))
    logits = draw(s.arrays((*shape, classes), s.STYLES))
    return Call((logits, draw(s.indices(classes, shape))), smoothing_options(draw), saved=logits.nbytes)


@case
def operation_linear_cross_entropy(draw):
    shape = leading(draw)
    classes = draw(size(5, min_side=4))
    d = draw(size(2))
    x = draw(s.arrays((*shape, d), BOUNDED))
    w = draw(s.arrays((classes, d), BOUNDED))
    return Call((x, w, draw(s.indices(classes, shape))), smoothing_options(draw), saved=x.nbytes + w.nbytes)


# Edges


def drop_edges(*shape):
    """Yield dropout at rates 0.5, 0, 0.999 and 1, with keys that keep at least one entry below rate 1."""
    for rate in (0.5, 0.0, 0.999, 1.0):
        candidates = (npx.DropoutSpec(rate, npx.Key(seed, 0, 0)) for seed in count())
        yield next(drop for drop in candidates if rate == 1 or drop.keep_mask(shape).any())


@edges("operation softmax", REAL)
def softmax_edges():
    x = sample(2, 3, 4)
    rows = npx.asarray([[True, False, True, True], [False] * 4, [True, False, False, False]])
    broadcast = rows[0], rows[1], rows[:, :1], rows[None], npx.asarray(False), npx.ones((2, 1, 4), "bool")
    for mask in (None, rows, *broadcast):
        yield Call((x, mask))
    yield Call((array((0.5,), (-3.0,)),))  # one column
    yield Call((array((-800.0, 800.0, 0.0), (800.0, 800.0, -800.0)),))
    yield Call((array(1e4, 1e4 - 1, 1e4 + 0.5),))
    yield Call((array(1e-6, -1e-6, 2e-6),))


def norm_edges():
    """Yield rows (..., D) and eps: ordinary rows, and rows of small, zero or relatively small variance."""
    yield sample(2, 3, 4), 1e-6
    yield sample(3), 1e-2
    yield sample(2, 1), 1e-2  # one feature
    yield array((2.0, 2.0, 2.0), (0.0, 0.0, 0.0)), 1e-2
    yield 1e4 + sample(2, 4), 1e-6
    yield 1e-3 * sample(2, 4), 1e-6
    yield 1e4 * sample(2, 4), 1e-6
    yield sample(0, 3), 1e-2


def affine_edges(d):
    """Return gamma and beta (D,); the last entry of gamma is 0."""
    gamma = sample(d, seed=1)
    gamma[-1] = 0
    return gamma, sample(d, seed=2)


@edges("operation layer_norm", REAL)
def layer_norm_edges():
    for x, eps in norm_edges():
        affine = affine_edges(x.shape[-1])
        yield Call((x, *affine), {"eps": eps}, norm_saved_bytes(x, *affine))


@edges("operation dropout", REAL)
def dropout_edges():
    x = sample(3, 4)
    for drop in (*drop_edges(3, 4), None):
        yield Call((x, drop), saved=x.size)


@edges("operation dropout_residual_norm", REAL)
def dropout_residual_norm_edges():
    def call(x, eps, drop):
        residual = sample(*x.shape, seed=3)
        affine = affine_edges(x.shape[-1])
        return Call((x, residual, *affine), {"drop": drop, "eps": eps}, norm_saved_bytes(x, *affine) + x.size)

    for drop in drop_edges(3, 4):
        yield call(sample(3, 4), 1e-6, drop)
    for x, eps in norm_edges():
        yield call(x, eps, None)


@edges("operation linear")
def linear_edges():
    for activation in (None, "relu"):
        for bias in (True, False):
            for shape, n_out in (((2, 2, 3), 2), ((3,), 4), ((2, 2), 2), ((2, 1), 1), ((0, 3), 2)):
                b = sample(n_out, seed=2) if bias else None
                yield Call((sample(*shape), sample(shape[-1], n_out, seed=1), b), {"activation": activation})
    yield Call(
        (npx.zeros((2, 2), "float64"), sample(2, 2), npx.zeros(2, "float64")), {"activation": "relu"}
    )  # all at 0
    for scale in (1e-4, 1e3):
        yield Call((scale * sample(2, 3), sample(3, 2, seed=1), sample(2, seed=2)))


@edges("operation embedding")
def embedding_edges():
    for ids in ([[1, 1, 0], [3, 1, 3]], [2, 2], 1, [], [[0]], [3, 0, 1, 2]):
        for scale in (2.5, 1.0):
            yield Call((sample(5, 3), npx.asarray(ids, "int64")), {"scale": scale})
    yield Call((sample(1, 1), npx.asarray([0, 0], "int32")))
    ids = npx.asarray([[1, 0], [3, 1], [1, 1]], "int64")
    yield Call((sample(5, 3), ids), {"encodings": sample(2, 3, seed=1)})
    for drop in drop_edges(3, 2, 3):
        yield Call((sample(5, 3), ids), {"scale": 2.5, "encodings": sample(2, 3, seed=1), "drop": drop}, saved=18)


def spec_edges(b, h, t, source):
    """Yield an AttentionSpec for each field separately, at its extremes, and for all fields together."""
    bias = npx.mask_bias(npx.asarray([[i != j % 2 and i > 0 for j in range(source)] for i in range(t)]))
    yield npx.AttentionSpec()
    yield npx.AttentionSpec(causal=True)
    yield from (npx.AttentionSpec(kv_lengths=npx.asarray(n)) for n in ([0, source], [1, source + 2]))
    yield npx.AttentionSpec(constant_bias=bias)  # the first query attends to nothing
    yield npx.AttentionSpec(constant_bias=sample(b, h, t, source))
    yield npx.AttentionSpec(constant_bias=sample(h, 1, source))
    yield npx.AttentionSpec(rotary_base=10.0)
    yield npx.AttentionSpec(True, npx.asarray([source - 1, source]), sample(1, source), 10.0)


SIZES = (2, 3, 4, 2, 4, 3), (2, 4, 2, 1, 2, 1), (2, 1, 3, 2, 2, 2)  # B, T, S, H, d_k, d_v


def merged_directions(i, h):
    """Return the directions for edge i of an operation on h merged heads; None compares every entry.

    The operation calls `attention`, whose entries are all compared, so with several heads the first edge suffices.
    """
    return None if h == 1 or i == 0 else 3


def attention_edges(*all_sizes):
    """Yield sizes, AttentionSpec and dropout."""
    for sizes in all_sizes:
        b, t, source, h, *_ = sizes
        for spec in spec_edges(b, h, t, source):
            yield *sizes, spec, None
    for drop in drop_edges(b, h, t, source):
        yield *sizes, npx.AttentionSpec(causal=True, rotary_base=10.0), drop


PACKED_BYTES = 4000
PACKED = (0, 2), (1, 3), (3, 1), (1, 1), (2, 0)  # lengths of the queries and keys of each sentence


def packed_edges(pairs):
    """Yield numbers of queries and keys, and the specs of packed sentences with the lengths `pairs`."""
    queries, keys = (packing(*lengths) for lengths in zip(*pairs, strict=True))
    for causal, base in ((False, None), (True, 10.0)):
        packings = (queries, queries) if all(a == b for a, b in pairs) else (queries, keys)
        yield len(queries.flat_index), len(keys.flat_index), npx.AttentionSpec(causal, None, None, base, *packings)


@edges("operation attention", REAL)
def plain_attention_edges():
    for b, t, source, h, d_k, d_v, spec, drop in attention_edges(*SIZES):
        q = sample(b, t, h, d_k)
        k = sample(b, source, h, d_k, seed=1)
        v = sample(b, source, h, d_v, seed=2)
        yield Call((q, k, v, spec), {"drop": drop}, 9 * b * h * t * source + rotated_bytes(spec, q, k))
    for t, source, spec in packed_edges(PACKED):
        q = sample(t, 2, 2)
        k = sample(source, 2, 2, seed=1)
        v = sample(source, 2, 1, seed=2)
        yield Call((q, k, v, spec), saved=PACKED_BYTES)
    for bias, packed in ((sample(2, 1, 4), False), (sample(2, 2, 3, 4), False), (sample(2, 3, 3), True)):
        if packed:
            t, source, spec = next(packed_edges(PACKED))
            q = sample(t, 2, 2)
            k = sample(source, 1, 2, seed=1)
            v = sample(source, 1, 1, seed=2)
        else:
            spec = npx.AttentionSpec(causal=True, constant_bias=sample(3, 4, seed=3))
            q = sample(2, 3, 2, 2)
            k = sample(2, 4, 1, 2, seed=1)
            v = sample(2, 4, 1, 1, seed=2)
        yield Call((q, k, v, spec, None, bias), saved=PACKED_BYTES)
    for large in (6.0, 30.0):  # weights near 0 and 1
        q = large * array((1.0, 0.0), (0.0, -1.0)).reshape(1, 2, 1, 2)
        yield Call((q, sample(1, 3, 1, 2), sample(1, 3, 1, 2, seed=1)), saved=9 * 6)


@edges("operation self_attention", REAL)
def self_attention_edges():
    edges = attention_edges((2, 3, 3, 2, 4, 3), (2, 2, 2, 1, 2, 1))
    for i, (b, t, _, h, d_k, d_v, spec, drop) in enumerate(edges):
        qkv = sample(b, t, h * (2 * d_k + d_v))
        directions = merged_directions(i, h)
        saved = 9 * b * h * t * t + rotated_bytes(spec, qkv)
        yield Call((qkv, h, d_k, spec), {"drop": drop}, saved, n_directions=directions)
    yield Call((sample(1, 1, 3), 1, 1, npx.AttentionSpec()), saved=PACKED_BYTES)  # only the values are rounded
    for t, _, spec in packed_edges([(n, n) for n in (0, 1, 3, 1)]):
        yield Call((sample(t, 2 * (2 + 2 + 1)), 2, 2, spec), saved=PACKED_BYTES)
        yield Call((sample(t, 4 * 2 + 2 * (2 + 1)), 4, 2, spec), {"n_kv_heads": 2}, saved=PACKED_BYTES)


@edges("operation cross_attention", REAL)
def cross_attention_edges():
    for i, (b, t, source, h, d_k, d_v, spec, drop) in enumerate(attention_edges(*SIZES)):
        queries = sample(b, t, h * d_k)
        pairs = sample(b, source, h * (d_k + d_v), seed=1)
        saved = 9 * b * h * t * source + rotated_bytes(spec, queries, pairs)
        yield Call((queries, pairs, h, d_k, spec), {"drop": drop}, saved, n_directions=merged_directions(i, h))
    yield Call((sample(1, 1, 1), sample(1, 1, 2, seed=1), 1, 1, npx.AttentionSpec()), saved=PACKED_BYTES)
    for t, source, spec in packed_edges(PACKED):
        yield Call((sample(t, 4), sample(source, 2 * (2 + 1), seed=1), 2, 2, spec), saved=PACKED_BYTES)
        yield Call((sample(t, 4), sample(source, 2 + 1, seed=1), 2, 2, spec), {"n_kv_heads": 1}, saved=PACKED_BYTES)


def smoothing_edges(classes):
    """Yield targets (R,) and label smoothing: padding everywhere, nowhere, first or last; each set of classes."""
    last = classes - 1
    for targets in ([1, 2, 0], [0, 0, 0], [last, last, 1], [1], [0, last]):
        for smoothing_classes in npx.SMOOTHING_CLASSES:
            yield npx.asarray(targets), npx.LabelSmoothing(0.2, smoothing_classes)
    for pad in (2, last, -1, classes):
        yield npx.asarray([0, last, 1, 2]), npx.LabelSmoothing(0.1, "others_without_pad", pad)
    yield npx.asarray([1, 0]), npx.LabelSmoothing(0.0)
    yield npx.asarray([1, 0]), npx.LabelSmoothing(0.9)


@edges("operation cross_entropy", REAL)
def cross_entropy_edges():
    for classes in (4, 5):
        for targets, smoothing in smoothing_edges(classes):
            logits = sample(len(targets), classes)
            yield Call((logits, targets), {"smoothing": smoothing}, logits.nbytes)
    options = {"smoothing": npx.LabelSmoothing(0.1)}
    ends = array((800.0, -800.0, 0.0, 0.0), (2.0, 2.0, 2.0, 2.0))
    for logits in (1e4 * sample(2, 4), 1e4 + sample(2, 4), ends, 1e-4 * sample(2, 4)):
        yield Call((logits, npx.asarray([1, 3])), options, logits.nbytes)
    yield Call((sample(2, 2, 4), npx.asarray([[1, 0], [3, 1]])), options, 2 * 2 * 4 * 8)
    yield Call((sample(4), npx.asarray(1)), options, 4 * 8)


@edges("operation linear_cross_entropy", REAL)
def linear_cross_entropy_edges():
    for targets, smoothing in smoothing_edges(5):
        x, w = sample(len(targets), 3), sample(5, 3, seed=1)
        yield Call((x, w, targets), {"smoothing": smoothing}, x.nbytes + w.nbytes)
    for scale in (30.0, 1e-3):
        x = scale * sample(2, 2, 3)
        w = sample(4, 3, seed=1)
        yield Call((x, w, npx.asarray([[1, 0], [3, 1]])), {"smoothing": npx.LabelSmoothing(0.1)}, x.nbytes + w.nbytes)
