"""Correct networks of first-time users and their parts: embeddings, gates, learned activations, tied matrices."""

import math

import numpy as np

from autograd import differentiable
from autograd import operations as ops
from models import Linear, Module, Parameter
from tests.user_code.base import ids, right, weights
from tests.user_code.right import log_softmax, softmax
from tests.user_code.right_layers import LayerNorm

# Embeddings and gates


@right(first=lambda rng, shape: rng.integers(0, 7, size=shape))
class Embedding(Module):
    """Embedding with zero rows for padding (0) [places]."""

    def __init__(self, n):
        self.table = weights(7, 5)

    def forward(self, ids):
        return self.table[ids] * (ids != 0)[..., None].astype(self.table.dtype)


@right((5, 4), second=ids(3))
class Classifier(Module):
    """Two layers and the mean cross entropy [loss]."""

    def __init__(self, n):
        self.first, self.second = Linear(n, 8), Linear(8, 3)

    def forward(self, x, targets):
        log_p = log_softmax(self.second(ops.relu(self.first(x))))
        return -log_p[np.arange(len(targets)), targets].mean()


@right()
class Experts(Module):
    """Mixture of experts: each row goes to the expert with the largest gate, times that gate [gates]."""

    def __init__(self, n):
        self.gate, self.experts = Linear(n, 3), [Linear(n, 4, activation="relu") for _ in range(3)]

    def forward(self, x):
        p = softmax(self.gate(x))
        chosen = (p.data.argmax(axis=-1)[:, None] == np.arange(3)).astype(x.dtype)
        p = p * chosen
        first, second, third = (expert(x) * p[:, i : i + 1] for i, expert in enumerate(self.experts))
        return first + second + third


@right()
class Highway(Module):
    """Highway layer: a gate between x and a transformation of x [gates]."""

    def __init__(self, n):
        self.gate, self.map = Linear(n, n), Linear(n, n)

    def forward(self, x):
        t = ops.sigmoid(self.gate(x) - 1)
        return t * ops.tanh(self.map(x)) + (1 - t) * x


@right()
class GatedLinear(Module):
    """Gated linear unit: one half times the sigmoid of the other [gates]."""

    def __init__(self, n):
        self.map = Linear(n, 8)

    def forward(self, x):
        y = self.map(x)
        return y[..., :4] * ops.sigmoid(y[..., 4:])


@right((2, 5, 4))
class SqueezeExcite(Module):
    """Squeeze and excitation: channels scaled by a gate on their mean over the steps [gates]."""

    def __init__(self, n):
        self.squeeze, self.excite = Linear(n, 2, activation="relu"), Linear(2, n)

    def forward(self, x):
        return x * ops.sigmoid(self.excite(self.squeeze(x.mean(axis=1, keepdims=True))))


@right()
class ReZero(Module):
    """x + alpha f(x) with alpha initialized to 0 [gates]."""

    def __init__(self, n):
        self.alpha, self.f = Parameter(np.zeros(1)), Linear(n, n)

    def forward(self, x):
        return x + ops.tanh(self.f(x)) * self.alpha


@right()
class PReLU(Module):
    """PReLU: learned slope for negative numbers [activation]."""

    def __init__(self, n):
        self.slope = Parameter(np.full(n, 0.25))

    def forward(self, x):
        return ops.maximum(x, 0.0) + ops.minimum(x, 0.0) * self.slope


@right()
class Maxout(Module):
    """Maxout of three linear maps [activation]."""

    def __init__(self, n):
        self.map = Linear(n, 12)

    def forward(self, x):
        return self.map(x).reshape(len(x), 4, 3).max(axis=-1)


@right()
class Temperature(Module):
    """Softmax with a learned temperature, positive by an exponential [positive]."""

    def __init__(self, n):
        self.log_t = Parameter(np.zeros(()))

    def forward(self, x):
        return softmax(x / ops.exp(self.log_t))


@right()
class DirectTemperature(Module):
    """Softmax with a learned temperature, which must not be 0 [positive]."""

    def __init__(self, n):
        self.t = Parameter(np.ones(1))

    def forward(self, x):
        return softmax(x / self.t)


@right()
class Precision(Module):
    """Normal log-likelihood with learned variances, positive by softplus [positive]."""

    def __init__(self, n):
        self.mean, self.raw = Parameter(np.zeros(n)), Parameter(np.zeros(n))

    def forward(self, x):
        var = ops.log(ops.exp(self.raw) + 1) + 1e-3
        d = x - self.mean
        return ((d * d / var + ops.log(var)) * -0.5 - 0.5 * math.log(2 * math.pi)).sum(axis=-1)


@right(first=lambda rng, shape: rng.uniform(0.5, 2, size=shape))
class Exponent(Module):
    """x^p with a learned exponent, for x >= 0 [positive]."""

    def __init__(self, n):
        self.p = Parameter(np.full(n, 2.0))

    def forward(self, x):
        return ops.exp(ops.log(x + 1e-6) * self.p)


@right((5, 4))
class Bilinear(Module):
    """Bilinear form x_i W_k x_i for each k [product]."""

    def __init__(self, n):
        self.w = weights(3, n, n)

    def forward(self, x):
        rows = x.reshape(len(x), 1, 1, -1)
        return (rows @ self.w @ x.reshape(len(x), 1, -1, 1)).reshape(len(x), 3)


@right()
class TiedAutoencoder(Module):
    """Autoencoder that decodes with the transpose of W [tied]."""

    def __init__(self, n):
        self.w, self.b = weights(n, 3), Parameter(np.zeros(n))

    def forward(self, x):
        return ops.tanh(x @ self.w) @ self.w.transpose() + self.b


@right((3, 4), first=lambda rng, shape: rng.integers(1, 6, size=shape))
class TiedLanguageModel(Module):
    """Next-token loss with the embedding tied to the output projection [tied]."""

    def __init__(self, n):
        self.table, self.map = weights(6, 4), Linear(4, 4)

    def forward(self, ids):
        h = ops.tanh(self.map(self.table[ids[:, :-1]]))
        log_p = log_softmax(h @ self.table.transpose())
        one_hot = (ids[:, 1:, None] == np.arange(6)).astype(h.dtype)
        return -(log_p * one_hot).sum() * (1 / max(1, ids[:, 1:].size))


@right()
class DeepNetwork(Module):
    """Four residual layers with layer norm [depth]."""

    def __init__(self, n):
        self.layers, self.norms = [Linear(n, n) for _ in range(4)], [LayerNorm(n) for _ in range(4)]

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + ops.relu(layer(norm(x)))
        return x


@right()
class Sinusoidal(Module):
    """sin(30 (x W + b)), as in image representations [bends]."""

    def __init__(self, n):
        self.map = Linear(n, 5)

    def forward(self, x):
        return sine(self.map(x) * 30)


@differentiable
def sine(x):
    return np.sin(x), lambda g: (g * np.cos(x),)
