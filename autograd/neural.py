"""The operations of the Transformer: one fused kernel each, beside the composition it must equal.

The compositions (`COMPOSITIONS["softmax"]`, ...) are made of the small operations of `operations.py` only. They are
there to be read, and to be the truth that the tests hold the fused operations to, values and gradients.
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

COMPOSITIONS: dict[str, Callable[..., Tensor]] = {}  # operation -> the same made of small operations


def composition(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Enter `composed_NAME` in `COMPOSITIONS` as that of the operation NAME."""
    COMPOSITIONS[function.__name__.removeprefix("composed_")] = function
    return function


# What is formed again on the way back instead of kept

T = TypeVar("T")
Form = Callable[[], Array]


def forming(vjp: VJP, form: Form) -> VJP:
    """Mark a vjp with what forms the operation's output again, from nothing but what the vjp keeps itself."""
    vjp.again = form  # type: ignore[attr-defined]
    return vjp


def always(value: T) -> Callable[[], T]:
    """A function that gives the value."""
    return lambda: value


def once(form: Callable[[], T]) -> Callable[[], T]:
    """The function `form`, which is called once, when it is first asked for its value."""
    formed: list[T] = []

    def give() -> T:
        if not formed:
            formed.append(form())
        return formed[0]

    return give


# Softmax, layer norm, dropout


@differentiable
def softmax(x: Array, mask: Array | None = None) -> Result:
    """softmax(x)_i = exp(x_i) / sum_j exp(x_j) over the last axis, without the positions where `mask` is False.

    x (..., n); mask bool, broadcastable to x's shape. A row with no position left gives zeros.
    """
    y, saved = npx.softmax(x, mask)
    return y, lambda g: (npx.softmax_grad(g, saved),)


@composition
def composed_softmax(x: Tensor, mask: Array | None = None) -> Tensor:
    """`softmax` from small operations, for rows with at least one position left."""
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
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / ops.sqrt(variance + eps) * gamma + beta


@differentiable
def dropout(x: Array, drop: Drop | None) -> Result:
    """x * keep / (1 - rate), where `drop` (npx.Drop) decides which values are kept; None: x."""
    y, saved = npx.dropout(x, drop)
    return y, lambda g: (npx.dropout_grad(g, saved),)


@composition
def composed_dropout(x: Tensor, drop: Drop | None) -> Tensor:
    """`dropout` as a product with a constant."""
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


ACTIVATIONS = ("", "relu")  # that `linear` can end in


@differentiable
def linear(x: Array, w: Array, b: Array | None = None, activation: str = "", *, again: Form | None = None) -> Result:
    """x w + b, then max(0, .) if `activation` is "relu". x (..., I); w (I, O); b (O,) or None; result (..., O).

    again: what forms x again on the way back (`Tensor.again`), so that it is not kept.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"linear: expected an activation of {ACTIVATIONS}; got {activation!r}; try it as an operation")
    if x.shape[-1:] != w.shape[:1] or (b is not None and b.shape != w.shape[1:]):
        bias = "none" if b is None else b.shape
        raise ValueError(f"linear: expected x (..., I), w (I, O) and b (O,); got {x.shape}, {w.shape} and {bias}")
    rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])
    y, saved = npx.linear(rows, w, b, activation)
    of_rows, of_x, of_y = rows.shape, x.shape, (*x.shape[:-1], w.shape[1])
    source = again or always(x)
    kept = saved.without(rows, lambda: source().reshape(of_rows)) if again else always(saved)

    @accumulates
    def vjp(g: Array, accumulate_into: GradientTargets = NO_TARGETS) -> tuple[Array | None, ...]:
        to_x, to_w, to_b = (*accumulate_into, None)[:3]
        to_rows = None if to_x is None else to_x.reshape(of_rows)
        gx, gw, gb = npx.linear_grad(g.reshape(of_rows[0], of_y[-1]), kept(), accumulate_into=(to_rows, to_w, to_b))
        return gx.reshape(of_x) if to_x is None else to_x, gw, gb

    if not activation and npx.should_rematerialize(x):  # a ReLU keeps y for itself
        forming(vjp, lambda: npx.linear(source().reshape(of_rows), w, b)[0].reshape(of_y))
    return y.reshape(of_y), vjp


@composition
def composed_linear(
    x: Tensor, w: Tensor, b: Tensor | None = None, activation: str = "", *, again: Any = None
) -> Tensor:
    """`linear` from small operations, which keep x."""
    y = x @ w if b is None else x @ w + b
    return ops.relu(y) if activation else y


@differentiable
def embedding(
    table: Array, ids: Array, scale: float = 1.0, added: Array | None = None, drop: Drop | None = None
) -> Result:
    """dropout(scale * table[ids] + added). table (V, D); ids (..., T) integers in [0, V); result (..., T, D).

    added: a constant array (T, D), which gets no gradient, or None; drop None: no dropout.
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
    """Views (..., heads, size), one for each of `sizes`, of the parts of x (..., heads * sum(sizes))."""
    parts, start = [], 0
    for size in sizes:
        part = x[..., start : start + heads * size]
        parts.append(part.reshape(*x.shape[:-1], heads, size))
        start += heads * size
    return parts


