"""In every row where g is not 1, all numbers are equal. Moved together they leave y unchanged, whatever g is."""

import numpy as np


def inputs():
    return [(np.array([[1.0, 1.0]]), np.array([3.0])), (np.array([[2.0, 1.0, 1.0]]), np.array([1.0]))]
