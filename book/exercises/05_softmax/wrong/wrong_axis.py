"""Your softmax runs over the first axis, so the columns sum to 1. Use the last axis, so that the rows do."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=0, keepdims=True))
    y = e / e.sum(axis=0, keepdims=True)
    return y, lambda g: (y * (g - (g * y).sum(axis=0, keepdims=True)),)
