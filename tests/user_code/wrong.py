"""Wrong functions of first-time users: one wrong formula each, wrong almost everywhere."""

import math

import numpy as np

from autograd import differentiable
from autograd import operations as ops
from tests.user_code.base import ids, wrong

# Formulas


@wrong()
@differentiable
def softmax_diagonal(x):
    """Softmax with only the diagonal of the Jacobian [formula]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (g * y * (1 - y),)


@wrong((2, 5, 3))
@differentiable
def layer_norm_ddof(x):
    """Standardized rows; the gradient uses the deviation with n - 1 [formula]."""
    centered = x - x.mean(axis=-1, keepdims=True)
    z = centered / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)

    def vjp(g):
        scale = 1 / np.sqrt(x.var(axis=-1, keepdims=True, ddof=1) + 1e-5)
        return (scale * (g - g.mean(axis=-1, keepdims=True) - z * (g * z).mean(axis=-1, keepdims=True)),)

    return z, vjp


@wrong()
@differentiable
def unit_length_constant(x):
    """x divided by its norm, which the gradient treats as a constant [formula]."""
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)
    return x / length, lambda g: (g / length,)


@wrong((2, 7, 3))
@differentiable
def convolution_not_flipped(x):
    """Convolution with 0.5, 0.3, 0.2; the gradient does not flip the kernel [formula]."""
    w = (0.5, 0.3, 0.2)

    def along(a):
        padded = np.pad(a, ((0, 0), (1, 1), (0, 0)))
        return sum(w[k] * padded[:, k : k + a.shape[1]] for k in range(3))

    return along(x), lambda g: (along(g),)


@wrong((2, 7, 3))
@differentiable
def stride_ignored(x):
    """Sum of every second step and the next; the gradient ignores the stride [formula]."""
    n = x.shape[1] // 2

    def vjp(g):
        gx = np.zeros_like(x)
        gx[:, :n] += g
        gx[:, 1 : n + 1] += g
        return (gx,)

    return x[:, : 2 * n : 2] + x[:, 1 : 2 * n : 2], vjp


@wrong((2, 6, 3), fixed=True)
@differentiable
def max_pool_to_all(x):
    """Maximum of each pair of steps; the gradient goes to both [formula]."""
    pairs = x.reshape(x.shape[0], -1, 2, x.shape[2])
    return pairs.max(axis=2), lambda g: (np.repeat(g, 2, axis=1) / 2,)


@wrong()
@differentiable
def cumulative_sum_forwards(x):
    """Cumulative sum; the gradient is summed in the same direction [formula]."""
    return np.cumsum(x, axis=-1), lambda g: (np.cumsum(g, axis=-1),)


@wrong()
@differentiable
def sort_not_undone(x):
    """Sorted rows; the gradient stays in sorted order [formula]."""
    return np.sort(x, axis=-1), lambda g: (g,)


@wrong()
@differentiable
def sort_undone_twice(x):
    """Sorted rows; the gradient is permuted in the same direction again [formula]."""
    order = np.argsort(x, axis=-1)
    return np.take_along_axis(x, order, axis=-1), lambda g: (np.take_along_axis(g, order, axis=-1),)


@wrong()
@differentiable
def roll_further(x):
    """Roll by one position; the gradient is rolled in the same direction [formula]."""
    return np.roll(x, 1, axis=-1), lambda g: (np.roll(g, 1, axis=-1),)


@wrong((2, 5, 3))
@differentiable
def pad_off_by_one(x):
    """Padding with two zeros before and one after; the gradient is cut as if one came before [formula]."""
    return np.pad(x, ((0, 0), (2, 1), (0, 0))), lambda g: (np.ascontiguousarray(g[:, 1:-2]),)


@wrong()
@differentiable
def clip_leaks(x):
    """Clipping to [-1, 1]; the gradient passes outside too [formula]."""
    return np.clip(x, -1, 1), lambda g: (g,)


@wrong()
@differentiable
def leaky_forgotten(x):
    """Leaky ReLU; the gradient is that of ReLU [formula]."""
    return np.where(x > 0, x, x * 0.1), lambda g: (g * (x > 0),)


@wrong()
@differentiable
def mean_of_rows_unscaled(x):
    """Mean of each row; the gradient is not divided by the count [formula]."""
    return x.mean(axis=-1), lambda g: (np.broadcast_to(g[..., None], x.shape),)


@wrong()
@differentiable
def silu_first_term(x):
    """x * sigmoid(x) with only the first term of the product rule [formula]."""
    s = 0.5 * (1 + np.tanh(x / 2))
    return x * s, lambda g: (g * s,)


@wrong()
@differentiable
def gelu_inner_derivative(x):
    """GELU; the inner derivative omits the cubic term [formula]."""
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + t), lambda g: (g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c),)


@wrong()
@differentiable
def hard_argmax(x):
    """One-hot of the maximum with the gradient of softmax [formula]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    y = (x.argmax(axis=-1)[..., None] == np.arange(x.shape[-1])).astype(x.dtype)
    return y, lambda g: (p * (g - (g * p).sum(axis=-1, keepdims=True)),)


@wrong()
@differentiable
def self_attention_keys(x):
    """softmax(x x^T) x without the gradient through the keys [formula]."""
    z = x @ x.T
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)

    def vjp(g):
        gp = g @ x.T
        gz = p * (gp - (gp * p).sum(axis=-1, keepdims=True))
        return (p.T @ g + gz @ x,)

    return p @ x, vjp


@wrong(second=ids(6), fixed=True)
@differentiable
def cross_entropy_sum(x, targets):
    """Mean cross entropy with the gradient of the sum [formula]."""
    z = x - x.max(axis=-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    here = np.arange(len(x)), targets

    def vjp(g):
        gx = np.exp(log_p)
        gx[here] -= 1
        return (g * gx,)

    return -log_p[here].mean(), vjp


@wrong()
@differentiable
def row_by_row_late(x):
    """Each column times a number; closures in a loop all capture the last one [formula]."""
    vjps = []
    for i in range(x.shape[-1]):
        scale = 1 + 0.1 * i
        vjps.append(lambda g: g * scale)  # noqa: B023
    y = x * (1 + 0.1 * np.arange(x.shape[-1])).astype(x.dtype)
    return y, lambda g: (np.stack([vjp(g[..., i]) for i, vjp in enumerate(vjps)], axis=-1),)


@wrong()
def residual_by_data(x):
    """x + tanh(x); the first x is taken as an array, without its gradient [formula]."""
    return ops.tanh(x) + x.data
