"""You sum over axis 0 only. Sum over all axes except the last; a single row (D,) has nothing to sum."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    centered = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + eps)
    xhat = centered * rstd

    def vjp(g):
        h = g * gamma
        rows = 0
        gx = rstd * (h - h.mean(axis=-1, keepdims=True) - xhat * (h * xhat).mean(axis=-1, keepdims=True))
        return gx, (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return gamma * xhat + beta, vjp
