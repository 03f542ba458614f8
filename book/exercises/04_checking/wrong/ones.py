"""g is 1 everywhere: a gradient that forgets to multiply by it is right by chance."""

import numpy as np


def inputs():
    return [(np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]), np.array([1.0, 1.0]))]
