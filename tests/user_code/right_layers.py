"""Correct layers of first-time users: normalization, buffers, random numbers from various generators."""

import random

import numpy as np

import models
import npx
from autograd import Tensor, differentiable
from autograd import operations as ops
from models import Linear, Module, Parameter
from tests.user_code.base import right, weights
from tests.user_code.right import log_softmax
from tests.user_code.right_arrays import unit_length

# Normalization


@right()
class BatchNorm(Module):
    """Batch norm: batch statistics in training, running statistics in evaluation [normalization]."""

    def __init__(self, n):
        self.gain, self.bias = Parameter(np.ones(n, "float32")), Parameter(np.zeros(n, "float32"))
        self.mean, self.var = np.zeros(n), np.ones(n)

    def forward(self, x):
        if self.training:
            mean = x.mean(axis=0)
            centered = x - mean
            var = (centered * centered).mean(axis=0)
            self.mean = 0.9 * self.mean + 0.1 * mean.data
            self.var = 0.9 * self.var + 0.1 * var.data
        else:
            centered, var = x - self.mean.astype(x.dtype), Tensor(self.var.astype(x.dtype))
        return centered / ops.sqrt(var + 1e-5) * self.gain + self.bias


@differentiable
def batch_norm(x, gain, bias, eps=1e-5):
    """x (R, D); gain, bias (D,)."""
    mean, scale = x.mean(axis=0), 1 / np.sqrt(x.var(axis=0) + eps)
    z = (x - mean) * scale

    def vjp(g):
        h = g * gain
        return scale * (h - h.mean(axis=0) - z * (h * z).mean(axis=0)), (g * z).sum(axis=0), g.sum(axis=0)

    return z * gain + bias, vjp


@right()
class BatchNormByHand(Module):
    """Batch norm with a hand-written gradient; running statistics updated in place [normalization]."""

    def __init__(self, n):
        self.gain, self.bias = Parameter(np.ones(n)), Parameter(np.zeros(n))
        self.mean, self.var = np.zeros(n, "float32"), np.ones(n, "float32")

    def forward(self, x):
        if not self.training:
            scale = (1 / np.sqrt(self.var + 1e-5)).astype(x.dtype)
            return (x - self.mean.astype(x.dtype)) * scale * self.gain + self.bias
        self.mean += 0.1 * (x.data.mean(axis=0) - self.mean)
        self.var += 0.1 * (x.data.var(axis=0) - self.var)
        return batch_norm(x, self.gain, self.bias)


@right((2, 5, 3))
class LayerNorm(Module):
    """Layer norm composed of elementary operations [normalization]."""

    def __init__(self, n):
        self.gain, self.bias = Parameter(np.ones(n)), Parameter(np.zeros(n))

    def forward(self, x):
        centered = x - x.mean(axis=-1, keepdims=True)
        return centered / ops.sqrt((centered * centered).mean(axis=-1, keepdims=True) + 1e-5) * self.gain + self.bias


@right((2, 5, 3))
class RMSNorm(Module):
    """gain x / sqrt(mean(x^2) + eps) [normalization]."""

    def __init__(self, n):
        self.gain = Parameter(np.ones(n))

    def forward(self, x):
        return x / ops.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * self.gain


@right((2, 4, 6), fixed=True)
class GroupNorm(Module):
    """Group norm with two groups of channels [normalization]."""

    def __init__(self, n):
        self.gain, self.bias = Parameter(np.ones(n)), Parameter(np.zeros(n))

    def forward(self, x):  # (B, T, C)
        y = x.reshape(x.shape[0], x.shape[1], 2, -1)
        centered = y - y.mean(axis=(1, 3), keepdims=True)
        y = centered / ops.sqrt((centered * centered).mean(axis=(1, 3), keepdims=True) + 1e-5)
        return y.reshape(x.shape) * self.gain + self.bias


