"""Compute a times 1 / b and save the reciprocal."""

import numpy as np

from autograd.operations import unbroadcast


def divide(a, b):
    """Save 1 / b instead of the quotient."""
    r = np.reciprocal(b)
    return a * r, lambda g: (unbroadcast(g * r, a), unbroadcast(-g * a * r * r, b))
