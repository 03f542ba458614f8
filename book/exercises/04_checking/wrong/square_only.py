"""Every x is square, so dividing by the number of rows instead of columns goes unnoticed."""

import numpy as np


def inputs():
    return [(np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([2.0, -3.0]))]
