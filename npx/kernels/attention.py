"""Scaled dot-product attention over all heads at once (paper sections 3.2.1 and 3.2.2).

Arrays keep the layout of the projections they come from, (batch, position, head, size), or (row, head, size) if packed,
so splitting into heads and merging them moves no data.
"""

from typing import Any, NamedTuple

import numpy as np

from npx.backend import Array, array_module, ceil_div
from npx.cuda.launch import contiguous, launch
from npx.dispatch import Output, kernel
from npx.kernels.attention_spec import AttentionSpec, rotary_positions, rotate, rotations, total_bias
from npx.kernels.dropout import DropoutSpec, SavedDropout, dropout, dropout_grad, launch_arguments
from npx.kernels.packing import pack_padded, pad_packed
from npx.kernels.sentence_blocks import SentenceBlock, for_each_block, sentence_blocks
from npx.kernels.softmax import (
    softmax,
    softmax_grad,
    softmax_grad_in_place,
    softmax_in_place,
    softmax_in_place_without_peak,
)  # fmt: skip
from npx.precision import accumulation_dtype

Arrays = tuple[Array, ...]  # usually the gradients of queries, keys and values


@kernel
def attention(
    q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: DropoutSpec | None = None
) -> Output:
    """Return y = dropout(p) v with p = softmax(q k^T / sqrt(d_k)) for each sentence and head.

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); y (B, T, H, d_v). `spec` defines masks, biases and rotary
    positions (npx/kernels/attention_spec.py). Packed inputs have one axis in place of B and T, or of B and S. The
    output is zero for a query that may attend to no key. Saved: the rotated q and k, v, p (B, H, T, S), what dropout
    saves, spec.
    """
    q, k = rotate_inputs(q, k, spec)
    p = probabilities(q, k, spec)
    p_dropped, saved_dropout = dropout.reference(p, drop)
    y = heads_first(p_dropped @ heads_first(pad_packed(v, spec.kv_packing)))  # (B, T, H, d_v)
    y = y.astype(v.dtype, copy=False)  # NumPy's matmul of bfloat16 returns float32
    return pack_padded(y, spec.q_packing), (q, k, v, p, saved_dropout, spec)


@attention.define_gradient
def attention_grad(
    g: Array, q: Array, k: Array, v: Array, p: Array, saved_dropout: SavedDropout, spec: AttentionSpec,
    out: Arrays | None = None, return_bias_grad: bool = False,
) -> Arrays:  # fmt: skip
    """Return the gradients (gq, gk, gv) of `attention`; write them to the three arrays `out` if these are given.

    With a = dropout(p) and p = softmax(z): gv = a^T g; ga = g v^T; gp = dropout_grad of ga; gz = softmax_grad of gp;
    gs = gz / sqrt(d_k); gq = gs k and gk = gs^T q, both rotated back. g (B, T, H, d_v). With `return_bias_grad`, the
    result ends with gz (B, H, T, S), the gradient of a bias of that shape.
    """
    gh, qh = (heads_first(pad_packed(x, spec.q_packing)) for x in (g, q))
    kh, vh = (heads_first(pad_packed(x, spec.kv_packing)) for x in (k, v))
    a = dropout_grad.reference(p, *saved_dropout)  # (B, H, T, S)
    ga = gh @ vh.swapaxes(-1, -2)
    gp = dropout_grad.reference(ga, *saved_dropout)
    gz = softmax_grad.reference(gp, p)
    gs = gz * q.shape[-1] ** -0.5
    gq = pack_padded(heads_first(gs @ kh), spec.q_packing)
    gk = pack_padded(heads_first(gs.swapaxes(-1, -2) @ qh), spec.kv_packing)
    gv = pack_padded(heads_first(a.swapaxes(-1, -2) @ gh), spec.kv_packing)
    rotate_gradients_back(gq, gk, spec)
    gradients = write_out(out, tuple(x.astype(g.dtype, copy=False) for x in (gq, gk, gv)))
    return (*gradients, gz) if return_bias_grad else gradients


def probabilities(q: Array, k: Array, spec: AttentionSpec) -> Array:
    """Return p (B, H, T, S) for q (B, T, H, d_k) and k (B, S, H, d_k), which are already rotated."""
    bias = total_bias(spec, q, k)
    q = heads_first(pad_packed(q, spec.q_packing))
    k = heads_first(pad_packed(k, spec.kv_packing))
    z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5  # (B, H, T, S)
    return softmax.reference(z if bias is None else z + bias)[0]


