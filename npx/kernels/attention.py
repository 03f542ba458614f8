"""Scaled dot-product attention of all heads at once (paper sections 3.2.1 and 3.2.2).

Arrays keep the order of the projections they come from, (batch, position, head, size) or, packed, (row, head, size), so
that splitting into heads and joining them again moves no data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, array_module
from npx.cpu.row_blocks import BLOCK_BYTES, INLINE_BYTES, block, parallel_ranges
from npx.cuda.launch import contiguous, launch
from npx.kernels.attention_spec import AttentionSpec, additive, positions, rotated
from npx.kernels.dropout import Drop, Dropped, draw, dropout, dropout_grad
from npx.kernels.packing import Packing, pack_padded, pad_packed
from npx.kernels.softmax import softmax, softmax_grad, softmax_grad_in_place, softmax_in_place, tame_softmax_in_place
from npx.precision import accumulation_dtype
from npx.registry import Output, kernel

Arrays = tuple[Array, ...]  # of queries, keys and values, in most places


@kernel
def attention(q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None) -> Output:
    """y = dropout(p) v with p = softmax(q k^T / sqrt(d_k)) for each sentence and head.

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); `spec`: which keys count, and more
    (npx/kernels/attention_spec.py).
    y (B, T, H, d_v); a position that may attend to nothing gets zeros. What `spec` says is packed has one axis for
    both B and T or S. Saved: q and k, turned by their positions, v, p (B, H, T, S), and what was dropped.
    """
    q, k = turned(q, k, spec)
    p = probabilities(q, k, spec)
    kept, dropped = dropout.reference(p, drop)
    y = heads_first(kept @ heads_first(pad_packed(v, spec.kv_packing)))  # (B, T, H, d_v)
    y = y.astype(v.dtype, copy=False)  # NumPy's product of bfloat16 is float32
    return pack_padded(y, spec.q_packing), (q, k, v, p, dropped, spec)


@attention.gradient
def attention_grad(
    g: Array, q: Array, k: Array, v: Array, p: Array, dropped: Dropped, spec: AttentionSpec, out: Arrays | None = None
) -> Arrays:
    """Gradients (gq, gk, gv) of `attention`, written into the three arrays `out` if given.

    With a = dropout(p): gv = a^T g and ga = g v^T; gs = softmax_grad of ga; gq = gs k / sqrt(d_k),
    gk = gs^T q / sqrt(d_k), both turned back. g (B, T, H, d_v).
    """
    gh, qh = (heads_first(pad_packed(x, spec.q_packing)) for x in (g, q))
    kh, vh = (heads_first(pad_packed(x, spec.kv_packing)) for x in (k, v))
    ga = gh @ vh.swapaxes(-1, -2)  # (B, H, T, S)
    a, gp = dropout_grad.reference(p, *dropped), dropout_grad.reference(ga, *dropped)
    gs = softmax_grad.reference(gp, p) * q.shape[-1] ** -0.5
    gq, gk, gv = heads_first(gs @ kh), heads_first(gs.swapaxes(-1, -2) @ qh), heads_first(a.swapaxes(-1, -2) @ gh)
    gq, gk, gv = pack_padded(gq, spec.q_packing), pack_padded(gk, spec.kv_packing), pack_padded(gv, spec.kv_packing)
    turn_back(gq, gk, spec)
    return written(out, tuple(x.astype(g.dtype, copy=False) for x in (gq, gk, gv)))


def probabilities(q: Array, k: Array, spec: AttentionSpec) -> Array:
    """p (B, H, T, S) of q (B, T, H, d_k) and k (B, S, H, d_k), which are turned already."""
    added = additive(spec, q, k)
    q, k = heads_first(pad_packed(q, spec.q_packing)), heads_first(pad_packed(k, spec.kv_packing))
    z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5  # (B, H, T, S)
    return softmax.reference(z if added is None else z + added)[0]


def attention_weights(q: Array, k: Array, spec: AttentionSpec = AttentionSpec()) -> Array:
    """The weights p (B, H, T, S) of an attention, in float32 at least: what `attention` multiplies values with."""
    dtype = accumulation_dtype(q.dtype)
    return probabilities(*turned(q.astype(dtype, copy=False), k.astype(dtype, copy=False), spec), spec)


def turned(q: Array, k: Array, spec: AttentionSpec) -> tuple[Array, Array]:
    """q and k by their positions."""
    if spec.rotary_base is None:
        return q, k
    of_q, of_k = positions(spec, q, k)
    return rotated(q, of_q, spec.rotary_base), rotated(k, of_k, spec.rotary_base)


def turn_back(gq: Array, gk: Array, spec: AttentionSpec) -> None:
    """The gradients of what `turned` gives into those of q and k, in place."""
    if spec.rotary_base is not None:
        of_q, of_k = positions(spec, gq, gk)
        gq[...] = rotated(gq, of_q, spec.rotary_base, back=True)
        gk[...] = rotated(gk, of_k, spec.rotary_base, back=True)


def heads_first(x: Array) -> Array:
    """(B, T, H, D) as a view (B, H, T, D), and back."""
    return x.swapaxes(1, 2)


def written(out: Arrays | None, values: Arrays) -> Arrays:
    """The values, in the arrays `out` where they are given and others."""
    for target, value in zip(out or (), values, strict=False):
        if target is not value:
            array_module(value).copyto(target, value.astype(target.dtype, copy=False))
    return out or values


class Side(NamedTuple):
    """The queries, or the keys and values, of a few sentences: their rows, and how these are packed."""

    rows: slice
    packing: Packing | None

    def of(self, x: Array) -> Array:
        """Those of x as (b, t, H, d)."""
        return pad_packed(x[self.rows], self.packing)

    def room(self, x: Array) -> Array:
        """An array (b, t, H, d) to write them in: x itself, unless zeros stand between its sentences."""
        if self.packing and not self.packing.is_rectangular:
            return np.empty((*self.packing.shape, *x.shape[1:]), x.dtype)
        return self.of(x)

    def put(self, values: Array, x: Array) -> None:
        """Move to x what was written in its `room`."""
        if self.packing and not self.packing.is_rectangular:
            x[self.rows] = pack_padded(values, self.packing)


class Block(NamedTuple):
    """Sentences i to before j."""

    i: int
    j: int
    queries: Side
    keys: Side

    def part(self, x: Array, length: int, source: int) -> Array:
        """Their part of an array (B, H, T, S) as (b, H, t, s), t and s their longest; an axis of x may be 1."""
        return x[self.i : self.j, :, :length, :source]

    def room(self, p: Array, length: int, source: int) -> Array:
        """The memory of their part of p as a whole array (b, H, t, s)."""
        sizes = self.j - self.i, p.shape[1], length, source
        return p[self.i : self.j].reshape(-1)[: int(np.prod(sizes))].reshape(sizes)


def blocks(spec: AttentionSpec, batch: int, row_bytes: int) -> list[Block]:
    """A few sentences at a time, each with `row_bytes` bytes of scores."""
    step = block(max(1, BLOCK_BYTES // max(1, row_bytes)))

    def side(packing: Packing | None, i: int, j: int) -> Side:
        return Side(*packing.select(i, j)) if packing else Side(slice(i, j), None)

    ends = [(i, min(i + step, batch)) for i in range(0, batch, step)]
    return [Block(i, j, side(spec.q_packing, i, j), side(spec.kv_packing, i, j)) for i, j in ends]


def over(cut: list[Block], body: Callable[[Block], None], p: Array) -> None:
    """Run a body for each block, on all cores."""
    parallel_ranges(lambda i, j: body(cut[i]), len(cut), 1, inline=p.nbytes < INLINE_BYTES)


@attention.fast("numpy", "float32", "float64")
def attention_numpy(
    q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None
) -> Output:
    """A few sentences at a time, their scores staying in cache from the first product to the second."""
    (batch, length, source), (heads, d_k) = spec.sizes(q, k), q.shape[-2:]
    p = np.empty((batch, heads, length, source), q.dtype)
    y = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    keep, keep_scale = (drop.keep(p.shape), drop.scale) if drop else (None, 1.0)
    bias, scale = additive(spec, q, k), d_k**-0.5
    q, k = turned(q, k, spec)
    cut = blocks(spec, batch, p[:1].nbytes)

    def body(own: Block) -> None:
        qb, kb, vb, yb = own.queries.of(q), own.keys.of(k), own.keys.of(v), own.queries.room(y)
        sizes = qb.shape[1], kb.shape[1]
        rows = own.room(p, *sizes)

        def form_scores() -> None:
            np.matmul(heads_first(qb), heads_first(kb).swapaxes(-1, -2), out=rows)
            np.multiply(rows, scale, out=rows)
            if bias is not None:
                np.add(rows, own.part(bias, *sizes), out=rows)

        form_scores()
        if not tame_softmax_in_place(rows):
            form_scores()
            softmax_in_place(rows)
        kept = rows if keep is None else rows * keep_scale * own.part(keep, *sizes)
        np.matmul(kept, heads_first(vb), out=heads_first(yb))
        own.queries.put(yb, y)

    over(cut, body, p)
    return y, (q, k, v, p, cut, (drop, keep), spec)


@attention_grad.fast("numpy", "float32", "float64")
def attention_grad_numpy(
    g: Array, q: Array, k: Array, v: Array, p: Array, cut: list[Block], dropped: Dropped, spec: AttentionSpec,
    out: Arrays | None = None,
) -> Arrays:  # fmt: skip
    """A few sentences at a time."""
    gq, gk, gv = out or (np.empty(q.shape, g.dtype), np.empty(k.shape, g.dtype), np.empty(v.shape, g.dtype))
    (drop, keep), scale = dropped, q.shape[-1] ** -0.5

    def body(own: Block) -> None:
        gb, qb, kb, vb = own.queries.of(g), own.queries.of(q), own.keys.of(k), own.keys.of(v)
        gqb, gkb, gvb = own.queries.room(gq), own.keys.room(gk), own.keys.room(gv)
        sizes = qb.shape[1], kb.shape[1]
        gh, qh, kh, vh = map(heads_first, (gb, qb, kb, vb))
        gs, a = gh @ vh.swapaxes(-1, -2), own.room(p, *sizes)  # (b, H, t, s)
        weights = a
        if drop and keep is not None:
            dropped = drop.scale * own.part(keep, *sizes).astype(g.dtype)
            gs *= dropped
            a = a * dropped
        np.matmul(a.swapaxes(-1, -2), gh, out=heads_first(gvb))
        softmax_grad_in_place(gs, weights)
        gs *= scale
        np.matmul(gs, kh, out=heads_first(gqb))
        np.matmul(gs.swapaxes(-1, -2), qh, out=heads_first(gkb))
        own.queries.put(gqb, gq)
        own.keys.put(gkb, gk)
        own.keys.put(gvb, gv)

    over(cut, body, p)
    turn_back(gq, gk, spec)
    return gq, gk, gv


# On a GPU: attention.cu

LARGEST_HEAD = 128  # of attention.cu; where a head is larger, the reference computes, in float32
SHARED_BYTES = 48 << 10  # shared memory that a block may have on every GPU


class InFloat32(NamedTuple):
    """What the reference saved for a head larger than attention.cu takes."""

    values: tuple[Any, ...]


@attention.fast("cupy", "float32", "float16", "bfloat16")
def attention_cuda(
    q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None
) -> Output:
    """Keys and values pass through shared memory; scores and probabilities stay in registers.

    The gradient forms the probabilities again. Saved: q, k, v as they were read, the log-sum-exp (B, H, T), y, and how
    the dropout is drawn.
    """
    xp = array_module(q)
    (batch, length, _), (heads, d_k), d_v = spec.sizes(q, k), q.shape[-2:], v.shape[-1]
    if max(d_k, d_v) > LARGEST_HEAD:
        y, saved = attention.reference(*(x.astype(np.float32) for x in (q, k, v)), spec, drop)
        return y.astype(q.dtype, copy=False), InFloat32(saved)
    y, lse = xp.empty((*q.shape[:-1], d_v), q.dtype), xp.empty((batch, heads, length), np.float32)
    inputs = tuple(plain_rows(x) for x in (*turned(q, k, spec), v))
    launch_attention("attention_forward", inputs, (), (y,), lse, spec, drop)
    return y, (*inputs, lse, y, spec, drop)


@attention_grad.fast("cupy", "float32", "float16", "bfloat16")
def attention_grad_cuda(g: Array, *saved: Any, out: Arrays | None = None) -> Arrays:
    """A block for each tile of positions: gq of its queries, then gk and gv of its keys. No sum depends on an order.

    A sentence that fits one tile, the usual one, has its scores formed once for all three.
    """
    if isinstance(saved[0], InFloat32):
        gq, gk, gv = attention_grad.reference(g.astype(np.float32), *saved[0].values)
        return written(out, (gq, gk, gv)) if out else tuple(x.astype(g.dtype, copy=False) for x in (gq, gk, gv))
    xp = array_module(g)
    *qkv, lse, y, spec, drop = saved
    inputs = tuple(qkv)
    g, dtype = contiguous(g), y.dtype
    grads = tuple(
        x if x is not None and has_plain_rows(x) and x.dtype == dtype else xp.empty(like.shape, dtype)
        for x, like in zip(out or (None,) * 3, inputs, strict=True)
    )
    launch_attention("attention_backward", inputs, grads, (g, y), lse, spec, drop)
    turn_back(grads[0], grads[1], spec)
    return written(out, grads)


def has_plain_rows(x: Array) -> bool:
    """Whether the values of the last axis are neighbours."""
    return x.strides[-1] == x.itemsize


def plain_rows(x: Array) -> Array:
    """x, copied unless the values of its last axis are neighbours."""
    return x if has_plain_rows(x) else array_module(x).ascontiguousarray(x)


def launch_attention(
    kernel: str, inputs: Arrays, grads: Arrays, dense: Arrays, lse: Array, spec: AttentionSpec, drop: Drop | None
) -> None:
    """Start a kernel of attention.cu over tiles of the queries, or, for the gradients, of the longer of both sides.

    inputs: q, k, v; grads: theirs, or none, both of any strides; dense: y, or g and y, contiguous.
    """
    (batch, queries, keys), size = spec.sizes(*inputs[:2]), dense[0].itemsize
    (heads, d_k), d_v = inputs[0].shape[-2:], inputs[2].shape[-1]
    longest, dk, dv = max(queries, keys), -(-d_k // 16) * 16, -(-d_v // 16) * 16
    length, tile = longest if grads else queries, tile_size(longest, 2 * size * (dk + dv))
    views = [*inputs, *grads]
    strides = [np.int64(stride // size) for x in views for stride in (0, *x.strides[:-1])[-3:]]
    starts = [packing and packing.starts for packing in (spec.q_packing, spec.kv_packing)]
    lengths, bias, steps = spec.kv_lengths, spec.bias, [0, 0, 0, 0]
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
        (*dense[:-1], *inputs, dense[-1], lse, *grads, *starts, lengths, bias, *strides, *map(np.int64, steps),
         *map(np.int32, (spec.causal, heads, queries, keys, d_k, d_v)), *draw(drop)),
        T=dense[0].dtype,
        DK=dk,
        DV=dv,
        TILE=tile,
        WHOLE=int(longest <= tile <= min(dk, dv)),
        strided=True,
        VEC=access_bytes(*views, *dense) // size,
    )  # fmt: skip


def tile_size(length: int, row_bytes: int) -> int:
    """Positions in a tile of attention.cu: a multiple of 16, no more than 64 or needed, and its memory suffices.

    row_bytes: of one position in the gradient's four tiles, in which a row has 16 bytes more. Dropout and sums take 18.
    """
    room = SHARED_BYTES // (row_bytes + 4 * 16 + 18) // 16 * 16
    return max(16, min(64, room, -(-length // 16) * 16))


def access_bytes(*arrays: Array) -> int:
    """Bytes that a thread can access at once: the power of two, up to 16, that divides where rows start and end."""
    bits = 16
    for x in arrays:
        bits |= x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr
        bits |= x.shape[-1] * x.itemsize
        for stride in x.strides[:-1]:
            bits |= stride
    return bits & -bits
