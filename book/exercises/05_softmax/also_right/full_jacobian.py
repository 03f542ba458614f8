"""Build the full Jacobian diag(y) - y y^T of each row."""

import numpy as np


def softmax(x):
    """Use the Jacobian, which is n times as large as y."""
    shifted = np.exp(x - np.max(x, -1)[..., None])
    y = shifted / shifted.sum(-1)[..., None]

    def vjp(g):
        jacobian = y[..., :, None] * np.eye(x.shape[-1]) - y[..., :, None] * y[..., None, :]
        return ((g[..., None, :] @ jacobian)[..., 0, :],)

    return y, vjp
