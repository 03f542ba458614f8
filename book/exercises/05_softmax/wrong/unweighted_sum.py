"""You subtract the plain sum of g. Weight each term by y: the sum is sum_j g_j y_j."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - g.sum(axis=-1, keepdims=True)),)