def attention_weights(q: Array, k: Array, spec: AttentionSpec = AttentionSpec()) -> Array:
    """Return the attention weights p (B, H, T, S), in float32 or wider."""
    dtype = accumulation_dtype(q.dtype)
    return probabilities(*rotate_inputs(q.astype(dtype, copy=False), k.astype(dtype, copy=False), spec), spec)


def rotate_inputs(q: Array, k: Array, spec: AttentionSpec) -> tuple[Array, Array]:
    """Return q and k rotated by their positions if `spec` has rotary positions."""
    if spec.rotary_base is None:
        return q, k
    q_positions, k_positions = rotary_positions(spec, q, k)
    return rotate(q, q_positions, spec.rotary_base), rotate(k, k_positions, spec.rotary_base)


def rotate_gradients_back(gq: Array, gk: Array, spec: AttentionSpec) -> None:
    """Compute the gradient of `rotate_inputs` in place: rotate gq and gk back by their positions."""
    if spec.rotary_base is not None:
        q_positions, k_positions = rotary_positions(spec, gq, gk)
        rotate(gq, q_positions, spec.rotary_base, inverse=True, out=gq)
        rotate(gk, k_positions, spec.rotary_base, inverse=True, out=gk)


def heads_first(x: Array) -> Array:
    """Return (B, T, H, D) as a view (B, H, T, D), and vice versa."""
    return x.swapaxes(1, 2)


def write_out(out: Arrays | None, values: Arrays) -> Arrays:
    """Copy the values to the arrays `out` and return these arrays; without `out`, return the values."""
    for target, value in zip(out or (), values, strict=False):
        if target is not value:
            array_module(value).copyto(target, value.astype(target.dtype, copy=False))
    return out or values


@attention.fast("numpy", "float32", "float64")
def attention_numpy(
    q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: DropoutSpec | None = None
) -> Output:
    """Compute one block of sentences at a time, so that its scores stay in cache between the two matmuls."""
    batch, n_queries, n_keys = spec.sizes(q, k)
    n_heads, d_k = q.shape[-2:]
    p = np.empty((batch, n_heads, n_queries, n_keys), q.dtype)
    y = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    keep_mask, keep_scale = (drop.keep_mask(p.shape), drop.scale) if drop else (None, 1.0)
    bias = total_bias(spec, q, k)
    scale = d_k**-0.5
    factors = rotations(spec, q, k)
    q_input, k_input = q, k
    if factors is not None:
        q = np.empty(q.shape, q.dtype)
        k = np.empty(k.shape, k.dtype)
    blocks = sentence_blocks(spec, batch, p[:1].nbytes)

    def body(block: SentenceBlock) -> None:  # qb, kb, ...: the block's part of q, k, ...
        if factors is not None:
            block.queries.rotate(q_input, factors[0], out=q)
            block.keys.rotate(k_input, factors[1], out=k)
        qb = block.queries.pad(q)
        kb = block.keys.pad(k)
        vb = block.keys.pad(v)
        yb = block.queries.buffer(y)
        sizes = qb.shape[1], kb.shape[1]
        pb = block.scores_buffer(p, *sizes)

        def compute_scores() -> None:
            np.matmul(heads_first(qb), heads_first(kb).swapaxes(-1, -2), out=pb)
            np.multiply(pb, scale, out=pb)
            if bias is not None:
                np.add(pb, block.part_of_scores(bias, *sizes), out=pb)

        compute_scores()
        if not softmax_in_place_without_peak(pb):
            compute_scores()
            softmax_in_place(pb)
        p_dropped = pb if keep_mask is None else pb * keep_scale * block.part_of_scores(keep_mask, *sizes)
        np.matmul(p_dropped, heads_first(vb), out=heads_first(yb))
        block.queries.store(yb, y)

    for_each_block(blocks, body, p)
    return y, (q, k, v, p, blocks, (drop, keep_mask), spec)


