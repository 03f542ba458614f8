"""Scaled dot-product attention of all heads at once (paper sections 3.2.1 and 3.2.2).

Arrays keep the order of the projections they come from, (batch, position, head, size), so that splitting into heads
and joining them again moves no data.
"""

from typing import Any

import numpy as np

from npx.cuda import Kept, contiguous, launch
from npx.device import array_module
from npx.kernels.dropout import dropout, dropout_grad, keep_mask, keep_scale, threshold
from npx.kernels.softmax import softmax, softmax_grad, softmax_grad_in_place, softmax_in_place
from npx.parallel import map_blocks
from npx.precision import wide
from npx.random import Key
from npx.registry import kernel
from npx.scores import Scores, additive, rotated


@kernel
def attention(
    q: Any, k: Any, v: Any, scores: Scores = Scores(), rate: float = 0.0, key: Key | None = None
) -> tuple[Any, Any, Any]:
    """out = dropout(p) v with p = softmax(q k^T / sqrt(d_k)) for each sentence and head.

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); `scores`: which keys count, and more (npx/scores.py); `key`
    None: no dropout. Returns out (B, T, H, d_v) and what the gradient needs: p (B, H, T, S), keep. A position that may
    attend to nothing gets zeros.
    """
    p = probabilities(q, k, scores)
    kept, keep = (p, None) if key is None else dropout.reference(p, rate, key)
    return heads_first(kept @ heads_first(v)), p, keep  # (B, T, H, d_v)


def probabilities(q: Any, k: Any, scores: Scores) -> Any:
    """p (B, H, T, S) of q (B, T, H, d_k) and k (B, S, H, d_k)."""
    q, k = turned(q, k, scores)
    z = heads_first(q) @ heads_first(k).swapaxes(-1, -2) * q.shape[-1] ** -0.5  # (B, H, T, S)
    added = additive(scores, q, k)
    return softmax.reference(z if added is None else z + added)


def attention_weights(q: Any, k: Any, scores: Scores = Scores()) -> Any:
    """The weights p (B, H, T, S) of an attention, in float32 at least: what `attention` multiplies values with."""
    dtype = wide(q.dtype)
    return probabilities(q.astype(dtype, copy=False), k.astype(dtype, copy=False), scores)


def turned(q: Any, k: Any, scores: Scores) -> tuple[Any, Any]:
    """q and k by their positions."""
    return rotated(q, k.shape[1] - q.shape[1], scores.rotary), rotated(k, 0, scores.rotary)


def turn_back(gq: Any, gk: Any, scores: Scores) -> None:
    """The gradients of what `turned` gives into those of q and k, in place."""
    if scores.rotary is not None:
        gq[...] = rotated(gq, gk.shape[1] - gq.shape[1], scores.rotary, back=True)
        gk[...] = rotated(gk, 0, scores.rotary, back=True)


@kernel
def attention_grad(
    g: Any,
    q: Any,
    k: Any,
    v: Any,
    p: Any,
    keep: Any = None,
    rate: float = 0.0,
    out: tuple[Any, Any, Any] | None = None,
    scores: Scores = Scores(),
) -> tuple[Any, Any, Any]:
    """Gradients (gq, gk, gv) of `attention`, written into the three arrays `out` if given.

    With a = dropout(p): gv = a^T g and ga = g v^T; gs = softmax_grad of ga through the mask; gq = gs k / sqrt(d_k),
    gk = gs^T q / sqrt(d_k). g (B, T, H, d_v), the others as in `attention`.
    """
    xp = array_module(g)
    q, k = turned(q, k, scores)
    gh, qh, kh, vh = heads_first(g), heads_first(q), heads_first(k), heads_first(v)
    ga = gh @ vh.swapaxes(-1, -2)  # (B, H, T, S)
    a, gp = (p, ga) if keep is None else (dropout_grad.reference(p, rate, keep), dropout_grad.reference(ga, rate, keep))
    gs = softmax_grad.reference(gp, p) * q.shape[-1] ** -0.5
    grads = heads_first(gs @ kh), heads_first(gs.swapaxes(-1, -2) @ qh), heads_first(a.swapaxes(-1, -2) @ gh)
    turn_back(*grads[:2], scores)
    if out is None:
        return grads
    for target, value in zip(out, grads, strict=True):
        xp.copyto(target, value)
    return out


def heads_first(x: Any) -> Any:
    """(B, T, H, D) as a view (B, H, T, D), and back."""
    return x.swapaxes(1, 2)


