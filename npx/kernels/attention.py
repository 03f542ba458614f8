"""Scaled dot-product attention of all heads at once (paper sections 3.2.1 and 3.2.2).

Arrays keep the order of the projections they come from, (batch, position, head, size), so that splitting into heads
and joining them again moves no data.
"""

from typing import Any

import numpy as np

from npx.device import array_module
from npx.kernels.dropout import dropout, dropout_grad, keep_mask, keep_scale
from npx.kernels.softmax import softmax, softmax_grad, softmax_grad_in_place, softmax_in_place
from npx.parallel import map_blocks
from npx.random import Key
from npx.registry import kernel


@kernel
def attention(
    q: Any, k: Any, v: Any, mask: Any = None, rate: float = 0.0, key: Key | None = None
) -> tuple[Any, Any, Any]:
    """out = dropout(p) v with p = softmax(q k^T / sqrt(d_k)) for each sentence and head.

    q (B, T, H, d_k); k (B, S, H, d_k); v (B, S, H, d_v); mask bool, broadcastable to (B, H, T, S), True = may be
    attended; `key` None: no dropout. Returns out (B, T, H, d_v) and what the gradient needs: p (B, H, T, S), keep.
    A position that may attend to nothing gets zeros.
    """
    scores = heads_first(q) @ heads_first(k).swapaxes(-1, -2)  # (B, H, T, S)
    p = softmax.reference(scores * q.shape[-1] ** -0.5, mask)
    kept, keep = (p, None) if key is None else dropout.reference(p, rate, key)
    return heads_first(kept @ heads_first(v)), p, keep  # (B, T, H, d_v)


@kernel
def attention_grad(
    g: Any, q: Any, k: Any, v: Any, p: Any, keep: Any = None, rate: float = 0.0, out: tuple[Any, Any, Any] | None = None
) -> tuple[Any, Any, Any]:
    """Gradients (gq, gk, gv) of `attention`, written into the three arrays `out` if given.

    With a = dropout(p): gv = a^T g and ga = g v^T; gs = softmax_grad of ga through the mask; gq = gs k / sqrt(d_k),
    gk = gs^T q / sqrt(d_k). g (B, T, H, d_v), the others as in `attention`.
    """
    xp = array_module(g)
    gh, qh, kh, vh = heads_first(g), heads_first(q), heads_first(k), heads_first(v)
    ga = gh @ vh.swapaxes(-1, -2)  # (B, H, T, S)
    a, gp = (p, ga) if keep is None else (dropout_grad.reference(p, rate, keep), dropout_grad.reference(ga, rate, keep))
    gs = softmax_grad.reference(gp, p) * q.shape[-1] ** -0.5
    grads = heads_first(gs @ kh), heads_first(gs.swapaxes(-1, -2) @ qh), heads_first(a.swapaxes(-1, -2) @ gh)
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
    mask: np.ndarray | None = None,
    rate: float = 0.0,
    key: Key | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """A few sentences at a time, their scores staying in cache from the first product to the second."""
    (batch, length, heads, d_k), source, d_v = q.shape, k.shape[1], v.shape[3]
    p = np.empty((batch, heads, length, source), q.dtype)
    out = np.empty((batch, length, heads, d_v), q.dtype)
    keep = None if key is None else keep_mask(key, p.shape, rate)
    bias = None if mask is None else additive(mask, batch, q.dtype)
    scale = d_k**-0.5

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


def additive(mask: np.ndarray, batch: int, dtype: np.dtype) -> np.ndarray:
    """A boolean mask as numbers to add to scores: 0 where True, -inf where False; first axis spread to `batch`."""
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    bias = np.where(mask, dtype.type(0), dtype.type(-np.inf))
    return np.broadcast_to(bias, (batch, *bias.shape[1:]))


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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A few sentences at a time."""
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
    return gq, gk, gv