@attention_grad.fast("numpy", "float32", "float64")
def attention_grad_numpy(
    g: Array, q: Array, k: Array, v: Array, p: Array, blocks: list[SentenceBlock], saved_dropout: SavedDropout,
    spec: AttentionSpec, out: Arrays | None = None, return_bias_grad: bool = False,
) -> Arrays:  # fmt: skip
    """Compute one block of sentences at a time."""
    gq, gk, gv = out or (np.empty(x.shape, g.dtype) for x in (q, k, v))
    drop, keep_mask = saved_dropout
    scale = q.shape[-1] ** -0.5
    gz = np.zeros(p.shape, g.dtype) if return_bias_grad else None
    factors = rotations(spec, q, k)

    def body(block: SentenceBlock) -> None:  # gb, qb, ...: the block's part of g, q, ...; gh, qh, ...: heads first
        gb, qb = block.queries.pad(g), block.queries.pad(q)
        kb, vb = block.keys.pad(k), block.keys.pad(v)
        gqb = block.queries.buffer(gq)
        gkb, gvb = block.keys.buffer(gk), block.keys.buffer(gv)
        sizes = qb.shape[1], kb.shape[1]
        gh, qh, kh, vh = map(heads_first, (gb, qb, kb, vb))
        gs = gh @ vh.swapaxes(-1, -2)  # (b, H, t, s)
        pb = block.scores_buffer(p, *sizes)
        a = pb
        if drop and keep_mask is not None:
            mask = drop.scale * block.part_of_scores(keep_mask, *sizes).astype(g.dtype)
            gs *= mask
            a = pb * mask
        np.matmul(a.swapaxes(-1, -2), gh, out=heads_first(gvb))
        softmax_grad_in_place(gs, pb)
        if gz is not None:
            block.part_of_scores(gz, *sizes)[...] = gs
        gs *= scale
        np.matmul(gs, kh, out=heads_first(gqb))
        np.matmul(gs.swapaxes(-1, -2), qh, out=heads_first(gkb))
        block.queries.store(gqb, gq)
        block.keys.store(gkb, gk)
        block.keys.store(gvb, gv)
        if factors is not None:
            block.queries.rotate(gq, factors[0].conj(), out=gq)
            block.keys.rotate(gk, factors[1].conj(), out=gk)

    for_each_block(blocks, body, p)
    return (gq, gk, gv) if gz is None else (gq, gk, gv, gz)


# On a GPU: attention.cu

LARGEST_HEAD = 128  # maximum d_k and d_v of attention.cu; larger heads use the float32 reference
SHARED_BYTES = 48 << 10  # bytes of shared memory that every GPU can give to a block


class SavedValuesOfReference(NamedTuple):
    """The values that the float32 reference saved for a head that is too large for attention.cu."""

    values: tuple[Any, ...]


@attention.fast("cupy", "float32", "float16", "bfloat16")
def attention_cuda(
    q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: DropoutSpec | None = None
) -> Output:
    """Stream keys and values through shared memory; scores and probabilities stay in registers.

    The gradient recomputes the probabilities. Saved: the rotated q and k, v, the log-sum-exp (B, H, T), y, spec, drop.
    """
    xp = array_module(q)
    batch, n_queries, _ = spec.sizes(q, k)
    n_heads, d_k = q.shape[-2:]
    d_v = v.shape[-1]
    if max(d_k, d_v) > LARGEST_HEAD:
        y, saved = attention.reference(*(x.astype(np.float32) for x in (q, k, v)), spec, drop)
        return y.astype(q.dtype, copy=False), SavedValuesOfReference(saved)
    y = xp.empty((*q.shape[:-1], d_v), q.dtype)
    lse = xp.empty((batch, n_heads, n_queries), np.float32)
    inputs = tuple(with_contiguous_rows(x) for x in (*rotate_inputs(q, k, spec), v))
    launch_attention("attention_forward", inputs, y, lse, spec, drop)
    return y, (*inputs, lse, y, spec, drop)


@attention_grad.fast("cupy", "float32", "float16", "bfloat16")
def attention_grad_cuda(g: Array, *saved: Any, out: Arrays | None = None, return_bias_grad: bool = False) -> Arrays:
    """Launch one block per tile of positions; it computes gq of the tile's queries, then gk and gv of its keys.

    The result is deterministic. For a sentence that fits in one tile, the usual case, the scores are computed once
    for all three gradients.
    """
    if isinstance(saved[0], SavedValuesOfReference):
        gradients = attention_grad.reference(g.astype(np.float32), *saved[0].values, return_bias_grad=return_bias_grad)
        grads = write_out(out, gradients[:3]) if out else tuple(x.astype(g.dtype, copy=False) for x in gradients[:3])
        return (*grads, *gradients[3:])
    xp = array_module(g)
    *qkv, lse, y, spec, drop = saved
    inputs = tuple(qkv)
    g = contiguous(g)
    dtype = y.dtype
    grads = tuple(
        x if x is not None and has_contiguous_rows(x) and x.dtype == dtype else xp.empty(like.shape, dtype)
        for x, like in zip(out or (None,) * 3, inputs, strict=True)
    )
    batch, n_queries, n_keys = spec.sizes(*inputs[:2])
    gz_shape = batch, y.shape[-2], n_queries, n_keys
    gz = xp.zeros(gz_shape, np.float32) if return_bias_grad else None  # zeros, because the kernel skips masked scores
    launch_attention("attention_backward", inputs, y, lse, spec, drop, g, gz, grads)
    rotate_gradients_back(grads[0], grads[1], spec)
    return write_out(out, grads) if gz is None else (*write_out(out, grads), gz)


