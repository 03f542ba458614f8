"""The gradient that reaches xhat is g * gamma. Your code passes g on unchanged."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    centered = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + eps)
    xhat = centered * rstd

    def vjp(g):
        h = g
        rows = tuple(range(g.ndim - 1))
        gx = rstd * (h - h.mean(axis=-1, keepdims=True) - xhat * (h * xhat).mean(axis=-1, keepdims=True))
        return gx, (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return gamma * xhat + beta, vjp
