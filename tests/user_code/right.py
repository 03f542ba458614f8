"""Correct functions of first-time users, composed of operations or with a hand-written gradient."""

import math

import numpy as np

from autograd import differentiable
from autograd import operations as ops
from tests.user_code.base import right

# Softmax


@right()
def logsumexp(x):
    """log-sum-exp over the last axis; the maximum is subtracted as a constant [softmax]."""
    m = x.data.max(axis=-1, keepdims=True)
    return ops.log(ops.exp(x - m).sum(axis=-1, keepdims=True)) + m


@right((2, 5, 3))
def log_softmax(x):
    """x - logsumexp(x) [softmax]."""
    return x - logsumexp(x)


@right()
@differentiable
def softmax(x):
    """Softmax with a hand-written gradient [softmax]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=-1, keepdims=True)),)


@right()
def cold_softmax(x):
    """Softmax at temperature 0.1 [softmax]."""
    return softmax(x * 10)


# Infinite derivatives


@right()
@differentiable
def cube_root(x):
    """Cube root, infinitely steep at 0 [infinite]."""
    return np.cbrt(x), lambda g: (g / (3 * np.cbrt(x) ** 2),)


@right()
@differentiable
def x_log_x(x):
    """x log |x|, whose derivative at 0 is minus infinity [infinite]."""
    safe = np.where(x == 0, 1, x).astype(x.dtype)
    return x * np.log(abs(safe)), lambda g: (g * (np.log(abs(x)) + 1),)


# Options


@right()
@differentiable
def fixed_point(x, tol=1e-12):
    """The y with y = cos(y / 2 + x / 10), by iteration; its gradient holds only at the solution [option]."""
    y = np.ones_like(x)
    for _ in range(100):
        before, y = y, np.cos(y / 2 + x / 10)
        if (abs(y - before) <= tol).all():
            break
    slope = -np.sin(y / 2 + x / 10)
    return y, lambda g: (g * slope / 10 / (1 - slope / 2),)


@right()
@differentiable
def dropout_by_option(x, rate=0.0):
    """Dropout that is off by default [option]."""
    if rate == 0:
        return x * 1, lambda g: (g,)
    keep = ((np.random.random(x.shape) >= rate) / (1 - rate)).astype(x.dtype)
    return x * keep, lambda g: (g * keep,)


# Inaccurate values


@right()
@differentiable
def cosine_quotient(x):
    """(1 - cos(x)) / x^2, inaccurate near 0, with an accurate gradient [inaccurate]."""
    safe = np.where(x == 0, 1, x)
    y = np.where(x == 0, 0.5, (1 - np.cos(safe)) / (safe * safe))
    series = -x / 12 + x**3 / 180 - x**5 / 6720
    slope = np.where(abs(x) < 0.05, series, (safe * np.sin(safe) - 2 * (1 - np.cos(safe))) / safe**3)
    return y.astype(x.dtype), lambda g: (g * slope.astype(x.dtype),)


@right((4, 4), fixed=True)
@differentiable
def symmetric_part(x):
    """(x + x^T) / 2, which broadcasts a single row against its transpose [square]."""
    return (x + x.swapaxes(-1, -2)) / 2, lambda g: ((g + g.swapaxes(-1, -2)) / 2,)


# Activations


@right()
@differentiable
def leaky_relu(x):
    """Leaky ReLU with a hand-written gradient [activation]."""
    slope = np.where(x > 0, 1, 0.1).astype(x.dtype)
    return x * slope, lambda g: (g * slope,)


@right()
def leaky_relu_composed(x):
    """Leaky ReLU as a maximum [activation]."""
    return ops.maximum(x, x * 0.1)


@right()
def elu(x):
    """ELU; the exponential sees no positive numbers, and the gradient at 0 is that of the linear side [activation]."""
    return ops.where(x.data >= 0, x, ops.exp(ops.minimum(x, 0.0)) - 1)


@right()
def gelu(x):
    """GELU, tanh approximation [activation]."""
    return x * 0.5 * (ops.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1)


@right()
@differentiable
def gelu_erf(x):
    """GELU with the error function and a hand-written gradient [activation]."""
    cdf = (0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))).astype(x.dtype)
    return x * cdf, lambda g: (g * (cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)),)


@right()
def silu(x):
    """x * sigmoid(x) [activation]."""
    return x * ops.sigmoid(x)


@right()
def softplus(x):
    """max(x, 0) + log(1 + exp(-|x|)), which cannot overflow [activation]."""
    return ops.maximum(x, 0.0) + ops.log(ops.exp(-ops.absolute(x)) + 1)


@right()
@differentiable
def softplus_by_hand(x):
    """log(1 + exp(x)) by logaddexp, with the gradient by tanh [activation]."""
    return np.logaddexp(0, x).astype(x.dtype), lambda g: (g * (0.5 + 0.5 * np.tanh(x / 2)),)


@right()
def mish(x):
    """x * tanh(softplus(x)) [activation]."""
    return x * ops.tanh(softplus_by_hand(x))


@right()
def hard_tanh(x):
    """Clipping by minimum and maximum [activation]."""
    return ops.minimum(ops.maximum(x, -1.0), 1.0)


@right()
@differentiable
def clip(x):
    """Clipping with a hand-written gradient, 0 outside [activation]."""
    return np.clip(x, -1, 1), lambda g: (g * ((x >= -1) & (x <= 1)),)


@right()
def soft_threshold(x):
    """Soft shrinkage by 0.5 [activation]."""
    return ops.relu(x - 0.5) - ops.relu(-x - 0.5)


@right()
def softsign(x):
    """x / (1 + |x|) [activation]."""
    return x / (ops.absolute(x) + 1)


@right()
def steep_tanh(x):
    """tanh(50 x) [bends]."""
    return ops.tanh(x * 50)


@right()
def soft_sign_of_root(x):
    """x / sqrt(x^2 + 1e-8): a smooth sign, very steep at 0 [bends]."""
    return x / ops.sqrt(x * x + 1e-8)


@right()
def smooth_absolute(x):
    """sqrt(x^2 + 1e-8) [bends]."""
    return ops.sqrt(x * x + 1e-8)


@right()
def signed_root(x):
    """Signed square root with a finite gradient at 0 [bends]."""
    return x / ops.sqrt(ops.absolute(x) + 1e-6)


# Elementary functions


@right()
def polynomial(x):
    """x^3 - 2 x^2 + x by Horner's rule [elementary]."""
    return ((x - 2) * x + 1) * x


