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
    wrong = which_are_right(yours, expected) or "None of the three gradients is right."
    if to_x.shape == x.shape and abs(to_x.sum(axis=-1)).max() > 1e-9:
        wrong += " A shift of a row leaves y unchanged, so each row of the first must sum to 0. Yours does not."
    return wrong


STAGES = operation("layer_norm", right, edges, drawn, differentiated=3, explain=explain)
GRADIENT_CHECK = gradient_check("layer_norm", draw(1, 2, 3), draw(2, 3), draw(3, 3), eps=0.5)
NAMES = {
    "centered": "x - mean",
    "rstd": "1 / sqrt(var + eps)",
    "xhat": "(x - mean) / sqrt(var + eps)",
    "y": "the output",
    "h": "the gradient of xhat",
    "along_ones": "the mean of h",
    "along_xhat": "xhat times the mean of h xhat",
    "rows": "the axes of the rows",
    "center": "the matrix that subtracts the mean",
    "z": "x - mean",
    "r": "1 / sqrt(var + eps)",
    "to_z": "the gradient of x - mean",
    "d": "D",
    "n": "D",
    "flat": "the shape (-1, D)",
    "mean": "the mean",
    "std": "sqrt(var + eps)",
    "root": "sqrt(var + eps)",
    "total": "the sum of h",
    "dot": "the sum of h xhat",
    "var": "the variance",
    "to_hat": "the gradient of xhat",
    "to_var": "the gradient of var",
    "to_mean": "the gradient of the mean",
    "to_x": "the gradient of x",
}
AFTER = """\
The real one (npx/kernels/layer_norm.py) computes the same three terms in place, and both sums over rows one block at
a time. The blocks are added in a fixed order, so the result does not depend on the number of threads."""
