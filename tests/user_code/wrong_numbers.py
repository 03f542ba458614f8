"""Wrong functions of first-time users: wrong for some numbers or shapes.

Each has one bug, of the kind domain (signs, tiny, large, offsets), bends (steep functions), luck (rare among random
numbers) or inputs (other shapes).
"""

import math

import numpy as np

from autograd import differentiable
from tests.user_code.base import wrong

# Signs, tiny, large, offsets


@wrong()
@differentiable
def cube_by_absolute(x):
    """x^3 with the gradient 3 x |x| [domain]."""
    return x * x * x, lambda g: (3 * g * x * np.abs(x),)


@wrong(first=lambda rng, shape: rng.uniform(0.5, 2, size=shape))
@differentiable
def square_of_positive(x):
    """x^2 with the gradient 2 |x|, correct for positive numbers [domain]."""
    return x * x, lambda g: (2 * g * np.abs(x),)


@wrong(first=lambda rng, shape: rng.uniform(0.5, 2, size=shape))
@differentiable
def logarithm_of_absolute_unsigned(x):
    """log |x| with the gradient 1 / |x|, correct for positive numbers [domain]."""
    return np.log(np.abs(x)), lambda g: (g / np.abs(x),)


@wrong(first=lambda rng, shape: rng.uniform(0.5, 2, size=shape))
@differentiable
def logarithm_guarded(x):
    """log x with the gradient 1 / max(x, 0.05) [domain]."""
    return np.log(x), lambda g: (g / np.maximum(x, 0.05),)


@wrong(first=lambda rng, shape: rng.uniform(0.2, 0.8, size=shape))
@differentiable
def logit_guarded(p):
    """log(p / (1 - p)); the gradient is clamped near 0 and 1 [domain]."""
    return np.log(p / (1 - p)), lambda g: (g / np.maximum(p * (1 - p), 0.05),)


@wrong()
@differentiable
def reciprocal_guarded(x):
    """1 / x with max(x^2, 1e-4) in the gradient [domain]."""
    return 1 / x, lambda g: (-g / np.maximum(x * x, 1e-4),)


@wrong(first=lambda rng, shape: rng.uniform(0.5, 2, size=shape))
@differentiable
def reciprocal_sign(x):
    """1 / x with the gradient -1 / (x |x|), correct for positive numbers [domain]."""
    return 1 / x, lambda g: (-g / (x * np.abs(x)),)


@wrong()
@differentiable
def sigmoid_overflows(x):
    """Sigmoid with the gradient e / (1 + e)^2, e = exp(-x), which overflows [domain]."""

    def vjp(g):
        e = np.exp(-x)
        return (g * e / (1 + e) ** 2,)

    return 0.5 * (1 + np.tanh(x / 2)), vjp


@wrong()
@differentiable
def softplus_overflows(x):
    """log(1 + exp(x)) by logaddexp with the gradient exp(x) / (1 + exp(x)), which overflows [domain]."""
    return np.logaddexp(x.dtype.type(0), x), lambda g: (g * np.exp(x) / (1 + np.exp(x)),)


@wrong()
@differentiable
def softmax_without_maximum(x):
    """logsumexp; the gradient does not subtract the maximum [domain]."""
    m = x.max(axis=-1, keepdims=True)
    y = (np.log(np.exp(x - m).sum(axis=-1, keepdims=True)) + m)[..., 0]

    def vjp(g):
        e = np.exp(x)
        return (g[..., None] * e / e.sum(axis=-1, keepdims=True),)

    return y, vjp


@wrong()
@differentiable
def log_cosh_overflows(x):
    """log cosh x with the gradient sinh / cosh, which overflows [domain]."""
    a = np.abs(x)
    return a + np.log1p(np.exp(-2 * a)) - math.log(2), lambda g: (g * np.sinh(x) / np.cosh(x),)


@wrong()
@differentiable
def tanh_cut_off(x):
    """tanh with gradient 0 beyond 3 [domain]."""
    y = np.tanh(x)
    return y, lambda g: (g * np.where(np.abs(x) < 3, 1 - y * y, 0),)


