"""Correct array functions of first-time users: sums, indexing, products, norms, losses."""

import math

import numpy as np

from autograd import Tensor, differentiable
from autograd import operations as ops
from tests.user_code.base import ids, right
from tests.user_code.right import log_softmax, softmax, softplus_by_hand

# Sums and products along an axis


@right()
@differentiable
def cumulative_sum(x):
    """Cumulative sum [along]."""
    return np.cumsum(x, axis=-1), lambda g: (np.flip(np.cumsum(np.flip(g, -1), axis=-1), -1),)


@right()
def cumulative_sum_by_matrix(x):
    """Cumulative sum as a matmul with a triangular matrix of ones [along]."""
    return x @ Tensor(np.triu(np.ones((x.shape[-1], x.shape[-1]))).astype(x.dtype))


@right()
def cumulative_product(x):
    """Cumulative product, one multiplication at a time [along]."""
    products = [x[..., 0]]
    for i in range(1, x.shape[-1]):
        products.append(products[-1] * x[..., i])
    return ops.stack(*products, axis=-1)


@right()
@differentiable
def product(x):
    """Product of each row; its gradient from prefix and suffix products, correct for zeros [along]."""
    ones = np.ones_like(x[..., :1])
    before = np.cumprod(np.concatenate([ones, x[..., :-1]], axis=-1), axis=-1)
    after = np.flip(np.cumprod(np.flip(np.concatenate([x[..., 1:], ones], axis=-1), -1), axis=-1), -1)
    return x.prod(axis=-1), lambda g: (g[..., None] * before * after,)


@right((2, 5, 3))
def moving_average(x):
    """Exponential moving average along the steps [along]."""
    steps = [x[:, 0]]
    for t in range(1, x.shape[1]):
        steps.append(steps[-1] * 0.9 + x[:, t] * 0.1)
    return ops.stack(*steps, axis=1)


@right((2, 5, 3))
def differences(x):
    """Difference of consecutive steps [along]."""
    return x[:, 1:] - x[:, :-1]


@right()
def straight_sum(x):
    """Sum of all entries [along]."""
    return x.sum()


@right()
def standardised(x):
    """All entries standardized together [along]."""
    centered = x - x.mean()
    return centered / ops.sqrt((centered * centered).mean() + 1e-5)


# Indexing


@right(second=lambda rng, x: rng.integers(0, len(x), size=7))
def gather(x, index):
    """Rows selected by index, some repeatedly [places]."""
    return x[index]


@right(second=ids(3))
@differentiable
def scatter_add(x, index):
    """Rows summed into three segments [places]."""
    y = np.zeros((3, *x.shape[index.ndim :]), x.dtype)
    np.add.at(y, index, x)
    return y, lambda g: (g[index],)


@right((2, 5, 3), second=lambda rng, x: rng.random(x.shape[:2]) < 0.7)
def mean_of_real(x, mask):
    """Mean over unmasked steps, 0 if there are none [places]."""
    m = mask[..., None].astype(x.dtype)
    return (x * m).sum(axis=1) / np.maximum(m.sum(axis=1), 1)


@right((2, 5, 3))
@differentiable
def pad(x):
    """Padding along the steps: one zero before, two after [places]."""
    return np.pad(x, ((0, 0), (1, 2), (0, 0))), lambda g: (g[:, 1 : g.shape[1] - 2],)


@right()
def roll(x):
    """Roll by one position [places]."""
    return ops.concatenate(x[..., -1:], x[..., :-1], axis=-1)


@right()
def flip(x):
    """Reversal [places]."""
    return x[..., ::-1]


@right((2, 5, 3))
def transposed(x):
    """Last axis moved to the front [places]."""
    return x.transpose(2, 0, 1)


@right()
def both_signs(x):
    """relu(x) and relu(-x), concatenated [places]."""
    return ops.concatenate(ops.relu(x), ops.relu(-x), axis=-1)


