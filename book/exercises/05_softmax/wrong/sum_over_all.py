"""The sum in the gradient goes over all rows. Each row has a softmax of its own, and a sum of its own."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum()),)
