"""You use one maximum for all rows. A row far below it becomes exp(-1000) = 0 everywhere, and 0 / 0 is nan."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max())
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=-1, keepdims=True)),)
