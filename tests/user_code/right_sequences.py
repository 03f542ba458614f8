"""Correct sequence and image layers of first-time users: recurrent, convolution, pooling, attention."""

import numpy as np

import models
from autograd import Tensor, differentiable
from autograd import operations as ops
from models import Linear, Module, Parameter
from tests.user_code.base import right, weights
from tests.user_code.right import softmax

# Recurrent


@right((2, 5, 3))
class RNN(Module):
    """tanh(x W + h U + b), step by step [recurrent]."""

    def __init__(self, n, hidden=4):
        self.w, self.u, self.b = weights(n, hidden), weights(hidden, hidden), Parameter(np.zeros(hidden))

    def forward(self, x):  # (B, T, D)
        h, steps = Tensor(np.zeros((len(x), self.u.shape[0]), x.dtype)), []
        for t in range(x.shape[1]):
            h = ops.tanh(x[:, t] @ self.w + h @ self.u + self.b)
            steps.append(h)
        return ops.stack(*steps, axis=1)


@right((2, 5, 3))
class GRU(Module):
    """Gated recurrent unit; returns its last state [recurrent]."""

    def __init__(self, n, hidden=4):
        self.gates, self.new, self.u = Linear(n + hidden, 2 * hidden), Linear(n, hidden), weights(hidden, hidden)
        self.hidden = hidden

    def forward(self, x):
        h = Tensor(np.zeros((len(x), self.hidden), x.dtype))
        for t in range(x.shape[1]):
            both = ops.sigmoid(self.gates(ops.concatenate(x[:, t], h, axis=-1)))
            reset, update = both[:, : self.hidden], both[:, self.hidden :]
            new = ops.tanh(self.new(x[:, t]) + reset * (h @ self.u))
            h = update * h + (1 - update) * new
        return h


@right((2, 5, 3))
class LSTM(Module):
    """Long short-term memory [recurrent]."""

    def __init__(self, n, hidden=3):
        self.cell, self.hidden = Linear(n + hidden, 4 * hidden), hidden

    def forward(self, x):
        n = self.hidden
        h = c = Tensor(np.zeros((len(x), n), x.dtype))
        steps = []
        for t in range(x.shape[1]):
            z = self.cell(ops.concatenate(x[:, t], h, axis=-1))
            i, f, o = (ops.sigmoid(z[:, k * n : (k + 1) * n]) for k in range(3))
            c = f * c + i * ops.tanh(z[:, 3 * n :])
            h = o * ops.tanh(c)
            steps.append(h)
        return ops.stack(*steps, axis=1)


# Convolution and pooling


@right((2, 7, 3))
class Convolution(Module):
    """Convolution of width 3 along the steps, with windows by indexing [convolution]."""

    def __init__(self, n):
        self.w, self.b = weights(3 * n, 4), Parameter(np.zeros(4))

    def forward(self, x):
        windows = np.arange(x.shape[1] - 2)[:, None] + np.arange(3)
        return x[:, windows].reshape(x.shape[0], len(windows), -1) @ self.w + self.b


@differentiable
def strided_convolution(x, w):
    """x (B, T, C); w (3, C, O); stride 2."""
    n = (x.shape[1] - 3) // 2 + 1
    y = sum(x[:, k : k + 2 * n - 1 : 2] @ w[k] for k in range(3))

    def vjp(g):
        gx, gw = np.zeros_like(x), np.empty_like(w)
        for k in range(3):
            gx[:, k : k + 2 * n - 1 : 2] += g @ w[k].T
            gw[k] = np.einsum("btc,bto->co", x[:, k : k + 2 * n - 1 : 2], g)
        return gx, gw

    return y, vjp


@right((2, 7, 3))
class StridedConvolution(Module):
    """Convolution along the steps with stride 2 and a hand-written gradient [convolution]."""

    def __init__(self, n):
        self.w = weights(3, n, 4)

    def forward(self, x):
        return strided_convolution(x, self.w)


