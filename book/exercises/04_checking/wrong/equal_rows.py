"""Where g is not 1 all numbers of the row are equal, or it has one: moved together they move nothing, whatever g is."""

import numpy as np


def inputs():
    return [(np.array([[1.0, 1.0]]), np.array([3.0])), (np.array([[2.0, 1.0, 1.0]]), np.array([1.0]))]
