"""The whole matrix diag(y) - y y^T, row by row."""

import numpy as np


def softmax(x):
    """By the matrix of slopes, which is n times as large as y."""
    shifted = np.exp(x - np.max(x, -1)[..., None])
    y = shifted / shifted.sum(-1)[..., None]

    def vjp(g):
        slopes = y[..., :, None] * np.eye(x.shape[-1]) - y[..., :, None] * y[..., None, :]
        return ((g[..., None, :] @ slopes)[..., 0, :],)

    return y, vjp
