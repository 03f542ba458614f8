"""You subtract the row's minimum, so large scores still overflow. Subtract the maximum."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.min(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=-1, keepdims=True)),)
