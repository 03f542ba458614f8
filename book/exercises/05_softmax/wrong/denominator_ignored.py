"""The denominator depends on x too: every input of the row is part of the sum that you divide by."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (g * y,)
