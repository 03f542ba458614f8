"""The operations of the Transformer: one fused kernel each, beside the composition it must equal. Next: `testing/`.

The compositions (`composed_*`) are made of the small operations of `operations.py` only. They are there to be read,
and to be the truth that the tests hold the fused operations to, values and gradients.
"""

from typing import Any

import npx
from autograd import operations as ops
from autograd.engine import Tensor, differentiable, is_grad_enabled
from npx.scores import Scores, additive, rotations

# Softmax, layer norm, dropout


@differentiable
def softmax(x, mask=None):
    """softmax(x)_i = exp(x_i) / sum_j exp(x_j) over the last axis, without the positions where `mask` is False.

    x (..., n); mask bool, broadcastable to x's shape. A row with no position left gives zeros.
    """
    y = npx.softmax(x, mask)
    return y, lambda g: (npx.softmax_grad(g, y),)


def composed_softmax(x: Tensor, mask: Any = None) -> Tensor:
    """`softmax` from small operations, for rows with at least one position left."""
    if mask is not None:
        x = ops.where(mask, x, Tensor(npx.full((), -npx.inf, x.dtype)))
    e = ops.exp(x - x.detach().max(axis=-1, keepdims=True).data)
    return e / e.sum(axis=-1, keepdims=True)


@differentiable
def layer_norm(x, gamma, beta, eps=1e-6):
    """gamma * (x - mean) / sqrt(var + eps) + beta over the last axis. x (..., D); gamma, beta (D,)."""
    y, xhat, rstd = npx.layer_norm(x, gamma, beta, eps)
    return y, lambda g: npx.layer_norm_grad(g, gamma, xhat, rstd)


def composed_layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-6) -> Tensor:
    """`layer_norm` from small operations."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / ops.sqrt(variance + eps) * gamma + beta


@differentiable
def dropout(x, rate, key):
    """x * keep / (1 - rate), where `key` (npx.Key) decides which values are kept."""
    y, keep = npx.dropout(x, rate, key)
    return y, lambda g: (npx.dropout_grad(g, rate, keep),)


@differentiable
def dropout_residual_norm(x, residual, gamma, beta, rate=0.0, key=None, eps=1e-6):
    """layer_norm(residual + dropout(x)); key None: no dropout. x, residual (..., D); gamma, beta (D,)."""
    y, xhat, rstd, keep = npx.dropout_residual_norm(x, residual, gamma, beta, rate, key, eps)
    return y, lambda g: npx.dropout_residual_norm_grad(g, gamma, xhat, rstd, keep, rate)


def composed_dropout_residual_norm(
    x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor, rate: float = 0.0, key: Any = None, eps: float = 1e-6
) -> Tensor:
    """`dropout_residual_norm` from small operations."""
    return composed_layer_norm(residual + (x if key is None else dropout(x, rate, key)), gamma, beta, eps)


# Projections


@differentiable
def linear(x, w, b=None, relu=False):
    """x w + b, then max(0, .) if `relu`. x (..., I); w (I, O); b (O,) or None; result (..., O)."""
    flat = x.reshape(-1, x.shape[-1])
    y = npx.linear(flat, w, b, relu)

    def vjp(g):
        gx, gw, gb = npx.linear_grad(g.reshape(y.shape), flat, w, y if relu else None, b is not None)
        return gx.reshape(x.shape), gw, gb

    return y.reshape(*x.shape[:-1], w.shape[1]), vjp


def composed_linear(x: Tensor, w: Tensor, b: Tensor | None = None, relu: bool = False) -> Tensor:
    """`linear` from small operations."""
    y = x @ w if b is None else x @ w + b
    return ops.relu(y) if relu else y


@differentiable
def embedding(table, ids, scale=1.0):
    """scale * table[ids]. table (V, D); ids (...) integers in [0, V); result (..., D)."""
    y = npx.embedding(table, ids)
    if scale != 1.0:
        times(y, scale)

    # The scale is applied to the rows of g, which are far fewer than those of the table.
    return y, lambda g: (npx.embedding_grad(g if scale == 1.0 else times(g.copy(), scale), ids, len(table)),)


# Attention


def split_heads(x: Any, heads: int, *sizes: int) -> list[Any]:
    """Views (B, T, heads, size), one for each of `sizes`, of the parts of x (B, T, heads * sum(sizes))."""
    parts, start = [], 0
    for size in sizes:
        part = x[..., start : start + heads * size]
        parts.append(part.reshape(*x.shape[:-1], heads, size))
        start += heads * size
    return parts


@differentiable
def attention(q, k, v, scores=Scores(), rate=0.0, key=None):
    """dropout(softmax(q k^T / sqrt(d_k))) v for every head (paper equation 1).

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); `scores` (npx.Scores): which keys count, biases, rotary
    positions; key None: no dropout. Result (B, T, H, d_v).
    """
    y, p, keep = npx.attention(q, k, v, scores, rate, key)
    return y, lambda g: npx.attention_grad(g, q, k, v, p, keep, rate, scores=scores)


def composed_attention(
    q: Tensor, k: Tensor, v: Tensor, scores: Scores = Scores(), rate: float = 0.0, key: Any = None
) -> Tensor:
    """`attention` from small operations, for rows with at least one key left."""
    added = additive(scores, q.data, k.data)
    q, k = composed_rotation(q, k.shape[1] - q.shape[1], scores.rotary), composed_rotation(k, 0, scores.rotary)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # (B, H, T, d)
    z = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    p = composed_softmax(z if added is None else z + added)  # (B, H, T, S)
    return ((p if key is None else dropout(p, rate, key)) @ v).swapaxes(1, 2)  # (B, T, H, d_v)


def composed_rotation(x: Tensor, first: int, base: float | None) -> Tensor:
    """Rotary positions (npx/scores.py) from small operations. x (B, T, H, d)."""
    if base is None:
        return x
    cos, sin = rotations(x.data, first, base)
    a, b = x[..., ::2], x[..., 1::2]
    return ops.reshape(ops.stack(a * cos - b * sin, a * sin + b * cos, axis=-1), x.shape)


@differentiable
def self_attention(qkv, heads, d_k, scores=Scores(), rate=0.0, key=None):
    """`attention` of a sequence to itself, from one merged projection: queries, keys and values side by side.

    qkv (B, T, H * (2 d_k + d_v)); result (B, T, H * d_v). The gradient is written where the parts lie: no copies.
    """
    d_v = qkv.shape[-1] // heads - 2 * d_k
    q, k, v = split_heads(qkv, heads, d_k, d_k, d_v)
    y, p, keep = npx.attention(q, k, v, scores, rate, key)
    shape = y.shape  # y itself need not be kept where the reshaped one is a copy

    def vjp(g):
        gqkv = npx.empty(qkv.shape, qkv.dtype)
        out = tuple(split_heads(gqkv, heads, d_k, d_k, d_v))
        npx.attention_grad(g.reshape(shape), q, k, v, p, keep, rate, out=out, scores=scores)
        return (gqkv,)

    return y.reshape(*qkv.shape[:-1], heads * d_v), vjp


@differentiable
def cross_attention(queries, keys_values, heads, d_k, scores=Scores(), rate=0.0, key=None):
    """`attention` of one sequence to another, whose keys and values come side by side from one merged projection.

    queries (B, T, H * d_k); keys_values (B, S, H * (d_k + d_v)); result (B, T, H * d_v).
    """
    d_v = keys_values.shape[-1] // heads - d_k
    (q,), (k, v) = split_heads(queries, heads, d_k), split_heads(keys_values, heads, d_k, d_v)
    y, p, keep = npx.attention(q, k, v, scores, rate, key)
    shape = y.shape

    def vjp(g):
        gq, gkv = npx.empty(queries.shape, queries.dtype), npx.empty(keys_values.shape, keys_values.dtype)
        out = (*split_heads(gq, heads, d_k), *split_heads(gkv, heads, d_k, d_v))
        npx.attention_grad(g.reshape(shape), q, k, v, p, keep, rate, out=out, scores=scores)
        return gq, gkv

    return y.reshape(*queries.shape[:-1], heads * d_v), vjp


# Losses


@differentiable
def cross_entropy(logits, targets, smoothing=0.0, over="all", pad_id=0):
    """The summed label-smoothed cross entropy over the targets that are not padding.

    logits (..., V); targets (...) integers. Which classes `smoothing` is spread over: see npx/kernels/cross_entropy.py.
    The loss of float16 and bfloat16 logits is float32: a sum over a batch has no place in them.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    loss, gz = npx.cross_entropy(flat, targets.reshape(-1), smoothing, over, pad_id, is_grad_enabled())
    return loss, lambda g: (times(gz, g).reshape(logits.shape),)


