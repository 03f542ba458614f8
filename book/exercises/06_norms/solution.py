"""Exercise 6. A layer norm and its three gradients."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    """Return gamma * (x - mean) / sqrt(var + eps) + beta over the last axis of x (..., D), and its vjp.

    var is the mean of the squared distances from the mean. All rows share gamma and beta (D,). The vjp takes g (..., D)
    and returns a tuple with the gradients of x (..., D), gamma (D,) and beta (D,).
    """
    centered = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + eps)
    xhat = centered * rstd
    y = gamma * xhat + beta

    def vjp(g):
        h = g * gamma  # the gradient with respect to xhat
        along_ones = h.mean(axis=-1, keepdims=True)  # shifting a row does not change y: remove this part of h
        along_xhat = xhat * (h * xhat).mean(axis=-1, keepdims=True)  # nor does scaling a row: remove this part too
        rows = tuple(range(g.ndim - 1))
        return rstd * (h - along_ones - along_xhat), (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return y, vjp