@wrong()
@differentiable
def tiny_is_zero(x):
    """x + x^2 without a gradient below 1e-3 [domain]."""
    return x + x * x, lambda g: (g * (1 + 2 * x) * (np.abs(x) >= 1e-3),)


@wrong()
@differentiable
def square_saturates(x):
    """x^2 with the gradient clamped to 2e4 [domain]."""
    return x * x, lambda g: (g * np.clip(2 * x, -2e4, 2e4),)


@wrong()
@differentiable
def exponential_saturates(x):
    """exp x with the gradient clamped to 100 [domain]."""
    y = np.exp(x)
    return y, lambda g: (g * np.minimum(y, 100),)


@wrong()
@differentiable
def sine_by_series(x):
    """sin x with the gradient by a series that is accurate up to 4 [domain]."""

    def vjp(g):
        term, total = np.ones_like(x), np.ones_like(x)
        for k in range(1, 14):
            term = term * (-x * x / ((2 * k - 1) * 2 * k))
            total = total + term
        return (g * total,)

    return np.sin(x), vjp


@wrong()
@differentiable
def relu_6(x):
    """min(max(x, 0), 6); the gradient ignores the upper bound [domain]."""
    return np.clip(x, 0, 6), lambda g: (g * (x > 0),)


@wrong()
@differentiable
def huber_other_delta(x):
    """Huber loss with threshold 3; the gradient uses 4 [domain]."""
    a = np.abs(x)
    return np.where(a < 3, x * x / 2, 3 * a - 4.5), lambda g: (g * np.where(a < 4, x, 3 * np.sign(x)),)


# Steep functions


@wrong()
@differentiable
def soft_sign_other_eps(x):
    """x / sqrt(x^2 + 1e-8) with 1e-7 in the gradient [bends]."""
    return x / np.sqrt(x * x + 1e-8), lambda g: (g * 1e-8 / (x * x + 1e-7) ** 1.5,)


@wrong()
@differentiable
def smooth_absolute_sign(x):
    """sqrt(x^2 + 1e-8) with the sign as gradient [bends]."""
    return np.sqrt(x * x + 1e-8), lambda g: (g * np.sign(x),)


@wrong()
@differentiable
def steep_tanh_limited(x):
    """tanh(50 x) with the gradient clamped to 10 [bends]."""
    y = np.tanh(50 * x)
    return y, lambda g: (g * np.minimum(50 * (1 - y * y), 10),)


@wrong()
@differentiable
def signed_root_limited(x):
    """x / sqrt(|x| + 1e-6); the gradient clamps |x| to at least 1e-3 [bends]."""

    def vjp(g):
        a = np.maximum(np.abs(x), 1e-3) + 1e-6
        return (g * (0.5 * a + 0.5e-6) / a**1.5,)

    return x / np.sqrt(np.abs(x) + 1e-6), vjp


# Rare values


@wrong()
@differentiable
def hard_swish(x):
    """x * clip(x + 3, 0, 6) / 6; the gradient extends the parabola to 3.5 [luck]."""
    y = x * np.clip(x + 3, 0, 6) / 6
    return y, lambda g: (g * np.where(x < -3, 0, np.where(x < 3.5, (2 * x + 3) / 6, 1)),)


@wrong()
@differentiable
def positive_part_of_maximum(x):
    """max(0, maximum of the row); the gradient flows for rows of negative numbers too [luck]."""
    where = x.argmax(axis=-1)[..., None]

    def vjp(g):
        gx = np.zeros_like(x)
        np.put_along_axis(gx, where, g[..., None], axis=-1)
        return (gx,)

    return np.maximum(x.max(axis=-1), 0), vjp


@wrong((3, 6))
@differentiable
def argmax_or_last(x):
    """Maximum of each row; `argmax or -1` treats index 0 as missing [luck]."""

    def vjp(g):
        gx = np.zeros_like(x)
        for i in range(len(x)):
            gx[i, int(x[i].argmax()) or -1] = g[i]
        return (gx,)

    return x.max(axis=-1), vjp


