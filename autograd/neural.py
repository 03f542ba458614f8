"""The fused operations of the Transformer, one kernel each, and the equivalent compositions of small operations.

The compositions (`COMPOSITIONS["softmax"]`, ...) use only the operations of `operations.py`. They document the fused
operations, and the tests check values and gradients of the fused operations against them.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import npx
from autograd import operations as ops
from autograd.compositions import COMPOSITIONS as COMPOSITIONS
from autograd.compositions import composed_rotation, composition, pad_sentences
from autograd.engine import Result, Tensor, adds_in_place, differentiable
from autograd.losses import composed_cross_entropy as composed_cross_entropy
from autograd.losses import composed_linear_cross_entropy as composed_linear_cross_entropy
from autograd.losses import cross_entropy as cross_entropy
from autograd.losses import linear_cross_entropy as linear_cross_entropy
from autograd.operation_checks import check_attention, check_ids, check_merged
from autograd.rematerialization import RecomputeFn, attach_recompute_fn, compute_once, constant_fn
from npx import NO_ACCUMULATORS, Accumulators, Array, AttentionSpec, DropoutSpec
from npx.kernels.attention_spec import rotary_positions, total_bias

# Softmax, layer norm, dropout


@differentiable
def softmax(x: Array, mask: Array | None = None) -> Result:
    """Return exp(x_i) / sum_j exp(x_j) over the last axis, ignoring the positions where `mask` is False.

    x (..., n); mask bool, broadcastable to x's shape. A fully masked row gives zeros.
    """
    y, saved = npx.softmax(x, mask)
    return y, lambda g: (npx.softmax_grad(g, saved),)


@composition
def composed_softmax(x: Tensor, mask: Array | None = None) -> Tensor:
    """Compute `softmax` with elementary operations, for rows with at least one position that is not masked."""
    if mask is not None:
        x = ops.where(mask, x, Tensor(npx.full((), -npx.inf, x.dtype)))
    e = ops.exp(x - x.detach().max(axis=-1, keepdims=True).data)
    return e / e.sum(axis=-1, keepdims=True)


@differentiable
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> Result:
    """Return gamma * (x - mean) / sqrt(var + eps) + beta over the last axis. x (..., D); gamma, beta (D,)."""
    y, saved = npx.layer_norm(x, gamma, beta, eps)
    return y, adds_in_place(
        lambda g, accumulate_into=NO_ACCUMULATORS: npx.layer_norm_grad(g, saved, accumulate_into=accumulate_into[1:3])
    )


@composition
def composed_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-6) -> Tensor:
    """Compute `layer_norm` with elementary operations."""
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return centered / ops.sqrt(variance + eps) * gamma + beta


@differentiable
def dropout(x: Array, drop: DropoutSpec | None) -> Result:
    """Return x * mask / (1 - rate) with the random mask of `drop` (npx.DropoutSpec), or x if `drop` is None."""
    y, saved = npx.dropout(x, drop)
    return y, lambda g: (npx.dropout_grad(g, saved),)


@composition
def composed_dropout(x: Tensor, drop: DropoutSpec | None) -> Tensor:
    """Compute `dropout` as a multiplication by a constant array."""
    return x * npx.dropout.reference(npx.ones(x.shape, x.dtype), drop)[0]


@differentiable
def dropout_residual_norm(
    x: Array, residual: Array, gamma: Array, beta: Array, drop: DropoutSpec | None = None, eps: float = 1e-6
) -> Result:
    """Return layer_norm(residual + dropout(x)). x, residual (..., D); gamma, beta (D,).

    Without `drop`, there is no dropout.
    """
    y, saved = npx.dropout_residual_norm(x, residual, gamma, beta, drop, eps)
    return y, adds_in_place(
        lambda g, accumulate_into=NO_ACCUMULATORS: npx.dropout_residual_norm_grad(
            g, saved, accumulate_into=accumulate_into[2:4]
        )
    )


@composition
def composed_dropout_residual_norm(
    x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, drop: DropoutSpec | None = None, eps: float = 1e-6
) -> Tensor:
    """Compute `dropout_residual_norm` with elementary operations."""
    return composed_layer_norm(residual + dropout(x, drop), gamma, beta, eps)


# Projections


ACTIVATIONS = (None, "relu")  # activations that `linear` can apply


@differentiable
def linear(
    x: Array, w: Array, b: Array | None = None, activation: str | None = None, *, recompute_x: RecomputeFn | None = None
) -> Result:
    """Return x w + b, or max(0, x w + b) if `activation` is "relu". x (..., I); w (I, O); b (O,) or None.

    Args:
        recompute_x: a function that recomputes x in backward (`Tensor.recompute_fn`); with it, x is not saved.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"linear: expected an activation in {ACTIVATIONS}; got {activation!r}; try a separate activation"
        )
    if x.shape[-1:] != w.shape[:1] or (b is not None and b.shape != w.shape[1:]):
        bias = "none" if b is None else b.shape
        raise ValueError(f"linear: expected x (..., I), w (I, O) and b (O,); got {x.shape}, {w.shape} and {bias}")
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    y, saved = npx.linear(rows, w, b, activation)
    rows_shape, x_shape = rows.shape, x.shape
    y_shape = (*x.shape[:-1], w.shape[1])
    get_x = recompute_x or constant_fn(x)
    get_saved = saved.without(rows, lambda: get_x().reshape(rows_shape)) if recompute_x else constant_fn(saved)

    @adds_in_place
    def vjp(g: Array, accumulate_into: Accumulators = NO_ACCUMULATORS) -> tuple[Array | None, ...]:
        x_sum, w_sum, b_sum = (*accumulate_into, None)[:3]  # without b, there are two arguments
        rows_sum = None if x_sum is None else x_sum.reshape(rows_shape)
        g_rows = g.reshape(rows_shape[0], y_shape[-1])
        gx, gw, gb = npx.linear_grad(g_rows, get_saved(), accumulate_into=(rows_sum, w_sum, b_sum))
        return gx.reshape(x_shape) if x_sum is None else x_sum, gw, gb

    if not activation and npx.should_rematerialize(x):  # with ReLU, y is saved anyway
        attach_recompute_fn(vjp, lambda: npx.linear(get_x().reshape(rows_shape), w, b)[0].reshape(y_shape))
    return y.reshape(y_shape), vjp


