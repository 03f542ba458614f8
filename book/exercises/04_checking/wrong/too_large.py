"""The numbers are so large that a step of 0.00001 is rounded away: then the right gradient fails as well."""

import numpy as np


def inputs():
    return [(np.array([[1e15, 1e15, 0.0], [0.0, 1e15, 2e15]]), np.array([2.0, -3.0]))]