@right()
@differentiable
def repeat(x):
    """Each entry repeated three times [places]."""
    return np.repeat(x, 3, axis=-1), lambda g: (g.reshape(*x.shape, 3).sum(axis=-1),)


# Matrix products


@right()
def outer(x):
    """Outer product of each row with itself [product]."""
    return x.reshape(*x.shape, 1) * x.reshape(*x.shape[:-1], 1, x.shape[-1])


@right()
@differentiable
def gram(x):
    """x x^T by einsum [product]."""
    return np.einsum("id,jd->ij", x, x), lambda g: (np.einsum("ij,jd->id", g + g.T, x),)


@right()
def inverse_of_gram(x):
    """(x^T x / n + 1)^-1 with a hand-written gradient of the inverse [product]."""
    return inverse(x.transpose() @ x * (1 / x.shape[0]) + np.eye(x.shape[1], dtype=x.dtype))


@differentiable
def inverse(a):
    y = np.linalg.inv(a)
    return y, lambda g: (-y.T @ g @ y.T,)


# Norms and distances


@right()
def unit_length(x):
    """x / sqrt(|x|^2 + 1e-12) [length]."""
    return x / ops.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-12)


@right()
@differentiable
def unit_length_by_hand(x):
    """x divided by its norm, which is clamped to at least 1e-3 [length]."""
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    over = np.maximum(length, 1e-3)
    y = x / over
    return y, lambda g: ((g - y * (g * y).sum(axis=-1, keepdims=True) * (length >= 1e-3)) / over,)


@right()
def cosine_similarity(x):
    """Cosine similarity of every row with the first, with an epsilon in the denominator [length]."""
    first = x[:1]
    lengths = ops.sqrt((x * x).sum(axis=-1) + 1e-8) * ops.sqrt((first * first).sum(axis=-1) + 1e-8)
    return (x * first).sum(axis=-1) / lengths


@right()
def distances(x):
    """Pairwise distances of rows, with an epsilon for equal rows [length]."""
    apart = x.reshape(len(x), 1, -1) - x.reshape(1, len(x), -1)
    return ops.sqrt((apart * apart).sum(axis=-1) + 1e-6)


@right()
def radial_basis(x):
    """exp(-|x_i - x_j|^2 / 2) [length]."""
    apart = x.reshape(len(x), 1, -1) - x.reshape(1, len(x), -1)
    return ops.exp((apart * apart).sum(axis=-1) * -0.5)


# Losses


@right(second=ids(6), fixed=True)
def guarded_likelihood(x, targets):
    """-log(p + eps) of the target class [loss]."""
    p = softmax(x)[np.arange(len(targets)), targets]
    return -ops.log(p + 1e-9).mean()


@right(second=ids(6), fixed=True)
def smoothed_cross_entropy(x, targets):
    """Cross entropy with label smoothing 0.1 [loss]."""
    n = x.shape[-1]
    q = (0.9 * (targets[:, None] == np.arange(n)) + 0.1 / n).astype(x.dtype)
    return -(log_softmax(x) * q).sum(axis=-1).mean()


@right(second=lambda rng, x: np.sign(rng.normal(size=x.shape)))
def hinge(x, signs):
    """max(0, 1 - sign x) [loss]."""
    return ops.relu(1 - x * signs.astype(x.dtype)).mean()


@right()
@differentiable
def huber(x):
    """Huber loss with a hand-written gradient [loss]."""
    a = np.abs(x)
    return np.where(a < 1, x * x / 2, a - 0.5), lambda g: (g * np.clip(x, -1, 1),)


@right(second=lambda rng, x: rng.integers(0, 2, size=x.shape))
def binary_cross_entropy(x, targets):
    """max(x, 0) - x t + log(1 + exp(-|x|)) [loss]."""
    t = targets.astype(x.dtype)
    return (ops.maximum(x, 0.0) - x * t + ops.log(ops.exp(-ops.absolute(x)) + 1)).mean()


