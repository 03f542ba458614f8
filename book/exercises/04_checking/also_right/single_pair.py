"""A single input exposes all three bugs."""

import numpy as np


def inputs():
    """Return a 2x3 input with a tie and with g other than 1."""
    return [(np.array([[3.0, 3.0, 1.0], [0.0, -1.0, -2.0]]), np.array([0.5, 2.0]))]
