"""Mean and variance are taken for constants. Both are made of x, and each gives a term."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)
    xhat = centred * rstd

    def vjp(g):
        h = g * gamma
        rows = tuple(range(g.ndim - 1))
        return rstd * h, (g * xhat).sum(axis=rows), g.sum(axis=rows)

    return gamma * xhat + beta, vjp
