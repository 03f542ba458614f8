"""Wrong functions of first-time users: wrong at isolated points.

Each has one bug, of the kind special (ties, repeats, 0) or finite (NaN or infinity in a gradient).
"""

import numpy as np

from autograd import differentiable
from autograd import operations as ops
from tests.user_code.base import wrong

# Ties, repeats and special values


@wrong()
@differentiable
def maximum_to_all_ties(x):
    """Maximum of each row; each tied entry gets the full gradient [special]."""
    y = x.max(axis=-1, keepdims=True)
    return y[..., 0], lambda g: (g[..., None] * (x == y),)


@wrong((2, 6, 3), fixed=True)
@differentiable
def max_pool_ties(x):
    """Maximum of each pair of steps; both tied steps get the gradient [special]."""
    pairs = x.reshape(x.shape[0], -1, 2, x.shape[2])
    y = pairs.max(axis=2, keepdims=True)
    return y[:, :, 0], lambda g: (((pairs == y) * g[:, :, None]).reshape(x.shape),)


@wrong()
@differentiable
def second_largest(x):
    """Second largest of each row; the gradient locates it by value [special]."""
    y = np.sort(x, axis=-1)[..., -2:-1]
    return y[..., 0], lambda g: (g[..., None] * (x == y),)


@wrong()
@differentiable
def minimum_without_ties(x):
    """Minimum of each row; tied entries get no gradient [special]."""
    y = x.min(axis=-1, keepdims=True)

    def vjp(g):
        least = x == y
        return (g[..., None] * (least & (least.sum(axis=-1, keepdims=True) == 1)),)

    return y[..., 0], vjp


@wrong()
def softplus_of_relu(x):
    """relu(x) + log(1 + exp(-|x|)); the gradient at 0 is 0 instead of 1/2 [special]."""
    return ops.relu(x) + ops.log(ops.exp(-ops.absolute(x)) + 1)


@wrong()
def elu_of_minimum(x):
    """ELU; at 0 the tie of `minimum` passes half of the gradient [special]."""
    return ops.where(x.data > 0, x, ops.exp(ops.minimum(x, 0.0)) - 1)


@wrong()
def logarithm_times_sign(x):
    """sign(x) log(1 + |x|); the gradient at 0 is 0 instead of 1 [special]."""
    return ops.log(ops.absolute(x) + 1) * np.sign(x.data)


@wrong(second=lambda rng, x: rng.permutation(len(x)))
@differentiable
def gather_overwritten(x, index):
    """Rows selected by index; for repeated rows, one gradient is lost [special]."""

    def vjp(g):
        gx = np.zeros_like(x)
        gx[index] = g
        return (gx,)

    return x[index], vjp


@wrong(second=lambda rng, x: rng.permutation(len(x)))
@differentiable
def gather_added(x, index):
    """Rows selected by index; += with an index array adds repeated rows once [special]."""

    def vjp(g):
        gx = np.zeros_like(x)
        gx[index] += g
        return (gx,)

    return x[index], vjp


@wrong()
@differentiable
def distinct_rows(x):
    """exp, computed once for equal rows; they share the last gradient [special]."""
    different, back = np.unique(x.reshape(len(x), -1), axis=0, return_inverse=True)
    back = back.reshape(-1)
    y = np.exp(different)

    def vjp(g):
        own = np.zeros_like(y)
        own[back] = g.reshape(len(x), -1) * y[back]
        return (own[back].reshape(x.shape),)

    return y[back].reshape(x.shape), vjp


@wrong()
@differentiable
def rank_by_value(x):
    """Sorted rows; the gradient is assigned by looking up values [special]."""
    y = np.sort(x, axis=-1)

    def vjp(g):
        return (((x[..., :, None] == y[..., None, :]) * g[..., None, :]).sum(axis=-1),)

    return y, vjp


# Non-finite gradients


@wrong()
@differentiable
def absolute_as_root(x):
    """|x| as sqrt(x^2): 0 / 0 at 0 [finite]."""
    y = np.sqrt(x * x)
    return y, lambda g: (g * x / y,)


@wrong()
def length_unguarded(x):
    """Norm of each row: NaN for a row of zeros [finite]."""
    return ops.sqrt((x * x).sum(axis=-1))


@wrong()
def deviation_unguarded(x):
    """Standard deviation of each column: NaN if it is 0 [finite]."""
    centered = x - x.mean(axis=0)
    return ops.sqrt((centered * centered).mean(axis=0))


