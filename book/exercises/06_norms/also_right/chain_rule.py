"""Apply the chain rule through the variance and the mean."""

import numpy as np


def layer_norm(x, gamma, beta, eps):
    """Go backward through every intermediate value."""
    n = x.shape[-1]
    mean = x.sum(-1, keepdims=True) / n
    var = ((x - mean) ** 2).sum(-1, keepdims=True) / n
    std = np.sqrt(var + eps)

    def vjp(g):
        to_hat = g * gamma
        to_var = (to_hat * (x - mean)).sum(-1, keepdims=True) * -0.5 * std**-3
        to_mean = -(to_hat / std).sum(-1, keepdims=True)
        to_x = to_hat / std + to_var * 2 * (x - mean) / n + to_mean / n
        flat = (-1, n)
        return to_x, (g * (x - mean) / std).reshape(flat).sum(0), g.reshape(flat).sum(0)

    return gamma * ((x - mean) / std) + beta, vjp
