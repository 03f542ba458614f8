"""The squares are divided by D - 1, as a statistician would. Here it is their mean: by D."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    d = x.shape[-1]
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).sum(axis=-1, keepdims=True) / (d - 1) + eps)
    xhat = centred * rstd

    def vjp(g):
        h = g * gamma
        rows = tuple(range(g.ndim - 1))
        along = xhat * (h * xhat).sum(axis=-1, keepdims=True) / (d - 1)
        return rstd * (h - h.mean(axis=-1, keepdims=True) - along), (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return gamma * xhat + beta, vjp