@differentiable
def linear_cross_entropy(x, w, targets, smoothing=0.0, over="all", pad_id=0):
    """`cross_entropy` of the logits x w^T, which are never all in memory. x (..., D); w (V, D); targets (...).

    The gradients are formed together with the loss, while a chunk of logits is in cache.
    """
    flat = x.reshape(-1, x.shape[-1])
    loss, gx, gw = npx.linear_cross_entropy(flat, w, targets.reshape(-1), smoothing, over, pad_id, is_grad_enabled())
    return loss, lambda g: (times(gx, g).reshape(x.shape), times(gw, g))


def times(x: Any, number: Any) -> Any:
    """x times a number or () array, in place and so in x's dtype: for an array that nobody else holds."""
    x *= number
    return x


def composed_cross_entropy(
    logits: Tensor, targets: Any, smoothing: float = 0.0, over: str = "all", pad_id: int = 0
) -> Tensor:
    """`cross_entropy` from small operations: - sum_k q_k log softmax(logits)_k with q written out."""
    classes = logits.shape[-1]
    logits, targets = logits.reshape(-1, classes), targets.reshape(-1)
    real = targets != pad_id
    one_hot = (targets[:, None] == npx.arange(classes)).astype(logits.dtype)
    others = 1 - one_hot
    if over == "others_without_pad":
        others = others * (npx.arange(classes) != pad_id)
    q = (
        (1 - smoothing) * one_hot + smoothing / classes
        if over == "all"
        else (1 - smoothing) * one_hot + smoothing * others / npx.maximum(others.sum(axis=-1, keepdims=True), 1)
    ).astype(logits.dtype)
    shifted = logits - logits.detach().max(axis=-1, keepdims=True).data
    log_p = shifted - ops.log(ops.exp(shifted).sum(axis=-1, keepdims=True))
    return -(log_p * (q * real[:, None]).astype(logits.dtype)).sum()
