"""What is subtracted is the plain sum of g. It has to be weighed by y: sum_j g_j y_j."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return y, lambda g: (y * (g - g.sum(axis=-1, keepdims=True)),)
