"""Activations, norms and products with a right and a wrong gradient; see formula.py."""

import math
from typing import Any

from tests.user_code.formula import formula, mean, sigmoid, softmaxed, total

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
