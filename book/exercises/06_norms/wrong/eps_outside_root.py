"""You add eps to the standard deviation. Add it to the variance, under the square root."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    centered = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / (np.sqrt((centered * centered).mean(axis=-1, keepdims=True)) + eps)
    xhat, rows = centered * rstd, tuple(range(x.ndim - 1))

    def vjp(g):
        h = g * gamma
        gx = rstd * (h - h.mean(axis=-1, keepdims=True) - xhat * (h * xhat).mean(axis=-1, keepdims=True))
        return gx, (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return gamma * xhat + beta, vjp