@wrong()
def root_of_positive(x):
    """sqrt(x) where x > 0, else 0: the unused branch makes the gradient NaN [finite]."""
    return ops.where(x.data > 0, ops.sqrt(x), 0.0)


@wrong()
@differentiable
def unit_rows(x):
    """Rows of length 1, or zeros; the gradient divides by the length 0 [finite]."""
    n = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    y = x / np.where(n == 0, 1, n)
    return y, lambda g: ((g - y * (g * y).sum(axis=-1, keepdims=True)) / n,)


@wrong(second=lambda rng, x: rng.normal(size=x.shape))
@differentiable
def polar_angle(y, x):
    """Angle of the point (x, y); the gradient is 0 / 0 at the origin, where the angle jumps [finite]."""
    return np.arctan2(y, x), lambda g: (g * x / (x * x + y * y), -g * y / (x * x + y * y))


@wrong()
@differentiable
def sinc(x):
    """sin(x) / x, 1 at 0; the gradient is not defined at 0 [finite]."""
    safe = np.where(x == 0, 1, x).astype(x.dtype)
    y = np.where(x == 0, 1, np.sin(safe) / safe).astype(x.dtype)
    return y, lambda g: (g * (np.cos(x) - y) / x,)


@wrong()
@differentiable
def product_by_division(x):
    """Product of each row; the gradient divides by each number [finite]."""
    y = x.prod(axis=-1)
    return y, lambda g: ((g * y)[..., None] / x,)


@wrong()
@differentiable
def cumulative_product_by_division(x):
    """Cumulative product; the gradient divides by x [finite]."""
    y = np.cumprod(x, axis=-1)
    return y, lambda g: (np.flip(np.cumsum(np.flip(g * y, -1), axis=-1), -1) / x,)


@wrong()
def square_by_logarithm(x):
    """x^2 as exp(2 log |x|): NaN at 0 [finite]."""
    return ops.exp(ops.log(ops.absolute(x)) * 2)


@wrong()
@differentiable
def entropy_unguarded(x):
    """Entropy of a softmax; the gradient takes log 0 for vanishing probabilities [finite]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    y = -(p * np.log(p + (p == 0))).sum(axis=-1)

    def vjp(g):
        gp = -g[..., None] * (np.log(p) + 1)
        return (p * (gp - (gp * p).sum(axis=-1, keepdims=True)),)

    return y, vjp


@wrong()
@differentiable
def logarithm_of_square(x):
    """log(x^2 + 1e-9); the gradient omits the epsilon [finite]."""
    return np.log(x * x + 1e-9), lambda g: (2 * g / x,)


@wrong()
def naive_sigmoid(x):
    """1 / (1 + exp(-x)) composed: 0 at -800, its gradient NaN [finite]."""
    return 1 / (ops.exp(-x) + 1)


@wrong()
@differentiable
def cosine_unguarded(x):
    """Cosine similarity of neighboring rows; the gradient omits the epsilon [finite]."""
    a, b = x[:-1], x[1:]
    na, nb = (np.sqrt((v * v).sum(axis=-1, keepdims=True)) for v in (a, b))
    y = (a * b).sum(axis=-1, keepdims=True) / (na * nb + 1e-12)

    def vjp(g):
        gx, h = np.zeros_like(x), g[:, None]
        gx[:-1] += h * (b / (na * nb) - y * a / na**2)
        gx[1:] += h * (a / (na * nb) - y * b / nb**2)
        return (gx,)

    return y[:, 0], vjp


@wrong()
@differentiable
def powers_of_columns(x):
    """Column k to the power k; for k = 0 the gradient is 0 x^-1, NaN at 0 [finite]."""
    k = np.arange(x.shape[-1]).astype(x.dtype)
    return x**k, lambda g: (g * k * x ** (k - 1),)


@wrong(second=lambda rng, x: rng.random(x.shape) < 0.6)
@differentiable
def mean_of_what_is_masked(x, mask):
    """Mean of the unmasked entries, 0 if there are none; the gradient divides by their number [finite]."""
    n = mask.sum()
    return (x * mask).sum() / np.maximum(n, 1).astype(x.dtype), lambda g: ((g * mask / n).astype(x.dtype), None)


@wrong(fixed=True, second=lambda rng, x: rng.normal(size=x.shape[-1]))
@differentiable
def gain_by_its_mean(x, gain):
    """Columns times a gain; the gradient is rows times their mean: NaN for an empty batch [finite]."""
    return x * gain, lambda g: (g * gain, (g * x).mean(axis=0) * x.dtype.type(len(x)))