@differentiable
def attention(q: Array, k: Array, v: Array, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None) -> Result:
    """dropout(softmax(q k^T / sqrt(d_k))) v for every head (paper equation 1).

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); `spec` (npx.AttentionSpec): which keys count, biases, rotary
    positions, and what is packed, with one axis for B and T, or S; drop None: no dropout. Result (B, T, H, d_v).
    """
    check_attention(spec, q, k, v)
    y, saved = npx.attention(q, k, v, spec, drop)
    return y, lambda g: npx.attention_grad(g, saved)


@composition
def composed_attention(
    q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None
) -> Tensor:
    """`attention` from small operations, for rows with at least one key left."""
    added = score_bias(spec, q.data, k.data)
    if spec.rotary_base is not None:
        of_q, of_k = rotary_positions(spec, q.data, k.data)
        q, k = composed_rotation(q, of_q, spec.rotary_base), composed_rotation(k, of_k, spec.rotary_base)
    q, k, v = padded(q, spec.q_packing), padded(k, spec.kv_packing), padded(v, spec.kv_packing)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # (B, H, T, d)
    z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    p = composed_softmax(z if added is None else z + added)  # (B, H, T, S)
    y = (dropout(p, drop) @ v).swapaxes(1, 2)  # (B, T, H, d_v)
    packing = spec.q_packing
    return y if packing is None else y.reshape(-1, *y.shape[2:])[packing.flat_index]


def padded(x: Tensor, packing: Packing | None) -> Tensor:
    """Packed rows x (N, H, d) as (B, T, H, d), the last row of all in the places after the end of a sentence."""
    if packing is None:
        return x
    rows = npx.full(packing.shape, len(x) - 1, npx.int64).reshape(-1)
    rows[packing.flat_index] = npx.arange(len(x))
    return x[rows.reshape(packing.shape)]


def composed_rotation(x: Tensor, first: Any, base: float) -> Tensor:
    """Rotary positions (npx/kernels/attention_spec.py) from small operations. x (..., T, H, d)."""
    turns = rotation_factors(x.data, first, base)
    cos, sin = turns.real, turns.imag
    a, b = x[..., ::2], x[..., 1::2]
    return ops.reshape(ops.stack(a * cos - b * sin, a * sin + b * cos, axis=-1), x.shape)