@composition
def composed_linear(
    x: Tensor, w: Tensor, b: Tensor | None = None, activation: str | None = None, *, recompute_x: Any = None
) -> Tensor:
    """Compute `linear` with elementary operations, which save x; `recompute_x` is ignored."""
    y = x @ w if b is None else x @ w + b
    return ops.relu(y) if activation else y


@differentiable
def embedding(
    table: Array, ids: Array, scale: float = 1.0, encodings: Array | None = None, drop: DropoutSpec | None = None
) -> Result:
    """Return dropout(scale * table[ids] + encodings), (..., T, D). table (V, D); ids (..., T) integers in [0, V).

    `encodings` is a constant array (T, D), which gets no gradient, or None.
    """
    ids = npx.asarray(ids)
    check_ids("embedding", ids, len(table))
    if encodings is not None and encodings.shape != (shape := (*ids.shape[-1:], table.shape[1])):
        raise ValueError(f"embedding: expected encodings of shape {shape}; got {encodings.shape}")
    y, saved = npx.embedding(table, ids, scale, encodings, drop)
    return y, adds_in_place(
        lambda g, accumulate_into=NO_ACCUMULATORS: (npx.embedding_grad(g, saved, accumulate_into=accumulate_into[0]),)
    )


@composition
def composed_embedding(
    table: Tensor, ids: Any, scale: float = 1.0, encodings: Array | None = None, drop: DropoutSpec | None = None
) -> Tensor:
    """Compute `embedding` by indexing."""
    y = table[ids.data if isinstance(ids, Tensor) else ids] * scale
    return composed_dropout(y if encodings is None else y + encodings, drop)


# Attention


def split_heads(x: Array, n_heads: int, *sizes: int) -> list[Array]:
    """Split x (..., n_heads * sum(sizes)) into views (..., n_heads, size), one for each of `sizes`."""
    return split_columns(x, *((n_heads, size) for size in sizes))


def split_columns(x: Any, *shapes: tuple[int, int]) -> list[Any]:
    """Split an array or Tensor x (..., columns) into parts (..., n_heads, size), one for each of `shapes`."""
    parts = []
    start = 0
    for n_heads, size in shapes:
        part = x[..., start : start + n_heads * size]
        parts.append(part.reshape(*x.shape[:-1], n_heads, size))
        start += n_heads * size
    return parts


