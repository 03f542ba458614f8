"""g is 1 everywhere, so a gradient that forgets to multiply by g is right by chance. Try other values."""

import numpy as np


def inputs():
    return [(np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), np.array([1.0, 1.0]))]
