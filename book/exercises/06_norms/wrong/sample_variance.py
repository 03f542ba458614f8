"""You divide by D - 1, as for a sample variance. A norm uses the mean of the squares, so divide by D."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    d = x.shape[-1]
    centered = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centered * centered).sum(axis=-1, keepdims=True) / (d - 1) + eps)
    xhat = centered * rstd

    def vjp(g):
        h = g * gamma
        rows = tuple(range(g.ndim - 1))
        along = xhat * (h * xhat).sum(axis=-1, keepdims=True) / (d - 1)
        return rstd * (h - h.mean(axis=-1, keepdims=True) - along), (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return gamma * xhat + beta, vjp