def repeat_heads(x: Array, n_heads: int) -> Array:
    """Repeat each head of keys or values x (..., n_kv_heads, d) for the query heads of its group: (..., n_heads, d)."""
    n = x.shape[-2]
    if n == n_heads:
        return x
    groups = npx.broadcast_to(x[..., None, :], (*x.shape[:-1], n_heads // n, x.shape[-1]))
    return groups.reshape(*x.shape[:-2], n_heads, x.shape[-1])


def sum_groups(g: Array, n_heads: int) -> Array:
    """Sum g (..., H, d) over groups of adjacent heads: (..., n_heads, d). This is the gradient of `repeat_heads`."""
    n = g.shape[-2]
    return g if n == n_heads else g.reshape(*g.shape[:-2], n_heads, n // n_heads, g.shape[-1]).sum(axis=-2)


@differentiable
def attention(
    q: Array,
    k: Array,
    v: Array,
    spec: AttentionSpec = AttentionSpec(),
    drop: DropoutSpec | None = None,
    score_bias: Array | None = None,
) -> Result:
    """Return dropout(softmax(q k^T / sqrt(d_k) + score_bias)) v for every head (paper equation 1).

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); result (B, T, H, d_v). Packed arrays have one axis instead of
    B and T, or B and S. k and v may have fewer heads (H_kv, a divisor of H); each group of H / H_kv
    query heads then shares one key and value head (Ainslie et al., "GQA", 2023).

    Args:
        spec: masks, constant bias, rotary positions and packing.
        score_bias: broadcastable to (B, H, T, S); unlike `spec.constant_bias`, it gets a gradient.
    """
    check_attention(spec, q, k, v)
    if score_bias is not None:
        check_attention(spec._replace(constant_bias=score_bias), q, k, v)
        bias = score_bias if spec.constant_bias is None else spec.constant_bias + score_bias
        spec = spec._replace(constant_bias=bias)
    n_heads, n_kv_heads = q.shape[-2], k.shape[-2]
    y, saved = npx.attention(q, repeat_heads(k, n_heads), repeat_heads(v, n_heads), spec, drop)

    def vjp(g: Array) -> tuple[Array | None, ...]:
        gq, gk, gv, *gz = npx.attention_grad(g, saved, **({} if score_bias is None else {"return_bias_grad": True}))
        gb = None if score_bias is None else ops.unbroadcast(gz[0], score_bias).astype(score_bias.dtype, copy=False)
        return gq, sum_groups(gk, n_kv_heads), sum_groups(gv, n_kv_heads), None, None, gb

    return y, vjp


@composition
def composed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spec: AttentionSpec = AttentionSpec(),
    drop: DropoutSpec | None = None,
    score_bias: Tensor | None = None,
) -> Tensor:
    """Compute `attention` with elementary operations, for rows with at least one key that is not masked."""
    if q.shape[-2] != k.shape[-2]:
        group = npx.arange(q.shape[-2]) // (q.shape[-2] // k.shape[-2])  # the key and value head of each query head
        k, v = k[..., group, :], v[..., group, :]
    bias = total_bias(spec, q.data, k.data)
    if spec.rotary_base is not None:
        q_positions, k_positions = rotary_positions(spec, q.data, k.data)
        q = composed_rotation(q, q_positions, spec.rotary_base)
        k = composed_rotation(k, k_positions, spec.rotary_base)
    q = pad_sentences(q, spec.q_packing).swapaxes(1, 2)  # (B, H, T, d)
    k = pad_sentences(k, spec.kv_packing).swapaxes(1, 2)  # (B, H, S, d)
    v = pad_sentences(v, spec.kv_packing).swapaxes(1, 2)
    z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    z = z if score_bias is None else z + score_bias
    p = composed_softmax(z if bias is None else z + bias)  # (B, H, T, S)
    y = (dropout(p, drop) @ v).swapaxes(1, 2)  # (B, T, H, d_v)
    packing = spec.q_packing
    return y if packing is None else y.reshape(-1, *y.shape[2:])[packing.flat_index]


@differentiable
def self_attention(
    qkv: Array,
    n_heads: int,
    d_k: int,
    spec: AttentionSpec = AttentionSpec(),
    drop: DropoutSpec | None = None,
    *,
    n_kv_heads: int | None = None,
) -> Result:
    """Attention of a sequence to itself, computed from a merged projection to queries, keys and values.

    qkv (B, T, H * d_k + n_kv_heads * (d_k + d_v)) begins with the queries of all heads; result (B, T, H * d_v). Packed
    arrays are (R, ...). `n_kv_heads` is the number of key and value heads (default: `n_heads`).
    """
    n_kv_heads = n_kv_heads or n_heads
    d_v = (qkv.shape[-1] - n_heads * d_k) // n_kv_heads - d_k
    return merged_attention([qkv], [[(n_heads, d_k), (n_kv_heads, d_k), (n_kv_heads, d_v)]], spec, drop)


@differentiable
def cross_attention(
    queries: Array,
    keys_values: Array,
    n_heads: int,
    d_k: int,
    spec: AttentionSpec = AttentionSpec(),
    drop: DropoutSpec | None = None,
    *,
    recompute_inputs: tuple[RecomputeFn | None, RecomputeFn | None] = (None, None),
    n_kv_heads: int | None = None,
) -> Result:
    """Attention of one sequence to another, whose keys and values are in one array.

    queries (B, T, H * d_k); keys_values (B, S, n_kv_heads * (d_k + d_v)) begins with all keys; result (B, T, H * d_v).
    Packed arrays are (R, ...). `recompute_inputs` has, for each input, a function that recomputes it in backward
    (`Tensor.recompute_fn`), or None to save it. `n_kv_heads` is the number of key and value heads (default: `n_heads`).
    """
    n_kv_heads = n_kv_heads or n_heads
    shapes = [[(n_heads, d_k)], [(n_kv_heads, d_k), (n_kv_heads, keys_values.shape[-1] // n_kv_heads - d_k)]]
    return merged_attention([queries, keys_values], shapes, spec, drop, recompute_inputs)


def merged_attention(
    merged: list[Array],
    shapes: list[list[tuple[int, int]]],
    spec: AttentionSpec,
    drop: DropoutSpec | None,
    recompute_inputs: tuple[RecomputeFn | None, ...] = (None,),
) -> Result:
    """Compute `attention` of queries, keys and values that are parts of one or two merged arrays.

    Backward writes the gradients of these parts directly into the gradients of the merged arrays. If
    `npx.should_rematerialize(y)`, neither the attention weights nor the output is saved: backward recomputes both.

    Args:
        merged: one array with queries, keys and values, or two arrays: one with queries, and one with keys and values.
        shapes: for each array, the number of heads and the head size of each part.
        recompute_inputs: for each array, a function that recomputes it in backward, or None.

    Raises ValueError for an array with the wrong number of columns.
    """
    check_merged(merged, shapes)

    def split(arrays: list[Array]) -> tuple[Array, ...]:
        return tuple(part for x, parts in zip(arrays, shapes, strict=True) for part in split_columns(x, *parts))

    def attend(arrays: list[Array]) -> tuple[Array, Any]:
        q, k, v = split(arrays)
        check_attention(spec, q, k, v)
        n_heads = q.shape[-2]
        return npx.attention(q, repeat_heads(k, n_heads), repeat_heads(v, n_heads), spec, drop)

    y, saved = attend(merged)
    layouts = [(x.shape, x.dtype) for x in merged]
    shape = y.shape
    merged_shape = (*shape[:-2], shape[-2] * shape[-1])
    get_inputs = [function or constant_fn(x) for x, function in zip(merged, recompute_inputs, strict=True)]
    rematerialize = npx.should_rematerialize(y)
    get_result: Callable[[], Any] = (
        compute_once(lambda: attend([get() for get in get_inputs])) if rematerialize else constant_fn((None, saved))
    )

    def vjp(g: Array) -> tuple[Array | None, ...]:
        gradients = [npx.empty(*layout) for layout in layouts]
        gq, gk, gv = split(gradients)
        if gq.shape[-2] == gk.shape[-2]:
            npx.attention_grad(g.reshape(shape), get_result()[1], out=(gq, gk, gv))
        else:
            for target, value in zip((gq, gk, gv), npx.attention_grad(g.reshape(shape), get_result()[1]), strict=True):
                target[...] = sum_groups(value, target.shape[-2])
        return tuple(gradients)

    if rematerialize:
        attach_recompute_fn(vjp, lambda: get_result()[0].reshape(merged_shape))
    return y.reshape(merged_shape), vjp


@composition
def composed_self_attention(qkv: Tensor, n_heads: int, d_k: int, *args: Any, **kwargs: Any) -> Tensor:
    """Compute `self_attention` with elementary operations. Other arguments: see `composed_attention`."""
    return composed_cross_attention(qkv[..., : n_heads * d_k], qkv[..., n_heads * d_k :], n_heads, d_k, *args, **kwargs)


@composition
def composed_cross_attention(
    queries: Tensor,
    keys_values: Tensor,
    n_heads: int,
    d_k: int,
    *args: Any,
    recompute_inputs: Any = None,
    n_kv_heads: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """Compute `cross_attention` with elementary operations, which save their inputs; `recompute_inputs` is ignored.

    Other arguments: see `composed_attention`.
    """
    n_kv_heads = n_kv_heads or n_heads
    d_v = keys_values.shape[-1] // n_kv_heads - d_k
    (q,) = split_columns(queries, (n_heads, d_k))
    k, v = split_columns(keys_values, (n_kv_heads, d_k), (n_kv_heads, d_v))
    return composed_attention(q, k, v, *args, **kwargs).reshape(*queries.shape[:-1], -1)
