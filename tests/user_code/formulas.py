"""Thirty functions with a hand-written gradient, each with a right and a wrong backward pass.

Each is written once over the namespace `xp` of NumPy, PyTorch or JAX, whose names agree. `forward` returns
(out, cache); `right(g, cache)` and `wrong(g, cache)` return the gradients of the inputs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Formula:
    """A function by name: `build(xp)` returns forward, right and wrong; `shapes` of the inputs, "ids" for integers."""

    name: str
    shapes: tuple[Any, ...]
    build: Callable[[Any], tuple[Any, Any, Any]]

    def inputs(self, seed: int) -> list[Any]:
        """Return plain inputs: standard normal numbers, with other lengths for seeds above 0."""
        rng = np.random.default_rng(seed)
        longer = {n: n if not seed or n in (2, 8) else n + int(rng.integers(0, 3)) for n in range(1, 9)}
        longer[6] += longer[6] % 2  # pairs of steps, halves of features
        made = []
        for shape in self.shapes:
            if isinstance(shape, int):  # integers below 4, one per row
                made.append(rng.integers(0, 4, size=longer[shape]))
            else:
                made.append(rng.normal(size=tuple(longer[n] for n in shape)))
        return made


FORMULAS: list[Formula] = []


def formula(*shapes: Any) -> Callable[[Any], Any]:
    def register(build: Any) -> Any:
        FORMULAS.append(Formula(build.__name__, shapes, build))
        return build

    return register


def total(x: Any) -> Any:
    return x.sum(axis=-1, keepdims=True)


def mean(x: Any) -> Any:
    return total(x) / x.shape[-1]


def sigmoid(xp: Any, x: Any) -> Any:
    return xp.where(x >= 0, 1 / (1 + xp.exp(-xp.abs(x))), 1 - 1 / (1 + xp.exp(-xp.abs(x))))


def softmaxed(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.amax(x, axis=-1, keepdims=True))
    return e / total(e)


# Activations


@formula((4, 6))
def softmax(xp):
    def forward(x):
        y = softmaxed(xp, x)
        return y, y

    return forward, lambda g, y: y * (g - total(g * y)), lambda g, y: g * y * (1 - y)


@formula((4, 6))
def log_softmax(xp):
    def forward(x):
        shifted = x - xp.amax(x, axis=-1, keepdims=True)
        y = shifted - xp.log(total(xp.exp(shifted)))
        return y, y

    return forward, lambda g, y: g - xp.exp(y) * total(g), lambda g, y: g - xp.exp(y) * g


@formula((4, 6))
def logistic(xp):
    def forward(x):
        y = sigmoid(xp, x)
        return y, y

    return forward, lambda g, y: g * y * (1 - y), lambda g, y: g * y * (1 + y)


@formula((4, 6))
def hyperbolic_tangent(xp):
    def forward(x):
        y = xp.tanh(x)
        return y, y

    return forward, lambda g, y: g * (1 - y * y), lambda g, y: g * (1 - y)


@formula((4, 6))
def relu(xp):
    def forward(x):
        return xp.where(x > 0, x, 0 * x), x

    return forward, lambda g, x: xp.where(x > 0, g, 0 * g), lambda g, x: xp.where((x > 0) & (g > 0), g, 0 * g)


@formula((4, 6))
def leaky_relu(xp):
    def forward(x):
        return xp.where(x > 0, x, 0.1 * x), x

    return forward, lambda g, x: xp.where(x > 0, g, 0.1 * g), lambda g, x: xp.where(x > 0, g, 0 * g)


@formula((4, 6))
def gelu(xp):
    a = math.sqrt(2 / math.pi)

    def forward(x):
        t = xp.tanh(a * (x + 0.044715 * x * x * x))
        return 0.5 * x * (1 + t), (x, t)

    def right(g, cache):
        x, t = cache
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * 0.044715 * x * x))

    def wrong(g, cache):
        x, t = cache
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 0.044715 * x * x))

    return forward, right, wrong


@formula((4, 6))
def swish(xp):
    def forward(x):
        s = sigmoid(xp, x)
        return x * s, (x, s)

    def right(g, cache):
        x, s = cache
        return g * (s + x * s * (1 - s))

    return forward, right, lambda g, cache: g * (cache[1] + cache[0] * (1 - cache[1]))


@formula((4, 6))
def gated_linear_unit(xp):
    def forward(x):
        if x.shape[-1] % 2:
            raise ValueError("expected an even number of features")
        n = x.shape[-1] // 2
        a, s = x[..., :n], sigmoid(xp, x[..., n:])
        return a * s, (a, s)

    def right(g, cache):
        a, s = cache
        return xp.concatenate([g * s, g * a * s * (1 - s)], axis=-1)

    def wrong(g, cache):
        a, s = cache
        return xp.concatenate([g * a * s * (1 - s), g * s], axis=-1)

    return forward, right, wrong


@formula((4, 6))
def clip_values(xp):
    def forward(x):
        return xp.clip(x, -1, 1), x

    return (
        forward,
        lambda g, x: xp.where(xp.abs(x) < 1, g, 0 * g),
        lambda g, x: xp.where(x < 1, g, 0 * g),
    )


# Norms


def standardized(xp: Any, x: Any) -> Any:
    centered = x - mean(x)
    scale = xp.sqrt(mean(centered * centered) + 1e-5)
    return centered / scale, scale


@formula((4, 6), (6,), (6,))
def layer_norm(xp):
    def forward(x, gain, bias):
        z, scale = standardized(xp, x)
        return z * gain + bias, (z, scale, gain)

    def right(g, cache):
        z, scale, gain = cache
        h = g * gain
        return (h - mean(h) - z * mean(h * z)) / scale, (g * z).sum(axis=0), g.sum(axis=0)

    def wrong(g, cache):
        z, scale, gain = cache
        h = g * gain
        return (h - z * mean(h * z)) / scale, (g * z).sum(axis=0), g.sum(axis=0)

    return forward, right, wrong


@formula((4, 6), (6,))
def rms_norm(xp):
    def forward(x, gain):
        r = xp.sqrt(mean(x * x) + 1e-5)
        return x / r * gain, (x, gain, r)

    def right(g, cache):
        x, gain, r = cache
        h = g * gain
        return h / r - x * mean(h * x) / (r * r * r), (g * x / r).sum(axis=0)

    def wrong(g, cache):
        x, gain, r = cache
        return g / r - x * mean(g * x) / (r * r * r), (g * x / r).sum(axis=0)

    return forward, right, wrong


@formula((4, 6))
def batch_norm(xp):
    def forward(x):
        z, scale = standardized(xp, x.T)
        return z.T, (z, scale)

    def right(g, cache):
        z, scale = cache
        return ((g.T - mean(g.T) - z * mean(g.T * z)) / scale).T

    return forward, right, lambda g, cache: ((g.T - mean(g.T)) / cache[1]).T


@formula((4, 6))
def unit_length(xp):
    def forward(x):
        n = xp.sqrt(total(x * x) + 1e-6)
        return x / n, (x, n)

    def right(g, cache):
        x, n = cache
        return g / n - x * total(g * x) / (n * n * n)

    return forward, right, lambda g, cache: g / cache[1]


# Products


@formula((4, 6), (6, 5), (5,))
def affine(xp):
    def forward(x, w, b):
        return x @ w + b, (x, w)

    def right(g, cache):
        x, w = cache
        return g @ w.T, x.T @ g, g.sum(axis=0)

    return forward, right, lambda g, cache: (g @ cache[1].T, cache[0].T @ g, g.sum(axis=0) / g.shape[0])


@formula((4, 8), (5, 8), (5, 6))
def attention(xp):
    scale = 8**-0.5

    def forward(q, k, v):
        p = softmaxed(xp, q @ k.T * scale)
        return p @ v, (q, k, v, p)

    def gradients(g, cache, scale_of_k):
        q, k, v, p = cache
        gp = g @ v.T
        gs = p * (gp - total(gp * p))
        return gs @ k * scale, gs.T @ q * scale_of_k, p.T @ g

    return forward, lambda g, cache: gradients(g, cache, scale), lambda g, cache: gradients(g, cache, 1.0)


@formula((4, 6), (6,))
def gate(xp):
    def forward(x, w):
        s = sigmoid(xp, w)
        return x * s, (x, s)

    def right(g, cache):
        x, s = cache
        return g * s, (g * x * s * (1 - s)).sum(axis=0)

    return forward, right, lambda g, cache: (g * cache[1], (g * cache[0] * cache[1]).sum(axis=0))


@formula((4, 6), (4, 6))
def cosine_similarity(xp):
    def forward(x, y):
        nx, ny = xp.sqrt(total(x * x) + 1e-6), xp.sqrt(total(y * y) + 1e-6)
        return (total(x * y) / (nx * ny))[..., 0], (x, y, nx, ny)

    def right(g, cache):
        x, y, nx, ny = cache
        c = total(x * y) / (nx * ny)
        return g[..., None] * (y / (nx * ny) - c * x / (nx * nx)), g[..., None] * (x / (nx * ny) - c * y / (ny * ny))

    def wrong(g, cache):
        x, y, nx, ny = cache
        c = total(x * y) / (nx * ny)
        return g[..., None] * (y / (nx * ny) - c * x / (nx * nx)), g[..., None] * x / (nx * ny)

    return forward, right, wrong


# Losses


@formula((4, 6), 4)
def cross_entropy(xp):
    def forward(x, ids):
        p = softmaxed(xp, x)
        chosen = xp.where(ids[:, None] == xp.arange(x.shape[1])[None, :], 1.0 + 0 * x, 0 * x)
        shifted = x - xp.amax(x, axis=-1, keepdims=True)
        loss = chosen * (xp.log(total(xp.exp(shifted))) - shifted)  # 0 for an id that is no column
        return loss.sum() / x.shape[0], (p * total(chosen), chosen)

    def right(g, cache):
        p, chosen = cache
        return g * (p - chosen) / p.shape[0], None

    return forward, right, lambda g, cache: (g * (cache[0] - cache[1]), None)


@formula((4, 6), (4, 6))
def squared_error(xp):
    def forward(x, y):
        d = x - y
        return (d * d).sum() / d.shape[0], d

    return forward, lambda g, d: (2 * g * d / d.shape[0], -2 * g * d / d.shape[0]), lambda g, d: (g * d, -g * d)


@formula((4, 6))
def huber(xp):
    def forward(x):
        return xp.where(xp.abs(x) < 1, 0.5 * x * x, xp.abs(x) - 0.5), x

    return (
        forward,
        lambda g, x: g * xp.clip(x, -1, 1),
        lambda g, x: g * xp.where(xp.abs(x) < 1, x, 1 + 0 * x),
    )


@formula((4, 6))
def softplus(xp):
    def forward(x):
        return xp.where(x > 0, x, 0 * x) + xp.log1p(xp.exp(-xp.abs(x))), x

    return forward, lambda g, x: g * sigmoid(xp, x), lambda g, x: g * sigmoid(xp, -x)


@formula((4, 6))
def log_sum_exp(xp):
    def forward(x):
        top = xp.amax(x, axis=-1, keepdims=True)
        return (top + xp.log(total(xp.exp(x - top))))[..., 0], x

    return forward, lambda g, x: g[..., None] * softmaxed(xp, x), lambda g, x: g[..., None] * xp.exp(x) / 10


@formula((4, 6), (4, 6))
def triplet_margin(xp):
    def forward(x, y):
        d = 1 + total((x - y) * (x - y))[..., 0] - total((x + y) * (x + y))[..., 0]
        return xp.where(d > 0, d, 0 * d), (x, y, d)

    def right(g, cache):
        x, y, d = cache
        h = xp.where(d > 0, g, 0 * g)[..., None]
        return -4 * h * y, -4 * h * x

    def wrong(g, cache):
        x, y, d = cache
        return -4 * g[..., None] * y, -4 * g[..., None] * x

    return forward, right, wrong


# Scans, convolutions, pooling, gathers


@formula((4, 6))
def cumulative_sum(xp):
    def forward(x):
        return xp.cumsum(x, 0), x

    def right(g, x):
        return g.sum(axis=0) - xp.cumsum(g, 0) + g

    return forward, right, lambda g, x: xp.cumsum(g, 0)


@formula((4, 6))
def moving_average(xp):
    def forward(x):
        h, rows = 0 * x[:1], []
        for t in range(x.shape[0]):
            h = 0.9 * h + 0.1 * x[t : t + 1]
            rows.append(h)
        return xp.concatenate(rows, axis=0) if rows else x, x

    def scan(g, decay):
        h, rows = 0 * g[:1], []
        for t in reversed(range(g.shape[0])):
            h = decay * h + g[t : t + 1]
            rows.append(0.1 * h)
        return xp.concatenate(rows[::-1], axis=0) if rows else g

    return forward, lambda g, x: scan(g, 0.9), lambda g, x: scan(g, 0.0)


@formula((6, 5))
def convolution(xp):
    def shifted(x, k):
        zeros = 0 * x[:1]
        return xp.concatenate([x[1:], zeros], axis=0) if k > 0 else xp.concatenate([zeros, x[:-1]], axis=0)

    def forward(x):
        return 0.5 * shifted(x, -1) + 0.3 * x + 0.2 * shifted(x, 1), x

    return (
        forward,
        lambda g, x: 0.5 * shifted(g, 1) + 0.3 * g + 0.2 * shifted(g, -1),
        lambda g, x: 0.5 * shifted(g, -1) + 0.3 * g + 0.2 * shifted(g, 1),
    )


@formula((4, 6))
def average_pool(xp):
    def forward(x):
        n = x.shape[-1] // 2
        return (x[..., 0 : 2 * n : 2] + x[..., 1 : 2 * n : 2]) / 2, x

    def spread_out(g, x, factor):
        n = x.shape[-1] // 2
        both = xp.stack([g, g], axis=-1).reshape((*g.shape[:-1], 2 * n))
        return xp.concatenate([both * factor, 0 * x[..., 2 * n :]], axis=-1)

    return forward, lambda g, x: spread_out(g, x, 0.5), lambda g, x: spread_out(g, x, 1.0)


@formula((4, 6))
def max_pool(xp):
    def forward(x):
        n = x.shape[-1] // 2
        a, b = x[..., 0 : 2 * n : 2], x[..., 1 : 2 * n : 2]
        return xp.where(a >= b, a, b), (x, a, b)

    def gradient(g, cache, left):
        x, a, b = cache
        pair = xp.stack([g * left, g * (1 - left)], axis=-1).reshape((*g.shape[:-1], 2 * g.shape[-1]))
        return xp.concatenate([pair, 0 * x[..., 2 * g.shape[-1] :]], axis=-1)

    return (
        forward,
        lambda g, cache: gradient(g, cache, xp.where(cache[1] >= cache[2], 1.0 + 0 * g, 0 * g)),
        lambda g, cache: gradient(g, cache, 0.5 + 0 * g),
    )


@formula((4, 6), 5)
def embedding(xp):
    def forward(table, ids):
        hot = ids[:, None] == xp.arange(table.shape[0])[None, :]
        return xp.where(hot, 1.0 + 0 * table[:1, :1], 0 * table[:1, :1]) @ table, (table, hot)

    def gradient(g, table, hot):
        return xp.where(hot, 1.0 + 0 * table[:1, :1], 0 * table[:1, :1]).T @ g

    def wrong(g, cache):
        table, hot = cache
        later = xp.cumsum(xp.where(hot, 1, 0), 0)
        return gradient(g, table, hot & (later == 1)), None  # the first of several equal ids wins

    return forward, lambda g, cache: (gradient(g, *cache), None), wrong


@formula((4, 6))
def straight_absolute(xp):
    def forward(x):
        return xp.abs(x), x

    return forward, lambda g, x: g * xp.sign(x), lambda g, x: g


@formula((4, 6), (4, 6))
def interpolation(xp):
    def forward(x, y):
        s = sigmoid(xp, x)
        return s * x + (1 - s) * y, (x, y, s)

    def right(g, cache):
        x, y, s = cache
        return g * (s + s * (1 - s) * (x - y)), g * (1 - s)

    return forward, right, lambda g, cache: (g * cache[2], g * (1 - cache[2]))
