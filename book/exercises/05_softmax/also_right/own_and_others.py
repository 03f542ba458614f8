"""Add the effects of an input on its own output and on the others."""

import numpy as np


def softmax(x):
    """Split the Jacobian into its diagonal and the rest."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)

    def vjp(g):
        own = g * y * (1 - y)
        others = -y * ((g * y).sum(axis=-1, keepdims=True) - g * y)
        return (own + others,)

    return y, vjp