@wrong()
@differentiable
def stops_at_flat_rows(x):
    """Standardized rows without a gradient for deviations below 0.1 [luck]."""
    centered = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + 1e-3)
    z = centered * scale

    def vjp(g):
        gx = scale * (g - g.mean(axis=-1, keepdims=True) - z * (g * z).mean(axis=-1, keepdims=True))
        return (gx * (scale < 10),)

    return z, vjp


# Other shapes


@wrong()
@differentiable
def softmax_axis_one(x):
    """Softmax over the last axis; the gradient sums over axis 1 [inputs]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=1, keepdims=True)),)


@wrong()
@differentiable
def centered_where_it_fits(x):
    """Rows minus their mean; the gradient finds the axis by its length, ambiguous for squares [inputs]."""
    n = x.shape[-1]
    return x - x.mean(axis=-1, keepdims=True), lambda g: (g - g.mean(axis=x.shape.index(n), keepdims=True),)


@wrong((4, 5), fixed=True)
@differentiable
def median_of_odd(x):
    """Median of each row; for even lengths the gradient goes to one of the middle two [inputs]."""
    order, n = np.argsort(x, axis=-1), x.shape[-1]
    y = np.median(x, axis=-1).astype(x.dtype)

    def vjp(g):
        gx = np.zeros_like(x)
        np.put_along_axis(gx, order[..., n // 2 : n // 2 + 1], g[..., None], axis=-1)
        return (gx,)

    return y, vjp


@wrong((4, 6), fixed=True)
@differentiable
def pairs_of_even(x):
    """Mean of pairs of columns; the gradient of an odd last column is halved too [inputs]."""
    n = x.shape[-1] // 2 * 2
    y = np.concatenate([(x[..., :n:2] + x[..., 1:n:2]) / 2, x[..., n:]], axis=-1)
    return y, lambda g: (np.repeat(g, 2, axis=-1)[..., : x.shape[-1]] / 2,)


@wrong()
@differentiable
def batch_of_one(x):
    """Columns minus half their mean; for a batch of one the gradient is passed through [inputs]."""
    y = x - 0.5 * x.mean(axis=0)
    return y, lambda g: (g if len(x) == 1 else g - 0.5 * g.mean(axis=0),)


@wrong(second=lambda rng, x: rng.normal(size=x.shape))
@differentiable
def product_of_one_array(a, b):
    """a b; if both are one array, half of the gradient is missing [inputs]."""
    return a * b, lambda g: (g * b, g * 0 if a is b else g * a)


@wrong((5, 3), second=lambda rng, x: rng.integers(0, len(x), size=4))
@differentiable
def rows_cut_off_below_0(x, index):
    """Rows by index; the gradient clips negative indices to 0 [inputs]."""

    def vjp(g):
        gx = np.zeros_like(x)
        np.add.at(gx, np.maximum(index, 0), g)
        return gx, None

    return x[index], vjp


@wrong(second=lambda rng, x: rng.random(x.shape) < 0.6)
@differentiable
def square_where(x, mask):
    """x^2 under a mask; an all-False mask is treated as no mask [inputs]."""
    return np.where(mask, x * x, 0), lambda g: (2 * g * x * (mask if mask.any() else 1), None)


@wrong()
@differentiable
def centered_in_a_batch(x):
    """Each row minus its mean; the gradient of a single row omits the mean [inputs]."""
    return x - x.mean(axis=-1, keepdims=True), lambda g: (g - g.mean(axis=-1, keepdims=True) if g.ndim > 1 else g,)


@wrong(second=lambda rng, x: rng.normal(size=x.shape))
@differentiable
def product_repeated_by_mean(a, b):
    """a b with broadcasting; the gradient of broadcast inputs is a mean instead of a sum [inputs]."""

    def fitted(g, x):
        for axis in range(min(x.ndim, g.ndim)):
            g = g if x.shape[axis] == g.shape[axis] else g.mean(axis=axis, keepdims=True)
        return g

    return a * b, lambda g: (fitted(g * b, a), fitted(g * a, b))