@right((2, 5, 3))
class InstanceNorm(Module):
    """Instance norm: each channel of each example over its positions [normalization]."""

    def __init__(self, n):
        self.gain = Parameter(np.ones(n))

    def forward(self, x):
        centered = x - x.mean(axis=1, keepdims=True)
        return centered / ops.sqrt((centered * centered).mean(axis=1, keepdims=True) + 1e-5) * self.gain


@right()
class WeightNorm(Module):
    """Weight norm: a linear map whose columns have learned norms [normalization]."""

    def __init__(self, n):
        self.v, self.length = weights(n, 5), Parameter(np.ones(5))

    def forward(self, x):
        return x @ (self.v / ops.sqrt((self.v * self.v).sum(axis=0) + 1e-12) * self.length)


@right()
class SpectralNorm(Module):
    """Spectral norm: a matrix divided by its largest singular value, by power iteration across calls [buffers]."""

    def __init__(self, n):
        self.w, self.u = weights(n, 5), np.ones(n) / n**0.5

    def forward(self, x):
        u = self.u.astype(x.dtype)
        v = u @ self.w.data
        v = v / (np.linalg.norm(v) + 1e-6)
        if self.training:
            after = self.w.data @ v
            self.u = after / (np.linalg.norm(after) + 1e-6)
        v = v.astype(x.dtype)
        return x @ (self.w / (ops.sqrt((u @ self.w * v).sum() ** 2 + 1e-6)))


# Buffers that training uses as well


@right()
class Centered(Module):
    """x minus the running mean of earlier batches, in training too [buffers]."""

    def __init__(self, n):
        self.mean = np.zeros(n)

    def forward(self, x):
        y = x - self.mean.astype(x.dtype)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.data.mean(axis=0)
        return y


@right()
class AverageOfWeights(Module):
    """Linear map; evaluation uses the exponential moving average of its weights [buffers]."""

    def __init__(self, n):
        self.w = weights(n, 4)
        self.average = self.w.data.copy()

    def forward(self, x):
        if not self.training:
            return x @ Tensor(self.average.astype(x.dtype))
        self.average = 0.9 * self.average + 0.1 * self.w.data
        return x @ self.w


@right()
class WarmUp(Module):
    """A scale that increases over the first ten training calls [buffers]."""

    def __init__(self, n):
        self.calls, self.linear = 0, Linear(n, n)

    def forward(self, x):
        self.calls += self.training
        return x + self.linear(x) * min(1.0, self.calls / 10)


@right()
class MemoryBank(Module):
    """Similarity of a batch to the keys of the previous batch [buffers]."""

    def __init__(self, n):
        self.w, self.keys = weights(n, 4), np.eye(4)

    def forward(self, x):
        q = unit_length(x @ self.w)
        y = log_softmax(q @ Tensor(self.keys.T.astype(x.dtype)) * 5)
        self.keys = q.data.copy()
        return y.mean(axis=-1)


@right((2, 5, 3))
class StatefulRNN(Module):
    """Recurrent layer that continues from the state of the previous batch [buffers]."""

    def __init__(self, n):
        self.w, self.u, self.h = weights(n, 4), weights(4, 4), None

    def forward(self, x):
        h = self.h
        if h is None or len(h) != len(x):
            h = np.zeros((len(x), 4))
        h, steps = Tensor(h.astype(x.dtype)), []
        for t in range(x.shape[1]):
            h = ops.tanh(x[:, t] @ self.w + h @ self.u)
            steps.append(h)
        self.h = h.data
        return ops.stack(*steps, axis=1)


