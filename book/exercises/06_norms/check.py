"""x affects y directly, through the mean and through the variance: three terms. All rows share gamma and beta."""

import numpy as np

import npx
from book.exercise import close_to, draw, gradient_check, operation, which_are_right


def right(x, gamma, beta, eps):
    y, saved = npx.layer_norm.reference(x, gamma, beta, eps)
    return y, lambda g: npx.layer_norm_grad.reference(g, *saved)


def edges(seed):
    yield np.array([3.0, 1.0]), np.array([1.0, 1.0]), np.array([0.0, 0.0]), 1.0
    yield np.array([3.0, 1.0]), np.array([2.0, 3.0]), np.array([0.0, 5.0]), 0.0001
    yield np.array([3.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0]), 0.0001
    yield np.array([[3.0, 1.0], [0.0, 4.0]]), np.array([2.0, 3.0]), np.array([0.0, 5.0]), 1.0
    yield np.array([[2.0, 2.0]]), np.array([2.0, 3.0]), np.array([0.0, 5.0]), 0.0001


def drawn(seed):
    for shape in ((3,), (1, 3), (2, 3), (3, 2), (3, 3), (2, 2, 3)):
        d = shape[-1:]
        yield draw(seed, *shape), draw(seed + 1, *d) + 1.5, draw(seed + 2, *d), [1.0, 1e-3][seed % 2]


def explain(yours, expected, g, x, gamma, beta, eps):
    to_x = np.asarray(yours[0])
    if close_to(to_x, expected[0]):
        return which_are_right(yours, expected)
    if to_x.shape == x.shape and abs(to_x.sum(axis=-1)).max() > 1e-9:
        return "A shift of a whole row leaves y unchanged, so each row's gradient of x must sum to 0. Yours does not."
    return "The gradient of x sums to 0, so the mean's term is right. Look at the variance's term and at the divisor."


STAGES = operation("layer_norm", right, edges, drawn, differentiated=3, explain=explain)
GRADIENT_CHECK = gradient_check("layer_norm", draw(1, 2, 3), draw(2, 3), draw(3, 3), eps=0.5)
AFTER = """\
The real one (npx/kernels/layer_norm.py) computes the same three terms in place, and both sums over rows one block at
a time. The blocks are added in a fixed order, so the result does not depend on the number of threads."""