@differentiable
def convolution_2d(x, w):
    """x (B, C, H, W); w (O, C, 3, 3); zero padding."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    columns = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))  # (B, C, H, W, 3, 3)

    def vjp(g):
        gw = np.einsum("bchwij,bohw->ocij", columns, g)
        gp = np.zeros_like(padded)
        for i in range(3):
            for j in range(3):
                gp[:, :, i : i + x.shape[2], j : j + x.shape[3]] += np.einsum("bohw,oc->bchw", g, w[:, :, i, j])
        return gp[:, :, 1:-1, 1:-1], gw

    return np.einsum("bchwij,ocij->bohw", columns, w), vjp


@right((2, 2, 4, 5), build=lambda x: Convolution2D(x.shape[1]))
class Convolution2D(Module):
    """3 x 3 convolution by im2col with a hand-written gradient [convolution]."""

    def __init__(self, n):
        self.w, self.b = weights(3, n, 3, 3), Parameter(np.zeros((3, 1, 1)))

    def forward(self, x):
        return convolution_2d(x, self.w) + self.b


@right((2, 6, 3))
class DepthwiseConvolution(Module):
    """Causal depthwise convolution [convolution]."""

    def __init__(self, n):
        self.w = weights(3, n)

    def forward(self, x):
        before = Tensor(np.zeros((x.shape[0], 2, x.shape[2]), x.dtype))
        padded, t = ops.concatenate(before, x, axis=1), x.shape[1]
        return padded[:, :t] * self.w[0] + padded[:, 1 : t + 1] * self.w[1] + x * self.w[2]


@right((2, 6, 3))
def max_pool(x):
    """Maximum of each pair of steps; an odd last step is dropped [pooling]."""
    n = x.shape[1] // 2
    return x[:, : 2 * n].reshape(x.shape[0], n, 2, x.shape[2]).max(axis=2)


@right((2, 2, 4, 6), fixed=True)
@differentiable
def max_pool_2d(x):
    """2 x 2 max pooling by argmax with a hand-written gradient [pooling]."""
    b, c, h, w = x.shape
    tiles = x.reshape(b, c, h // 2, 2, w // 2, 2).swapaxes(3, 4).reshape(b, c, h // 2, w // 2, 4)
    where = tiles.argmax(axis=-1)[..., None]

    def vjp(g):
        gx = np.zeros(tiles.shape, x.dtype)
        np.put_along_axis(gx, where, g[..., None], axis=-1)
        return (gx.reshape(b, c, h // 2, w // 2, 2, 2).swapaxes(3, 4).reshape(x.shape),)

    return np.take_along_axis(tiles, where, axis=-1)[..., 0], vjp


@right((2, 2, 4, 6), fixed=True)
def average_pool_2d(x):
    """2 x 2 average pooling [pooling]."""
    b, c, h, w = x.shape
    return x.reshape(b, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5))


# Attention


@right((2, 5, 4))
class Attention(Module):
    """Single-head attention softmax(q k^T / sqrt(D)) v [attention]."""

    def __init__(self, n):
        self.q, self.k, self.v = weights(n, n), weights(n, n), weights(n, n)

    def forward(self, x):
        scores = (x @ self.q) @ (x @ self.k).swapaxes(-1, -2) * x.shape[-1] ** -0.5
        return softmax(scores) @ (x @ self.v)


@right((2, 5, 4))
class CausalAttention(Module):
    """Causal attention [attention]."""

    def __init__(self, n):
        self.qkv, self.n = Linear(n, (n, n, n)), n

    def forward(self, x):
        z, n = self.qkv(x), self.n
        scores = z[..., :n] @ z[..., n : 2 * n].swapaxes(-1, -2) * n**-0.5
        seen = np.tril(np.ones((x.shape[1], x.shape[1]), bool))
        return softmax(ops.where(seen, scores, -1e9)) @ z[..., 2 * n :]


@right((2, 5, 4), fixed=True)
class LibraryAttention(Module):
    """models.SelfAttention with two heads and defaults, and layer norm [attention]."""

    def __init__(self, n):
        self.attention, self.norm = models.SelfAttention(n, 2), models.LayerNorm(n)

    def forward(self, x):
        return x + self.attention(self.norm(x))


@right((2, 5, 4))
class AttentionPooling(Module):
    """Attention pooling with a learned query [attention]."""

    def __init__(self, n):
        self.query = weights(n)

    def forward(self, x):
        return (x * softmax(x @ self.query).reshape(*x.shape[:2], 1)).sum(axis=1)
