"""Two numbers of a row are almost equal. The step of the check crosses the corner, so the right gradient fails too."""

import numpy as np


def inputs():
    return [(np.array([[1.0, 1.0 + 1e-7, 0.0], [2.0, 2.0, 2.0]]), np.array([2.0, -3.0]))]
