"""Many random inputs, rounded so that ties occur."""

import numpy as np


def inputs():
    """Draw several inputs of each shape."""
    random = np.random.default_rng(0)
    shapes = [(1, 4), (2, 3), (3, 2), (2, 2), (4, 1)]
    return [(np.round(random.normal(size=s)), random.normal(size=s[0])) for s in shapes for _ in range(5)]