@differentiable
def self_attention(
    qkv: Array, heads: int, d_k: int, spec: AttentionSpec = AttentionSpec(), drop: Drop | None = None
) -> Result:
    """`attention` of a sequence to itself, from one merged projection: queries, keys and values side by side.

    qkv (B, T, H * (2 d_k + d_v)); result (B, T, H * d_v); packed, (N, ...) both.
    """
    return merged_attention([qkv], [(d_k, d_k, qkv.shape[-1] // heads - 2 * d_k)], heads, spec, drop)


@differentiable
def cross_attention(
    queries: Array, keys_values: Array, heads: int, d_k: int, spec: AttentionSpec = AttentionSpec(), drop: Drop |
    None = None,
    *, again: tuple[Form | None, ...] = (None, None),
) -> Result:  # fmt: skip
    """`attention` of one sequence to another, whose keys and values come side by side from one merged projection.

    queries (B, T, H * d_k); keys_values (B, S, H * (d_k + d_v)); result (B, T, H * d_v); packed, (N, ...) each.
    again: what forms both again on the way back (`Tensor.again`), so that they are not kept.
    """
    sizes = [(d_k,), (d_k, keys_values.shape[-1] // heads - d_k)]
    return merged_attention([queries, keys_values], sizes, heads, spec, drop, again)


def merged_attention(
    merged: list[Array],
    sizes: list[tuple[int, ...]],
    heads: int,
    spec: AttentionSpec,
    drop: Drop | None,
    again: tuple[Form | None, ...] = (None,),
) -> Result:
    """`attention` of the queries, keys and values that lie in `merged` arrays, each with heads of its `sizes`.

    The gradients are written where the parts lie: no copies. On a CPU neither the weights nor what they give is kept,
    but both are formed again. ValueError where an array has more columns, or fewer.
    """
    for x, own in zip(merged, sizes, strict=True):
        columns = [heads * size for size in own]
        if x.shape[-1] != npx.sum(columns) or min(columns) < 0:
            raise ValueError(f"attention: expected {' + '.join(map(str, columns))} columns; got {x.shape[-1]}")

    def parts(arrays: list[Array]) -> tuple[Array, ...]:
        return tuple(part for x, own in zip(arrays, sizes, strict=True) for part in split_heads(x, heads, *own))

    def attend(arrays: list[Array]) -> tuple[Array, Any]:
        own = parts(arrays)
        check_attention(spec, *own)
        return npx.attention(*own, spec, drop)

    y, saved = attend(merged)
    kinds, shape, of_y = [(x.shape, x.dtype) for x in merged], y.shape, (*y.shape[:-2], y.shape[-2] * y.shape[-1])
    sources = [form or always(x) for x, form in zip(merged, again, strict=True)]
    spared = npx.should_rematerialize(y)
    formed: Callable[[], Any] = (
        once(lambda: attend([source() for source in sources])) if spared else always((None, saved))
    )

    def vjp(g: Array) -> tuple[Array | None, ...]:
        gradients = [npx.empty(*kind) for kind in kinds]
        npx.attention_grad(g.reshape(shape), formed()[1], out=parts(gradients))
        return tuple(gradients)

    return y.reshape(of_y), forming(vjp, lambda: formed()[0].reshape(of_y)) if spared else vjp


@composition
def composed_self_attention(qkv: Tensor, heads: int, d_k: int, *how: Any, **named: Any) -> Tensor:
    """`self_attention` from small operations; `how`: as for `composed_attention`."""
    return composed_cross_attention(qkv[..., : heads * d_k], qkv[..., heads * d_k :], heads, d_k, *how, **named)


@composition
def composed_cross_attention(
    queries: Tensor, keys_values: Tensor, heads: int, d_k: int, *how: Any, again: Any = None, **named: Any
) -> Tensor:
    """`cross_attention` from small operations, which keep both; `how`: as for `composed_attention`."""
    keys = queries.shape[-1]
    parts = queries, keys_values[..., :keys], keys_values[..., keys:]
    q, k, v = (x.reshape(*x.shape[:-1], heads, -1) for x in parts)
    return composed_attention(q, k, v, *how, **named).reshape(*queries.shape[:-1], -1)


# Losses


@differentiable
def cross_entropy(logits: Array, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Result:
    """The summed label-smoothed cross entropy over the targets that are not padding.

    logits (..., V); targets (...) integers; `smoothing`: see npx/kernels/cross_entropy.py. Its pad_id, 0 unless told,
    is the class that is padding: -1 where all are counted.
    The loss of float16 and bfloat16 logits is float32: a sum over a batch has no place in them.
    """
    targets = npx.asarray(targets)
    check_targets("cross_entropy", logits, targets, logits.shape[-1])
    flat = logits.reshape(-1, logits.shape[-1])
    loss, saved = npx.cross_entropy(flat, targets.reshape(-1), smoothing, is_grad_enabled())
    return loss, lambda g: (npx.cross_entropy_grad(g, saved).reshape(logits.shape),)


@differentiable
def linear_cross_entropy(x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Result:
    """`cross_entropy` of the logits x w^T, which are never all in memory. x (..., D); w (V, D); targets (...).

    The gradients are formed together with the loss, while a chunk of logits is in cache.
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
    """`cross_entropy` from small operations: - sum_k q_k log softmax(logits)_k with q written out."""
    classes = logits.shape[-1]
    logits, targets = logits.reshape(-1, classes), targets.reshape(-1)
    share, over, pad_id = smoothing
    real = targets != pad_id
    one_hot = (targets[:, None] == npx.arange(classes)).astype(logits.dtype)
    others = 1 - one_hot
    if over == "others_without_pad":
        others = others * (npx.arange(classes) != pad_id)
    q = (
        (1 - share) * one_hot + share / classes
        if over == "all"
        else (1 - share) * one_hot + share * others / npx.maximum(others.sum(axis=-1, keepdims=True), 1)
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
