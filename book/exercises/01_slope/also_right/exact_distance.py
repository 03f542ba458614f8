"""Divide by the distance between the two rounded points."""

import numpy as np


def slope(f, x, h):
    """Measure the distance, because x + h and x - h are rounded."""
    right, left = x + h, x - h
    return (f(right) - f(left)) / (right - left)


def step(x):
    """Use NumPy's eps."""
    return np.cbrt(np.finfo(float).eps) * max(1.0, float(np.abs(x)))
