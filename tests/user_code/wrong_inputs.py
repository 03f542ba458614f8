"""Wrong functions of first-time users: wrong only for inputs that the example lacks.

Each has one bug, of the kind inputs: odd lengths, other kernel widths, inputs of different lengths, broadcasting, ids
that mark padding or have gaps, and options whose default has no effect.
"""

import numpy as np

from autograd import differentiable
from tests.user_code.base import ids, rows, wrong


@wrong((4, 8), fixed=True)
@differentiable
def low_pass(x):
    """Frequencies damped with rfft and irfft; without n=, the gradient of an odd length lacks an entry [inputs]."""
    n = x.shape[-1]
    damping = np.exp(-np.arange(n // 2 + 1) / 4)

    def vjp(g):
        gx = np.fft.irfft(np.fft.rfft(g) * damping) if n > 1 else g
        return (np.pad(gx, [(0, 0)] * (x.ndim - 1) + [(0, n - gx.shape[-1])]).astype(x.dtype),)

    return np.fft.irfft(np.fft.rfft(x) * damping, n=n).astype(x.dtype), vjp


@wrong((4, 6), fixed=True)
@differentiable
def mean_of_pairs(x):
    """Mean of each pair of columns, without an odd last column; the gradient is padded at the wrong end [inputs]."""
    n = x.shape[-1] // 2
    pairs = x[..., : 2 * n].reshape(*x.shape[:-1], n, 2)

    def vjp(g):
        return (np.pad(np.repeat(g / 2, 2, axis=-1), [(0, 0)] * (x.ndim - 1) + [(x.shape[-1] - 2 * n, 0)]),)

    return pairs.mean(axis=-1), vjp


@wrong((2, 5, 4), second=lambda rng, x: rng.normal(size=x.shape))
@differentiable
def causal_attention(q, kv):
    """Causal attention; the gradient assumes as many queries as keys [inputs]."""
    n, m = q.shape[-2], kv.shape[-2]
    scale = q.dtype.type(q.shape[-1] ** -0.5)
    scores = np.where(np.tri(n, m, m - n, dtype=bool), q @ kv.swapaxes(-1, -2) * scale, -1e9)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True)).astype(q.dtype)
    p /= p.sum(axis=-1, keepdims=True)

    def vjp(g):
        gp = g @ kv.swapaxes(-1, -2)
        gs = p * (gp - (gp * p).sum(axis=-1, keepdims=True)) * scale * np.tri(n, m, dtype=q.dtype)
        return gs @ kv, gs.swapaxes(-1, -2) @ q + p.swapaxes(-1, -2) @ g

    return p @ kv, vjp


@wrong((2, 5, 4), second=lambda rng, x: rng.normal(size=x.shape))
@differentiable
def grouped_scores(q, k):
    """Scores of heads that share keys in groups; the gradient groups the heads in another order [inputs]."""
    n = len(q) // len(k)
    repeated = np.repeat(k, n, axis=0)

    def vjp(g):
        return g @ repeated, (g.swapaxes(-1, -2) @ q).reshape(n, *k.shape).sum(axis=0)

    return q @ repeated.swapaxes(-1, -2), vjp


@wrong((4, 8), fixed=True, second=lambda rng, x: rng.normal(size=3))
@differentiable
def convolution_of_odd_width(x, w):
    """Convolution of the same length; the gradient pads as if the kernel had an odd width [inputs]."""
    pad = [(0, 0)] * (x.ndim - 1) + [((len(w) - 1) // 2, len(w) // 2)]
    windows = np.lib.stride_tricks.sliding_window_view

    def vjp(g):
        gw = (rows(g[..., None]) * windows(np.pad(x, pad), len(w), -1).reshape(-1, len(w))).sum(axis=0)
        return windows(np.pad(g, pad), len(w), -1) @ w[::-1], gw

    return windows(np.pad(x, pad), len(w), -1) @ w, vjp


@wrong(second=lambda rng, x: rng.normal(size=x.shape[-1]))
@differentiable
def broadcast_sum(x, b):
    """x + b; the gradient averages over broadcast axes of length 1 [inputs]."""

    def unbroadcast(g, a):
        g = g.sum(axis=tuple(range(g.ndim - a.ndim)))
        axes = tuple(i for i, n in enumerate(a.shape) if n == 1 != g.shape[i])
        return g.mean(axis=axes, keepdims=True) if axes else g

    return x + b, lambda g: (unbroadcast(g, x), unbroadcast(g, b))


# Integers and options


@wrong(second=ids(4))
@differentiable
def loss_with_padding(x, target, ignore=-100):
    """Cross entropy without padding, to which the gradient flows anyway [inputs]."""
    keep = (target != ignore).astype(x.dtype)
    index = np.where(target != ignore, target, 0)[..., None]
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    n = np.maximum(keep.sum(), 1)

    def vjp(g):
        gx = p.copy()
        np.put_along_axis(gx, index, np.take_along_axis(gx, index, axis=-1) - 1, axis=-1)
        return ((g * gx / n).astype(x.dtype),)

    return -(np.log(np.take_along_axis(p, index, axis=-1)[..., 0]) * keep).sum() / n, vjp


@wrong((6, 3), fixed=True, second=lambda rng, x: np.array([0, 0, 1, 2, 2, 2]))
@differentiable
def sum_of_segments(x, segments):
    """Sum of the rows of each segment; the gradient numbers only the segments that have rows [inputs]."""
    y = np.zeros((len(np.bincount(segments)), *x.shape[1:]), x.dtype)
    np.add.at(y, segments, x)
    return y, lambda g: (g[np.unique(segments, return_inverse=True)[1]],)


@wrong()
@differentiable
def dropout_by_default_off(x, rate=0.0):
    """Dropout; the gradient is not scaled by 1 / (1 - rate) [inputs]."""
    if rate == 0:
        return x * 1, lambda g: (g,)
    keep = (np.random.random(x.shape) >= rate).astype(x.dtype)
    return x * keep / x.dtype.type(1 - rate), lambda g: (g * keep,)