@right((2, 5, 3))
class Positions(Module):
    """Sinusoidal positions from a table that grows on demand [buffers]."""

    def __init__(self, n):
        self.table = np.zeros((0, n))

    def forward(self, x):
        length, n = x.shape[1:]
        if length > len(self.table):
            angle = np.arange(length)[:, None] / 10_000 ** (np.arange(n) // 2 * 2 / n)
            self.table = np.where(np.arange(n) % 2, np.cos(angle), np.sin(angle))
        return x + self.table[:length].astype(x.dtype)


@right()
class Lazy(Module):
    """Linear map whose weights are created at the first call [buffers]."""

    def __init__(self, n):
        self.w = None

    def forward(self, x):
        if self.w is None:
            self.w = Parameter((np.eye(x.shape[-1])[:, :3] + 0.1).astype(x.dtype))
        return x @ self.w


@right()
class Merged(Module):
    """Product of two matrices, merged in evaluation and separate in training [modes]."""

    def __init__(self, n):
        self.a, self.b, self.merged = weights(n, 2), weights(2, n), None

    def train(self, mode=True):
        self.merged = None if mode else self.a.data @ self.b.data
        return super().train(mode)

    def forward(self, x):
        return x @ self.a @ self.b if self.merged is None else x @ Tensor(self.merged.astype(x.dtype))


# Random numbers


@right()
class KeyedDropout(Module):
    """Dropout by npx.random [random]."""

    def __init__(self, n):
        self.linear = Linear(n, 4)

    def forward(self, x):
        y = self.linear(x)
        if not self.training:
            return y
        keep = npx.random.uniform(npx.next_key(), y.shape) >= 0.3
        return y * (keep / 0.7).astype(x.dtype)


@right()
class LibraryDropout(Module):
    """models.Dropout between two linear maps [random]."""

    def __init__(self, n):
        self.first, self.dropout, self.second = Linear(n, 8, activation="relu"), models.Dropout(0.5), Linear(8, 3)

    def forward(self, x):
        return self.second(self.dropout(self.first(x)))


@right()
class GlobalDropout(Module):
    """Dropout by the global generator of np.random [random]."""

    def __init__(self, n):
        self.w = weights(n, 4)

    def forward(self, x):
        y = x @ self.w
        return y * ((np.random.rand(*y.shape) < 0.8) / 0.8).astype(x.dtype) if self.training else y


@differentiable
def dropped(x, keep):
    return x * keep, lambda g: (g * keep,)


@right()
class OwnDropout(Module):
    """Dropout by a generator of the layer [random]."""

    def __init__(self, n):
        self.w, self.rng = weights(n, 4), np.random.default_rng(0)

    def forward(self, x):
        y = x @ self.w
        return dropped(y, ((self.rng.random(y.shape) < 0.5) * 2).astype(x.dtype)) if self.training else y


@right()
class Noise(Module):
    """Small normal noise in training, by a RandomState of the layer [random]."""

    def __init__(self, n):
        self.state = np.random.RandomState(1)

    def forward(self, x):
        return ops.tanh(x + (0.1 * self.state.randn(*x.shape)).astype(x.dtype)) if self.training else ops.tanh(x)


@right((2, 5, 3))
class StochasticDepth(Module):
    """Stochastic depth: the branch is dropped in half of the calls, by Python's random [random]."""

    def __init__(self, n):
        self.linear = Linear(n, n)

    def forward(self, x):
        if not self.training:
            return x + self.linear(x) * 0.5
        return x + self.linear(x) if random.random() < 0.5 else x


@right()
class Variational(Module):
    """Sample of a normal distribution with learned mean and deviation; the mean in evaluation [random]."""

    def __init__(self, n):
        self.mean, self.log_var = Linear(n, 3), Linear(n, 3)

    def forward(self, x):
        mean = self.mean(x)
        if not self.training:
            return mean
        return mean + ops.exp(self.log_var(x) * 0.5) * np.random.standard_normal(mean.shape).astype(x.dtype)


@right()
class DropConnect(Module):
    """Linear map with dropped weights, by a generator of the layer [random]."""

    def __init__(self, n):
        self.w, self.rng = weights(n, 4), np.random.Generator(np.random.PCG64(3))

    def forward(self, x):
        keep = (self.rng.random(self.w.shape) < 0.7).astype(x.dtype) if self.training else 0.7
        return x @ (self.w * keep)