@attention.fast("numpy", "float32", "float64")
def attention_numpy(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scores: Scores = Scores(),
    rate: float = 0.0,
    key: Key | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """A few sentences at a time, their scores staying in cache from the first product to the second."""
    (batch, length, heads, d_k), source, d_v = q.shape, k.shape[1], v.shape[3]
    p = np.empty((batch, heads, length, source), q.dtype)
    out = np.empty((batch, length, heads, d_v), q.dtype)
    keep = None if key is None else keep_mask(key, p.shape, rate)
    bias, scale = additive(scores, q, k), d_k**-0.5
    q, k = turned(q, k, scores)

    def body(i: int, j: int) -> None:
        rows = p[i:j]
        np.matmul(heads_first(q[i:j]), heads_first(k[i:j]).swapaxes(-1, -2), out=rows)
        rows *= scale
        if bias is not None:
            rows += bias[i:j]
        softmax_in_place(rows)
        kept = rows if keep is None else rows * keep_scale(rate) * keep[i:j]
        np.matmul(kept, heads_first(v[i:j]), out=heads_first(out[i:j]))

    map_blocks(body, batch, p[:1].nbytes)
    return out, p, keep


@attention_grad.fast("numpy", "float32", "float64")
def attention_grad_numpy(
    g: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    p: np.ndarray,
    keep: np.ndarray | None = None,
    rate: float = 0.0,
    out: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    scores: Scores = Scores(),
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A few sentences at a time."""
    q, k = turned(q, k, scores)
    gq, gk, gv = out or (np.empty(q.shape, g.dtype), np.empty(k.shape, g.dtype), np.empty(v.shape, g.dtype))
    scale = q.shape[-1] ** -0.5

    def body(i: int, j: int) -> None:
        gh, qh, kh, vh = (heads_first(x[i:j]) for x in (g, q, k, v))
        gs = gh @ vh.swapaxes(-1, -2)  # (b, H, T, S)
        a = p[i:j]
        if keep is not None:
            dropped = keep_scale(rate) * keep[i:j].astype(g.dtype)
            gs *= dropped
            a = a * dropped
        np.matmul(a.swapaxes(-1, -2), gh, out=heads_first(gv[i:j]))
        softmax_grad_in_place(gs, p[i:j])
        gs *= scale
        np.matmul(gs, kh, out=heads_first(gq[i:j]))
        np.matmul(gs.swapaxes(-1, -2), qh, out=heads_first(gk[i:j]))

    map_blocks(body, len(q), p[:1].nbytes)
    turn_back(gq, gk, scores)
    return gq, gk, gv


# On a GPU: attention.cu

LARGEST_HEAD = 128  # of attention.cu; where a head is larger, the reference computes, in float32
SHARED_BYTES = 48 << 10  # shared memory that a block may have on every GPU


class AttentionKept(Kept):
    """What the gradient forms the probabilities from: their log-sum-exp (B, H, T), the scores, y and the dropout."""

    def __init__(self, lse: Any, scores: Scores, y: Any, draw: tuple[Any, ...]) -> None:
        self.lse, self.scores, self.y, self.draw = lse, scores, y, draw


class DropoutKept(Kept):
    """Nothing: `AttentionKept` has what draws the dropout again."""


@attention.fast("cupy", "float32", "float16", "bfloat16")
def attention_cuda(
    q: Any, k: Any, v: Any, scores: Scores = Scores(), rate: float = 0.0, key: Key | None = None
) -> tuple[Any, Any, Any]:
    """Keys and values pass through shared memory; scores and probabilities stay in registers."""
    xp = array_module(q)
    (batch, length, heads, d_k), d_v = q.shape, v.shape[3]
    if max(d_k, d_v) > LARGEST_HEAD:
        y, p, keep = attention.reference(*(x.astype(np.float32) for x in (q, k, v)), scores, rate, key)
        return y.astype(q.dtype, copy=False), p, keep
    y, lse = xp.empty((batch, length, heads, d_v), q.dtype), xp.empty((batch, heads, length), np.float32)
    views = [plain_rows(x) for x in (*turned(q, k, scores), v)]
    draw = draw_arguments(rate, key)
    launch_attention("attention_forward", views, (), (y,), lse, scores, draw, length)
    return y, AttentionKept(lse, scores, y, draw), None if key is None else DropoutKept()


@attention_grad.fast("cupy", "float32", "float16", "bfloat16")
def attention_grad_cuda(
    g: Any,
    q: Any,
    k: Any,
    v: Any,
    p: Any,
    keep: Any = None,
    rate: float = 0.0,
    out: tuple[Any, Any, Any] | None = None,
    scores: Scores = Scores(),
) -> tuple[Any, Any, Any]:
    """A block for each tile of positions: gq of its queries, then gk and gv of its keys. No sum depends on an order."""
    xp = array_module(g)
    out = out or (xp.empty(q.shape, g.dtype), xp.empty(k.shape, g.dtype), xp.empty(v.shape, g.dtype))
    if isinstance(p, AttentionKept):
        g = xp.ascontiguousarray(g, q.dtype)
        grads = tuple(x if has_plain_rows(x) and x.dtype == q.dtype else xp.empty(x.shape, q.dtype) for x in out)
        views = [plain_rows(x) for x in (*turned(q, k, scores), v)]
        length = max(q.shape[1], k.shape[1])
        launch_attention("attention_backward", views, grads, (g, p.y), p.lse, scores, p.draw, length)
        turn_back(grads[0], grads[1], scores)
    else:
        wide_arrays = (x.astype(np.float32) for x in (g, q, k, v))
        grads = attention_grad.reference(*wide_arrays, p, keep, rate, scores=scores)
    for target, value in zip(out, grads, strict=True):
        if target is not value:
            xp.copyto(target, value.astype(target.dtype, copy=False))
    return out


def has_plain_rows(x: Any) -> bool:
    """Whether the values of the last axis are neighbours."""
    return x.strides[-1] == x.itemsize


def plain_rows(x: Any) -> Any:
    """x, copied unless the values of its last axis are neighbours."""
    return x if has_plain_rows(x) else array_module(x).ascontiguousarray(x)


def draw_arguments(rate: float, key: Key | None) -> tuple[Any, ...]:
    """Dropout as attention.cu takes it: seed, step, call, the words that drop, the scale of what is kept."""
    if key is None:
        return (*(np.uint64(0),) * 3, np.int32(0), np.float32(1))
    return (*(np.uint64(part) for part in key), np.int32(threshold(rate)), np.float32(keep_scale(rate)))


def launch_attention(
    kernel: str,
    inputs: list[Any],
    grads: tuple[Any, ...],
    dense: tuple[Any, ...],
    lse: Any,
    scores: Scores,
    draw: Any,
    length: int,
) -> None:
    """Start a kernel of attention.cu over tiles of `length` positions.

    inputs: q, k, v; grads: theirs, or none, both of any strides; dense: y, or g and y, contiguous.
    """
    (batch, queries, heads, d_k), (_, keys, _, d_v), size = inputs[0].shape, inputs[2].shape, dense[0].itemsize
    dk, dv = -(-d_k // 16) * 16, -(-d_v // 16) * 16
    tile = tile_size(max(queries, keys), 2 * size * (dk + dv))
    views = [*inputs, *grads]
    strides = [np.int64(stride // size) for x in views for stride in x.strides[:3]]
    lengths, bias, steps = scores.lengths, scores.bias, [0, 0, 0, 0]
    if lengths is not None:
        lengths = contiguous(lengths.astype(np.int64, copy=False))
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape).astype(np.float32, copy=False)
        steps = [0 if n == 1 else step // bias.itemsize for n, step in zip(bias.shape, bias.strides, strict=True)]
    launch(
        "attention.cu",
        kernel,
        -(-length // tile) * heads * batch,
        2 * tile,
        (*dense[:-1], *inputs, dense[-1], lse, *grads, lengths, bias, *strides, *map(np.int64, steps),
         *map(np.int32, (scores.causal, heads, queries, keys, d_k, d_v)), *draw),
        T=dense[0].dtype,
        DK=dk,
        DV=dv,
        TILE=tile,
        strided=True,
        VEC=access_bytes(*views, *dense) // size,
    )  # fmt: skip


def tile_size(length: int, row_bytes: int) -> int:
    """Positions in a tile of attention.cu: a multiple of 16, no more than 64 or needed, and its memory suffices.

    row_bytes: of one position in the gradient's four tiles, in which a row has 16 bytes more. Dropout and sums take 18.
    """
    room = SHARED_BYTES // (row_bytes + 4 * 16 + 18) // 16 * 16
    return max(16, min(64, room, -(-length // 16) * 16))


def access_bytes(*arrays: Any) -> int:
    """Bytes that a thread can access at once: the power of two, up to 16, that divides where rows start and end."""
    bits = 16
    for x in arrays:
        bits |= x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr
        bits |= x.shape[-1] * x.itemsize
        for stride in x.strides[:-1]:
            bits |= stride
    return bits & -bits
