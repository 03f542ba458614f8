"""The sum in your gradient runs over all rows. Each row has its own softmax, so it needs its own sum."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum()),)