def has_contiguous_rows(x: Array) -> bool:
    """Return whether the values along the last axis are adjacent in memory."""
    return x.strides[-1] == x.itemsize


def with_contiguous_rows(x: Array) -> Array:
    """Return x, or a copy if the values along its last axis are not adjacent in memory."""
    return x if has_contiguous_rows(x) else array_module(x).ascontiguousarray(x)


def launch_attention(
    kernel: str, inputs: Arrays, y: Array, lse: Array, spec: AttentionSpec, drop: DropoutSpec | None,
    g: Array | None = None, gz: Array | None = None, grads: Arrays = (),
) -> None:  # fmt: skip
    """Launch a kernel of attention.cu with one block per tile of queries.

    For gradients, the tiles are those of the queries or of the keys, whichever are more numerous.

    Args:
        inputs: q, k, v, of any strides.
        y, lse: the output and the log-sum-exp of the scores (float32), contiguous.
        g: the gradient of y, contiguous; None for the forward pass.
        gz: the array for the gradient of the scores (float32), or None.
        grads: the arrays for the gradients of q, k and v, of any strides; () for the forward pass.
    """
    batch, n_queries, n_keys = spec.sizes(*inputs[:2])
    n_heads, d_k = inputs[0].shape[-2:]
    d_v = inputs[2].shape[-1]
    dk, dv = ceil_div(d_k, 16) * 16, ceil_div(d_v, 16) * 16  # rounded up to a multiple of 16
    itemsize = y.itemsize
    longest = max(n_queries, n_keys)
    tile = tile_size(longest, 2 * itemsize * (dk + dv))
    tiles = ceil_div(longest if grads else n_queries, tile)
    arrays = (*inputs, y, lse) if g is None else (g, *inputs, y, lse, gz, *grads)
    views = [*inputs, *grads]
    strides = [np.int64(stride // itemsize) for x in views for stride in (0, *x.strides[:-1])[-3:]]
    starts = [packing and packing.starts for packing in (spec.q_packing, spec.kv_packing)]
    lengths, bias = None if spec.kv_packing else spec.kv_lengths, spec.constant_bias
    bias_strides = [0, 0, 0, 0]
    if lengths is not None:
        lengths = contiguous(lengths.astype(np.int64, copy=False))
    if bias is not None:
        bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape).astype(np.float32, copy=False)
        bias_strides = [0 if n == 1 else s // bias.itemsize for n, s in zip(bias.shape, bias.strides, strict=True)]
    launch(
        "attention.cu",
        kernel,
        tiles * n_heads * batch,
        2 * tile,
        (*arrays, *starts, lengths, bias, *strides, *map(np.int64, bias_strides),
         *map(np.int32, (spec.causal, n_heads, n_queries, n_keys, d_k, d_v)), *launch_arguments(drop)),
        T=y.dtype,
        DK=dk,
        DV=dv,
        TILE=tile,
        ONE_TILE=int(longest <= tile <= min(dk, dv)),
        strided=True,
        VEC=access_bytes(*views, y, y if g is None else g) // itemsize,
    )  # fmt: skip


def tile_size(length: int, row_bytes: int) -> int:
    """Return the number of positions per tile of attention.cu: the largest multiple of 16 that fits in shared memory.

    The number is at most 64, and at most `length` rounded up to a multiple of 16.

    Args:
        row_bytes: bytes of shared memory that a position takes in the four tiles of the gradient. In addition, padding
            takes 16 bytes per position and tile, and dropout and sums take 18 bytes per position.
    """
    fitting = SHARED_BYTES // (row_bytes + 4 * 16 + 18) // 16 * 16
    return max(16, min(64, fitting, ceil_div(length, 16) * 16))


def access_bytes(*arrays: Array) -> int:
    """Return how many bytes a thread can access at once: the largest power of two up to 16 that aligns all rows."""
    bits = 16
    for x in arrays:
        bits |= x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr
        bits |= x.shape[-1] * x.itemsize
        for stride in x.strides[:-1]:
            bits |= stride
    return bits & -bits
