"""Wrong functions and layers of first-time users: wrong for more rows or steps, or for another dtype.

Each has one bug, of the kind blocks (large inputs) or dtype.
"""

import numpy as np

from autograd import Tensor, differentiable
from autograd import operations as ops
from models import Module, Parameter
from tests.user_code.base import rows, weights, wrong

# Many rows


@wrong()
@differentiable
def mask_of_the_first_block(x):
    """ReLU in blocks of 64 rows; the first block's mask is used for all [blocks]."""
    flat = rows(x)
    mask = flat[:64] > 0

    def vjp(g):
        gx = rows(g).copy()
        for start in range(0, len(gx), 64):
            block = gx[start : start + 64]
            block *= mask[: len(block)]
        return (gx.reshape(x.shape),)

    return np.maximum(x, 0), vjp


@wrong()
@differentiable
def tail_lost(x):
    """Softmax in blocks of 256 rows; the gradient of the last, shorter block is missing [blocks]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def vjp(g):
        p, h = rows(y), rows(g)
        whole = len(p) // 256 * 256 or len(p)
        gx = np.zeros_like(p)
        gx[:whole] = p[:whole] * (h[:whole] - (h[:whole] * p[:whole]).sum(axis=-1, keepdims=True))
        return (gx.reshape(x.shape),)

    return y, vjp


@wrong()
@differentiable
def sums_begun_anew(x):
    """Sums of squares of rows in blocks of 128 numbers; only the last block has a gradient [blocks]."""
    n = x.shape[-1]
    y = sum((x[..., i : i + 128] ** 2).sum(axis=-1) for i in range(0, n, 128))

    def vjp(g):
        for i in range(0, n, 128):
            gx = np.zeros_like(x)
            gx[..., i : i + 128] = 2 * g[..., None] * x[..., i : i + 128]
        return (gx,)

    return y, vjp


@wrong()
@differentiable
def column_sums_in_blocks(x):
    """Columns minus their mean; the gradient uses the mean of its last block of 256 rows [blocks]."""

    def vjp(g):
        for start in range(0, len(g), 256):
            mean = g[start : start + 256].mean(axis=0)
        return (g - mean,)

    return x - x.mean(axis=0), vjp


@wrong()
@differentiable
def statistics_of_the_first_block(x):
    """Standardized columns; the gradient uses the statistics of the first 1024 rows [blocks]."""
    mean, scale = x.mean(axis=0), 1 / np.sqrt(x.var(axis=0) + 1e-3)
    z = (x - mean) * scale

    def vjp(g):
        scale = 1 / np.sqrt(x[:1024].var(axis=0) + 1e-3)
        z = (x - x[:1024].mean(axis=0)) * scale
        return (scale * (g - g.mean(axis=0) - z * (g * z).mean(axis=0)),)

    return z, vjp


@wrong()
@differentiable
def carry_lost(x):
    """Cumulative sum over rows; the gradient restarts every 64 rows [blocks]."""

    def vjp(g):
        parts = [np.flip(np.cumsum(np.flip(g[i : i + 64], 0), axis=0), 0) for i in range(0, len(g), 64)]
        return (np.concatenate(parts),)

    return np.cumsum(x, axis=0), vjp


@wrong((2, 5, 3))
@differentiable
def truncated_average(x):
    """Leaky sum along the steps (factor 0.9); the gradient is truncated to 16 steps [blocks]."""
    y = np.empty_like(x)
    total = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        total = 0.9 * total + x[:, t]
        y[:, t] = total

    def vjp(g):
        gx = np.zeros_like(x)
        for t in range(x.shape[1]):
            for back in range(min(t + 1, 16)):
                gx[:, t - back] += 0.9**back * g[:, t]
        return (gx,)

    return y, vjp


@wrong((2, 5, 3))
def detached_every_32(x):
    """Leaky sum along the steps, detached every 32 steps [blocks]."""
    total, steps = Tensor(np.zeros_like(x.data[:, 0])), []
    for t in range(x.shape[1]):
        if t and t % 32 == 0:
            total = total.detach()
        total = ops.tanh(total * 0.95 + x[:, t])
        steps.append(total)
    return ops.stack(*steps, axis=1)


# dtype


@wrong()
@differentiable
def half_inside(x):
    """tanh computed in float16 [dtype]."""
    y = np.tanh(x.astype(np.float16)).astype(x.dtype)
    return y, lambda g: (g * (1 - y * y),)


@wrong()
@differentiable
def half_gradient(x):
    """tanh; the derivative is stored in float16 [dtype]."""
    y = np.tanh(x)
    slope = (1 - y * y).astype(np.float16)
    return y, lambda g: (g * slope.astype(x.dtype),)


@wrong()
@differentiable
def single_gradient(x):
    """exp; the output is stored in float32 for the gradient [dtype]."""
    y = np.exp(x)
    kept = y.astype(np.float32)
    return y, lambda g: (g * kept.astype(x.dtype),)


@wrong()
@differentiable
def single_inside(x):
    """exp computed in float32 for any dtype [dtype]."""
    y = np.exp(x.astype(np.float32)).astype(x.dtype)
    return y, lambda g: (g * y,)


@wrong()
@differentiable
def half_for_single(x):
    """Sigmoid computed in float16 for float32 [dtype]."""
    y = 0.5 * (1 + np.tanh(x / 2))
    slope = y * (1 - y)
    if x.dtype == np.float32:
        slope = slope.astype(np.float16).astype(x.dtype)
    return y, lambda g: (g * slope,)


@wrong()
@differentiable
def half_sum(x):
    """Mean of each row of float32, summed in float16 [dtype]."""
    y = x.mean(axis=-1, dtype=np.float16 if x.dtype == np.float32 else None).astype(x.dtype)
    return y, lambda g: (np.broadcast_to(g[..., None] / x.shape[-1], x.shape).astype(x.dtype),)


@wrong()
@differentiable
def double_out(x):
    """Columns weighted by a float64 array: float32 becomes float64 [dtype]."""
    w = np.linspace(0.5, 1.5, x.shape[-1])
    return x * w, lambda g: ((g * w).astype(x.dtype),)


@wrong()
@differentiable
def single_out(x):
    """ReLU that returns float32 for any dtype [dtype]."""
    return np.maximum(x, 0).astype(np.float32), lambda g: ((g * (x > 0)).astype(x.dtype),)


@wrong()
@differentiable
def double_gradient(x):
    """Leaky ReLU; the gradient is float64 for float32 [dtype]."""
    return np.where(x > 0, x, x * 0.1), lambda g: (g * np.where(x > 0, 1.0, 0.1),)


@wrong()
@differentiable
def guard_of_double(x):
    """x divided by its norm, with an epsilon that is 0 in float32 [dtype]."""
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True) + x.dtype.type(1e-60))
    safe = np.where(length == 0, 1, length).astype(x.dtype)
    y = x / safe

    def vjp(g):
        return ((g - y * (g * y).sum(axis=-1, keepdims=True)) / length,)

    return y, vjp


@wrong()
@differentiable
def scaled_to_half(x):
    """sin; the gradient is rounded to float16, whose maximum is 65504 [dtype]."""

    def vjp(g):
        return ((g * np.cos(x)).astype(np.float16).astype(x.dtype),)

    return np.sin(x), vjp


# Layers, for many rows and steps


@differentiable
def linear_in_blocks(x, w):
    def vjp(g):
        for i in range(0, len(x), 1024):
            gw = x[i : i + 1024].T @ g[i : i + 1024]
        return g @ w.T, gw

    return x @ w, vjp


@wrong()
class WeightsOfTheLastBlock(Module):
    """Linear map; the weight gradient is that of the last block of 1024 rows [blocks]."""

    def __init__(self, n):
        self.w = weights(n, 4)

    def forward(self, x):
        return linear_in_blocks(x, self.w)


@differentiable
def scaled_in_blocks(x, gain):
    def vjp(g):
        sums = np.zeros_like(gain)
        for i in range(0, len(x), 64):
            sums[...] = (g[i : i + 64] * x[i : i + 64]).sum(axis=0)
        return g * gain, sums

    return x * gain, vjp


@wrong()
class GainOfTheLastBlock(Module):
    """Columns times a gain, whose gradient sum restarts every 64 rows [blocks]."""

    def __init__(self, n):
        self.gain = Parameter(np.ones(n))

    def forward(self, x):
        return scaled_in_blocks(x, self.gain)


@differentiable
def recurrent(x, w, u):
    h = [np.zeros((len(x), len(u)), x.dtype)]
    for t in range(x.shape[1]):
        h.append(np.tanh(x[:, t] @ w + h[-1] @ u))

    def vjp(g):
        gx, gw, gu = np.zeros_like(x), np.zeros_like(w), np.zeros_like(u)
        for t in range(x.shape[1]):
            gh = g[:, t]
            for s in range(t, max(-1, t - 16), -1):
                gz = gh * (1 - h[s + 1] ** 2)
                gx[:, s] += gz @ w.T
                gw += x[:, s].T @ gz
                gu += h[s].T @ gz
                gh = gz @ u.T
        return gx, gw, gu

    return np.stack(h[1:], axis=1), vjp


@wrong((2, 5, 3))
class TruncatedRNN(Module):
    """Recurrent layer; the gradient is truncated to 16 steps [blocks]."""

    def __init__(self, n):
        self.w, self.u = weights(n, 3), Parameter(np.eye(3))

    def forward(self, x):
        return recurrent(x, self.w, self.u)


@wrong((2, 5, 3))
class TruncatedComposed(Module):
    """Recurrent layer that detaches its state every 32 steps [blocks]."""

    def __init__(self, n):
        self.w, self.u = weights(n, 3), Parameter(np.eye(3))

    def forward(self, x):
        h, steps = Tensor(np.zeros((len(x), 3), x.dtype)), []
        for t in range(x.shape[1]):
            h = ops.tanh(x[:, t] @ self.w + (h if t % 32 else h.detach()) @ self.u)
            steps.append(h)
        return ops.stack(*steps, axis=1)
