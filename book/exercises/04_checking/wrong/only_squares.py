"""Every x is square: then the number of rows is the number of columns, and a mean over the wrong one looks right."""

import numpy as np


def inputs():
    return [(np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([2.0, -3.0]))]