@right()
def rational(x):
    """(x - 1) / (1 + x^2) [elementary]."""
    return (x - 1) / (x * x + 1)


@right()
def powers(x):
    """x^2, x^3 and x^1 by the operator ** [elementary]."""
    return ops.concatenate(x**2, x**3, x**1, axis=-1)


@right()
@differentiable
def arcsine(x):
    """arcsin of x clipped to (-1, 1), with a hand-written gradient [elementary]."""
    inside = np.clip(x, -1 + 1e-3, 1 - 1e-3)
    return np.arcsin(inside), lambda g: (g * (x == inside) / np.sqrt(1 - inside * inside),)


@right()
@differentiable
def angles(x):
    """Cosine and sine of each number, concatenated [elementary]."""
    c, s = np.cos(x), np.sin(x)
    n = x.shape[-1]
    return np.concatenate([c, s], axis=-1), lambda g: (g[..., n:] * c - g[..., :n] * s,)


@right()
@differentiable
def logarithm_of_one_and_square(x):
    """log(1 + x^2) by log1p [elementary]."""
    return np.log1p(x * x), lambda g: (g * 2 * x / (1 + x * x),)


@right()
@differentiable
def signed_logarithm(x):
    """sign(x) log(1 + |x|) with a hand-written gradient [elementary]."""
    return np.sign(x) * np.log1p(np.abs(x)), lambda g: (g / (1 + np.abs(x)),)


@right()
def reciprocal(x):
    """1 / x for nonzero x [elementary]."""
    return 1 / x


@right()
def logarithm_of_absolute(x):
    """log |x| for nonzero x [elementary]."""
    return ops.log(ops.absolute(x))


# Order


@right()
def largest(x):
    """Maximum of each row; tied entries share the gradient [order]."""
    return x.max(axis=-1)


@right()
@differentiable
def largest_by_hand(x):
    """Maximum of each row; the first of tied entries gets the gradient [order]."""
    where = x.argmax(axis=-1)[..., None]

    def vjp(g):
        gx = np.zeros_like(x)
        np.put_along_axis(gx, where, g[..., None], axis=-1)
        return (gx,)

    return np.take_along_axis(x, where, axis=-1)[..., 0], vjp


@right()
@differentiable
def sort(x):
    """Each row sorted [order]."""
    order = np.argsort(x, axis=-1, kind="stable")

    def vjp(g):
        gx = np.empty_like(x)
        np.put_along_axis(gx, order, g, axis=-1)
        return (gx,)

    return np.take_along_axis(x, order, axis=-1), vjp


@right()
def median(x):
    """Median of each row, by sorting [order]."""
    ordered, n = sort(x), x.shape[-1]
    return (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) * 0.5


@right()
@differentiable
def top_two(x):
    """The two largest of each row [order]."""
    order = np.argsort(-x, axis=-1)[..., :2]

    def vjp(g):
        gx = np.zeros_like(x)
        np.put_along_axis(gx, order, g, axis=-1)
        return (gx,)

    return np.take_along_axis(x, order, axis=-1), vjp


@right()
def range_of_row(x):
    """Maximum minus minimum [order]."""
    return x.max(axis=-1) - x.min(axis=-1)


@right()
@differentiable
def running_maximum(x):
    """Cumulative maximum along the row [order]."""
    y = np.maximum.accumulate(x, axis=-1)
    places = np.broadcast_to(np.arange(x.shape[-1]), x.shape)
    where = np.maximum.accumulate(np.where(x == y, places, 0), axis=-1)  # index of the latest maximum

    def vjp(g):
        gx = np.zeros_like(x)
        for i in np.ndindex(x.shape):
            gx[(*i[:-1], where[i])] += g[i]
        return (gx,)

    return y, vjp


# Stairs: the gradient is 0, and a large step crosses many of them


@right()
@differentiable
def rounded(x):
    """Rounding to the nearest integer [stairs]."""
    return np.round(x), lambda g: (np.zeros_like(g),)


@right()
@differentiable
def floored(x):
    """Floor [stairs]."""
    return np.floor(x), lambda g: (np.zeros_like(g),)


@right()
@differentiable
def quantised(x):
    """Rounding to the nearest sixteenth [stairs]."""
    return np.round(x * 16) / 16, lambda g: (np.zeros_like(g),)


@right()
@differentiable
def fraction(x):
    """Fractional part, x - floor(x) [stairs]."""
    return x - np.floor(x), lambda g: (g.copy(),)
