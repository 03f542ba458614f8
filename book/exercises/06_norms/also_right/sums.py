"""Use sums in place of means."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    """Multiply the gradient of xhat by D, and divide once at the end."""
    n = x.shape[-1]
    root = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    xhat = (x - x.mean(axis=-1, keepdims=True)) / root
    y = xhat * gamma + beta

    def vjp(g):
        h = g * gamma
        total = h.sum(axis=-1, keepdims=True)
        dot = (h * xhat).sum(axis=-1, keepdims=True)
        to_x = (n * h - total - xhat * dot) / (n * root)
        rows = tuple(range(g.ndim - 1))
        return to_x, np.sum(g * xhat, axis=rows), np.sum(g, axis=rows)

    return y, vjp
