"""Center x, and later its gradient, with the same matrix."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    """Center with I - 11^T / D, which is its own transpose."""
    d = x.shape[-1]
    center = np.eye(d) - np.ones((d, d)) / d
    z = x @ center
    r = (np.mean(z**2, axis=-1, keepdims=True) + eps) ** -0.5

    def vjp(g):
        h = g * gamma
        to_z = r * h - z * r**3 * np.mean(h * z, axis=-1, keepdims=True)
        return to_z @ center, (g * z * r).reshape(-1, d).sum(0), g.reshape(-1, d).sum(0)

    return z * r * gamma + beta, vjp
