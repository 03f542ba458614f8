"""Exercise 6. A layer norm and its three gradients."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    """gamma * (x - mean) / sqrt(var + eps) + beta over the last axis of x (..., D), and its vjp.

    var is the mean of the squared distances from the mean. gamma and beta (D,) are shared by all rows. Returns y and a
    function that takes g (..., D) and gives a tuple: the gradients of x (..., D), of gamma (D,) and of beta (D,).
    """
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    xhat = centred * rstd
    y = gamma * xhat + beta

    def vjp(g):
        h = g * gamma  # what reaches xhat
        along_ones = h.mean(axis=-1, keepdims=True)  # the mean does not feel a shift of the row: taken away
        along_xhat = xhat * (h * xhat).mean(axis=-1, keepdims=True)  # nor the root a stretching of it
        rows = tuple(range(g.ndim - 1))
        return rstd * (h - along_ones - along_xhat), (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return y, vjp