@right()
def focal(x):
    """Focal loss -(1 - p)^2 log p with p = sigmoid(x) [loss]."""
    return ((1 - ops.sigmoid(x)) ** 2 * softplus_by_hand(-x)).mean()


@right(second=lambda rng, x: rng.normal(size=x.shape))
def divergence(x, y):
    """KL divergence of two softmax distributions [loss]."""
    log_p, log_q = log_softmax(x), log_softmax(y)
    return (ops.exp(log_p) * (log_p - log_q)).sum(axis=-1)


@right()
def entropy(x):
    """-sum p log(p + eps) of a softmax [loss]."""
    p = softmax(x)
    return -(p * ops.log(p + 1e-12)).sum(axis=-1)


@right()
def log_cosh(x):
    """log cosh x without overflow [loss]."""
    a = ops.absolute(x)
    return a + ops.log(ops.exp(a * -2) + 1) - math.log(2)


@right()
def pinball(x):
    """Quantile loss for 0.9 [loss]."""
    return ops.maximum(x * 0.9, x * -0.1).sum(axis=-1)


@right()
def contrastive(x):
    """Contrastive loss: each row should be most similar to its perturbed copy [loss]."""
    z = unit_length(x)
    likeness = z @ unit_length(x * 0.5 + 0.1).transpose() * 5
    here = np.arange(len(x))
    return -log_softmax(likeness)[here, here].mean()


@right()
def triplet(x):
    """Triplet loss: the first row should be closer to the second than to any other, by a margin [loss]."""
    d = distances(x)
    return ops.relu(d[0, 1:2] - d[0, 2:] + 0.2).sum()


@right()
def total_variation(x):
    """Total variation: sum of |differences| of neighbors [loss]."""
    return ops.absolute(x[:, 1:] - x[:, :-1]).sum()


# Matrices


def regular(rng, shape):
    """Return a well-conditioned square matrix."""
    return rng.normal(size=(shape[-1], shape[-1])) + 3 * np.eye(shape[-1])


@right((3, 3), first=regular, second=lambda rng, x: rng.normal(size=(len(x), 2)))
@differentiable
def solve(a, b):
    """Solution of a x = b; its gradient solves with a transposed [matrix]."""
    x = np.linalg.solve(a, b)

    def vjp(g):
        gb = np.linalg.solve(np.swapaxes(a, -1, -2), g)
        return -gb @ np.swapaxes(x, -1, -2), gb

    return x, vjp


@right((3, 3), first=regular)
@differentiable
def inverse(a):
    """Inverse of a matrix [matrix]."""
    y = np.linalg.inv(a)
    turned = np.swapaxes(y, -1, -2)
    return y, lambda g: (-turned @ g @ turned,)


# Masks, indices and broadcasting


@right(second=lambda rng, x: rng.random(x.shape) < 0.6)
@differentiable
def masked_mean(x, mask):
    """Mean of the unmasked entries, 0 if there are none [masks]."""
    n = np.maximum(mask.sum(), 1).astype(x.dtype)
    return (x * mask).sum() / n, lambda g: (g * mask / n, None)


@right(second=lambda rng, x: rng.normal(size=x.shape))
@differentiable
def product_repeated(a, b):
    """a b with broadcasting of either [masks]."""

    def fitted(g, x):
        g = g.sum(axis=tuple(range(g.ndim - x.ndim)))
        return g.sum(axis=tuple(k for k in range(x.ndim) if x.shape[k] < g.shape[k]), keepdims=True)

    return a * b, lambda g: (fitted(g * b, a), fitted(g * a, b))


@right((5, 3), second=lambda rng, x: rng.integers(0, len(x), size=4))
@differentiable
def rows_from_the_end(x, index):
    """Rows by index, negative ones from the end [places]."""

    def vjp(g):
        gx = np.zeros_like(x)
        np.add.at(gx, index, g)
        return gx, None

    return x[index], vjp
