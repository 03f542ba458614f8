"""This is each output's slope by its own input alone, y (1 - y). The other outputs of the row move as well."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (g * y * (1 - y),)
