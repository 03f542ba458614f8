"""The fused operations of the Transformer, one kernel each, and the equivalent compositions of small operations.

The compositions (`COMPOSITIONS["softmax"]`, ...) use only the operations of `operations.py`. They document the fused
operations, and the tests check values and gradients of the fused operations against them.
"""

from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import npx
from autograd import operations as ops
from autograd.contract import check_attention, check_ids, check_targets
from autograd.engine import VJP, Result, Tensor, accumulates, differentiable, is_grad_enabled
from npx import NO_TARGETS, Array, AttentionSpec, Drop, GradientTargets, LabelSmoothing, Packing
from npx.kernels.attention_spec import rotary_positions, rotation_factors, score_bias

COMPOSITIONS: dict[str, Callable[..., Tensor]] = {}  # operation -> the equivalent composition


def composition(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Register `composed_NAME` as the composition of the operation NAME."""
    COMPOSITIONS[function.__name__.removeprefix("composed_")] = function
    return function


# Rematerialization: outputs that are recomputed in backward instead of saved

T = TypeVar("T")
Recompute = Callable[[], Array]


def recomputable(vjp: VJP, recompute: Recompute) -> VJP:
    """Attach to a vjp a function that recomputes the operation's output from arrays that the vjp saves anyway."""
    vjp.recompute = recompute  # type: ignore[attr-defined]
    return vjp


def constant(value: T) -> Callable[[], T]:
    """Return a function that returns `value`."""
    return lambda: value


def memoize(compute: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `compute` once, when first called, and returns that value at every call."""
    results: list[T] = []

    def memoized() -> T:
        if not results:
            results.append(compute())
        return results[0]

    return memoized


# Softmax, layer norm, dropout


@differentiable
def softmax(x: Array, mask: Array | None = None) -> Result:
    """softmax(x)_i = exp(x_i) / sum_j exp(x_j) over the last axis, leaving out positions where `mask` is False.

    x (..., n); mask bool, broadcastable to x's shape. A fully masked row gives zeros.
    """
    y, saved = npx.softmax(x, mask)
    return y, lambda g: (npx.softmax_grad(g, saved),)


@composition
def composed_softmax(x: Tensor, mask: Array | None = None) -> Tensor:
    """`softmax` from small operations, for rows with at least one position that is not masked."""
    if mask is not None:
        x = ops.where(mask, x, Tensor(npx.full((), -npx.inf, x.dtype)))
    e = ops.exp(x - x.detach().max(axis=-1, keepdims=True).data)
    return e / e.sum(axis=-1, keepdims=True)


@differentiable
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> Result:
    """gamma * (x - mean) / sqrt(var + eps) + beta over the last axis. x (..., D); gamma, beta (D,)."""
    y, saved = npx.layer_norm(x, gamma, beta, eps)
    return y, accumulates(
        lambda g, accumulate_into=NO_TARGETS: npx.layer_norm_grad(g, saved, accumulate_into=accumulate_into[1:3])
    )


@composition
def composed_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-6) -> Tensor:
    """`layer_norm` from small operations."""
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return centered / ops.sqrt(variance + eps) * gamma + beta


@differentiable
def dropout(x: Array, drop: Drop | None) -> Result:
    """x * mask / (1 - rate), with the random mask that `drop` (npx.Drop) describes; x if `drop` is None."""
    y, saved = npx.dropout(x, drop)
    return y, lambda g: (npx.dropout_grad(g, saved),)


@composition
def composed_dropout(x: Tensor, drop: Drop | None) -> Tensor:
    """`dropout` as multiplication by a constant array."""
    return x * npx.dropout.reference(npx.ones(x.shape, x.dtype), drop)[0]


@differentiable
def dropout_residual_norm(
    x: Array, residual: Array, gamma: Array, beta: Array, drop: Drop | None = None, eps: float = 1e-6
) -> Result:
    """layer_norm(residual + dropout(x)); drop None: no dropout. x, residual (..., D); gamma, beta (D,)."""
    y, saved = npx.dropout_residual_norm(x, residual, gamma, beta, drop, eps)
    return y, accumulates(
        lambda g, accumulate_into=NO_TARGETS: npx.dropout_residual_norm_grad(
            g, saved, accumulate_into=accumulate_into[2:4]
        )
    )


@composition
def composed_dropout_residual_norm(
    x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, drop: Drop | None = None, eps: float = 1e-6
) -> Tensor:
    """`dropout_residual_norm` from small operations."""
    return composed_layer_norm(residual + dropout(x, drop), gamma, beta, eps)


# Projections


ACTIVATIONS = ("", "relu")  # that `linear` can apply


@differentiable
def linear(
    x: Array, w: Array, b: Array | None = None, activation: str = "", *, recompute_x: Recompute | None = None
) -> Result:
    """x w + b, then max(0, .) if `activation` is "relu". x (..., I); w (I, O); b (O,) or None; result (..., O).

    recompute_x: a function that recomputes x in backward (`Tensor.recompute`); with it, x is not saved.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"linear: expected an activation of {ACTIVATIONS}; got {activation!r}; try a separate operation"
        )
    if x.shape[-1:] != w.shape[:1] or (b is not None and b.shape != w.shape[1:]):
        bias = "none" if b is None else b.shape
        raise ValueError(f"linear: expected x (..., I), w (I, O) and b (O,); got {x.shape}, {w.shape} and {bias}")
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    y, saved = npx.linear(rows, w, b, activation)
    rows_shape, x_shape, y_shape = rows.shape, x.shape, (*x.shape[:-1], w.shape[1])
    get_x = recompute_x or constant(x)
    get_saved = saved.without(rows, lambda: get_x().reshape(rows_shape)) if recompute_x else constant(saved)

    @accumulates
    def vjp(g: Array, accumulate_into: GradientTargets = NO_TARGETS) -> tuple[Array | None, ...]:
        x_sum, w_sum, b_sum = (*accumulate_into, None)[:3]
        sums = None if x_sum is None else x_sum.reshape(rows_shape), w_sum, b_sum
        gx, gw, gb = npx.linear_grad(g.reshape(rows_shape[0], y_shape[-1]), get_saved(), accumulate_into=sums)
        return gx.reshape(x_shape) if x_sum is None else x_sum, gw, gb

    if not activation and npx.should_rematerialize(x):  # with ReLU, y is saved anyway
        recomputable(vjp, lambda: npx.linear(get_x().reshape(rows_shape), w, b)[0].reshape(y_shape))
    return y.reshape(y_shape), vjp


@composition
def composed_linear(
    x: Tensor, w: Tensor, b: Tensor | None = None, activation: str = "", *, recompute_x: Any = None
) -> Tensor:
    """`linear` from small operations, which save x."""
    y = x @ w if b is None else x @ w + b
    return ops.relu(y) if activation else y


@differentiable
def embedding(
    table: Array, ids: Array, scale: float = 1.0, added: Array | None = None, drop: Drop | None = None
) -> Result:
    """dropout(scale * table[ids] + added). table (V, D); ids (..., T) integers in [0, V); result (..., T, D).

    added: a constant array (T, D), without a gradient, or None; drop None: no dropout.
    """
    ids = npx.asarray(ids)
    check_ids("embedding", ids, len(table))
    y, saved = npx.embedding(table, ids, scale, added, drop)
    return y, accumulates(
        lambda g, accumulate_into=NO_TARGETS: (npx.embedding_grad(g, saved, accumulate_into=accumulate_into[0]),)
    )


@composition
def composed_embedding(
    table: Tensor, ids: Any, scale: float = 1.0, added: Array | None = None, drop: Drop | None = None
) -> Tensor:
    """`embedding` as indexing."""
    y = table[ids.data if isinstance(ids, Tensor) else ids] * scale
    return composed_dropout(y if added is None else y + added, drop)


# Attention


def split_heads(x: Array, heads: int, *sizes: int) -> list[Array]:
    """Split x (..., heads * sum(sizes)) into views (..., heads, size), one for each of `sizes`."""
    parts, start = [], 0
    for size in sizes:
        part = x[..., start : start + heads * size]
        parts.append(part.reshape(*x.shape[:-1], heads, size))
        start += heads * size
    return parts


@differentiable
def attention(q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None) -> Result:
    """dropout(softmax(q k^T / sqrt(d_k))) v for every head (paper equation 1).

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); result (B, T, H, d_v). Packed arrays have one axis
    instead of B and T, or B and S. `spec` (npx.AttentionSpec): masks, bias, rotary positions and packing. drop None: no
    dropout.
    """
    check_attention(spec, q, k, v)
    y, saved = npx.attention(q, k, v, spec, drop)
    return y, lambda g: npx.attention_grad(g, saved)


@composition
def composed_attention(
    q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None
) -> Tensor:
    """`attention` from small operations, for rows with at least one key that is not masked."""
    added = score_bias(spec, q.data, k.data)
    if spec.rotary_base is not None:
        q_positions, k_positions = rotary_positions(spec, q.data, k.data)
        q, k = composed_rotation(q, q_positions, spec.rotary_base), composed_rotation(k, k_positions, spec.rotary_base)
    q, k, v = padded(q, spec.q_packing), padded(k, spec.kv_packing), padded(v, spec.kv_packing)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # (B, H, T, d)
    z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    p = composed_softmax(z if added is None else z + added)  # (B, H, T, S)
    y = (dropout(p, drop) @ v).swapaxes(1, 2)  # (B, T, H, d_v)
    packing = spec.q_packing
    return y if packing is None else y.reshape(-1, *y.shape[2:])[packing.flat_index]


def padded(x: Tensor, packing: Packing | None) -> Tensor:
    """Unpack rows x (N, H, d) to (B, T, H, d), padding sentences with the last row of x."""
    if packing is None:
        return x
    rows = npx.full(packing.shape, len(x) - 1, npx.int64).reshape(-1)
    rows[packing.flat_index] = npx.arange(len(x))
    return x[rows.reshape(packing.shape)]


def composed_rotation(x: Tensor, first: Any, base: float) -> Tensor:
    """Rotary positions (npx/kernels/attention_spec.py) from small operations. x (..., T, H, d).

    first: the position of x[..., 0, :, :], or the positions (T,).
    """
    turns = rotation_factors(x.data, first, base)
    cos, sin = turns.real, turns.imag
    a, b = x[..., ::2], x[..., 1::2]
    return ops.reshape(ops.stack(a * cos - b * sin, a * sin + b * cos, axis=-1), x.shape)


@differentiable
def self_attention(
    qkv: Array, heads: int, d_k: int, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None
) -> Result:
    """`attention` of a sequence to itself, from one merged projection to queries, keys and values.

    qkv (B, T, H * (2 d_k + d_v)), the queries of all heads first; result (B, T, H * d_v). Packed: (N, ...).
    """
    return merged_attention([qkv], [(d_k, d_k, qkv.shape[-1] // heads - 2 * d_k)], heads, spec, drop)


@differentiable
def cross_attention(
    queries: Array,
    keys_values: Array,
    heads: int,
    d_k: int,
    spec: AttentionSpec = AttentionSpec(),
    drop: Drop | None = None,
    *,
    recompute: tuple[Recompute | None, Recompute | None] = (None, None),
) -> Result:
    """`attention` of one sequence to another, whose keys and values come from one merged projection.

    queries (B, T, H * d_k); keys_values (B, S, H * (d_k + d_v)), all keys first; result (B, T, H * d_v). Packed:
    (N, ...). recompute: functions that recompute both inputs in backward (`Tensor.recompute`); an input that has one is
    not saved.
    """
    sizes = [(d_k,), (d_k, keys_values.shape[-1] // heads - d_k)]
    return merged_attention([queries, keys_values], sizes, heads, spec, drop, recompute)


def merged_attention(
    merged: list[Array],
    sizes: list[tuple[int, ...]],
    heads: int,
    spec: AttentionSpec,
    drop: Drop | None,
    recompute: tuple[Recompute | None, ...] = (None,),
) -> Result:
    """`attention` of queries, keys and values merged into one or two arrays; `sizes` lists the head sizes in each.

    The gradients are written into views of the merged gradients, without copies. On a CPU neither the attention weights
    nor the output is saved: backward recomputes both. ValueError for an array with the wrong number of columns.
    """
    for x, head_sizes in zip(merged, sizes, strict=True):
        columns = [heads * size for size in head_sizes]
        if x.shape[-1] != npx.sum(columns) or min(columns) < 0:
            raise ValueError(f"attention: expected {' + '.join(map(str, columns))} columns; got {x.shape[-1]}")

    def split(arrays: list[Array]) -> tuple[Array, ...]:
        return tuple(
            part for x, head_sizes in zip(arrays, sizes, strict=True) for part in split_heads(x, heads, *head_sizes)
        )

    def attend(arrays: list[Array]) -> tuple[Array, Any]:
        q, k, v = split(arrays)
        check_attention(spec, q, k, v)
        return npx.attention(q, k, v, spec, drop)

    y, saved = attend(merged)
    layouts, shape, y_shape = [(x.shape, x.dtype) for x in merged], y.shape, (*y.shape[:-2], y.shape[-2] * y.shape[-1])
    get_inputs = [function or constant(x) for x, function in zip(merged, recompute, strict=True)]
    rematerialize = npx.should_rematerialize(y)
    get_result: Callable[[], Any] = (
        memoize(lambda: attend([get() for get in get_inputs])) if rematerialize else constant((None, saved))
    )

    def vjp(g: Array) -> tuple[Array | None, ...]:
        gradients = [npx.empty(*layout) for layout in layouts]
        npx.attention_grad(g.reshape(shape), get_result()[1], out=split(gradients))
        return tuple(gradients)

    return y.reshape(y_shape), recomputable(vjp, lambda: get_result()[0].reshape(y_shape)) if rematerialize else vjp


@composition
def composed_self_attention(qkv: Tensor, heads: int, d_k: int, *args: Any, **kwargs: Any) -> Tensor:
    """`self_attention` from small operations. Other arguments: see `composed_attention`."""
    return composed_cross_attention(qkv[..., : heads * d_k], qkv[..., heads * d_k :], heads, d_k, *args, **kwargs)


@composition
def composed_cross_attention(
    queries: Tensor, keys_values: Tensor, heads: int, d_k: int, *args: Any, recompute: Any = None, **kwargs: Any
) -> Tensor:
    """`cross_attention` from small operations, which save both inputs. Other arguments: see `composed_attention`."""
    keys = queries.shape[-1]
    parts = queries, keys_values[..., :keys], keys_values[..., keys:]
    q, k, v = (x.reshape(*x.shape[:-1], heads, -1) for x in parts)
    return composed_attention(q, k, v, *args, **kwargs).reshape(*queries.shape[:-1], -1)


# Losses


@differentiable
def cross_entropy(logits: Array, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Result:
    """Label-smoothed cross entropy, summed over the targets that are not padding.

    logits (..., V); targets (...) integers; `smoothing`: see npx/kernels/cross_entropy.py. Its pad_id (default 0) is
    the padding class; with -1 all targets count. The loss of float16 and bfloat16 logits is float32, because a sum over
    a batch exceeds their precision.
    """
    targets = npx.asarray(targets)
    check_targets("cross_entropy", logits, targets, logits.shape[-1])
    flat = logits.reshape(-1, logits.shape[-1])
    loss, saved = npx.cross_entropy(flat, targets.reshape(-1), smoothing, is_grad_enabled())
    return loss, lambda g: (npx.cross_entropy_grad(g, saved).reshape(logits.shape),)


@differentiable
def linear_cross_entropy(x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Result:
    """`cross_entropy` of the logits x w^T, which are never all in memory at once. x (..., D); w (V, D); targets (...).

    The gradients are computed together with the loss, while a chunk of logits is in cache.
    """
    targets = npx.asarray(targets)
    check_targets("linear_cross_entropy", x, targets, len(w))
    flat = x.reshape(-1, x.shape[-1])
    loss, saved = npx.linear_cross_entropy(flat, w, targets.reshape(-1), smoothing, is_grad_enabled())

    @accumulates
    def vjp(g: Array, accumulate_into: GradientTargets = NO_TARGETS) -> tuple[Array | None, ...]:
        gx, gw = npx.linear_cross_entropy_grad(g, saved, accumulate_into=accumulate_into[1])
        return gx.reshape(x.shape), gw

    return loss, vjp


@composition
def composed_cross_entropy(logits: Tensor, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Tensor:
    """`cross_entropy` from small operations: - sum_k q_k log softmax(logits)_k, with q as an array."""
    n_classes = logits.shape[-1]
    logits, targets = logits.reshape(-1, n_classes), targets.reshape(-1)
    label_smoothing, smoothing_classes, pad_id = smoothing
    real = targets != pad_id
    one_hot = (targets[:, None] == npx.arange(n_classes)).astype(logits.dtype)
    others = 1 - one_hot
    if smoothing_classes == "others_without_pad":
        others = others * (npx.arange(n_classes) != pad_id)
    q = (
        (1 - label_smoothing) * one_hot + label_smoothing / n_classes
        if smoothing_classes == "all"
        else (1 - label_smoothing) * one_hot
        + label_smoothing * others / npx.maximum(others.sum(axis=-1, keepdims=True), 1)
    ).astype(logits.dtype)
    shifted = logits - logits.detach().max(axis=-1, keepdims=True).data
    log_p = shifted - ops.log(ops.exp(shifted).sum(axis=-1, keepdims=True))
    return -(log_p * (q * real[:, None]).astype(logits.dtype)).sum()


@composition
def composed_linear_cross_entropy(
    x: Tensor, w: Tensor, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()
) -> Tensor:
    """`linear_cross_entropy` from small operations."""
    return composed_cross_entropy(x @ w.transpose(), targets, smoothing)
