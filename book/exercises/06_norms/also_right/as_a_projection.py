"""The centring is a matrix, applied to the gradient as it was to x."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    """P = 1 - 11^T / D, which is its own transpose."""
    d = x.shape[-1]
    centre = np.eye(d) - np.ones((d, d)) / d
    z = x @ centre
    r = (np.mean(z**2, axis=-1, keepdims=True) + eps) ** -0.5

    def vjp(g):
        h = g * gamma
        to_z = r * h - z * r**3 * np.mean(h * z, axis=-1, keepdims=True)
        return to_z @ centre, (g * z * r).reshape(-1, d).sum(0), g.reshape(-1, d).sum(0)

    return z * r * gamma + beta, vjp
