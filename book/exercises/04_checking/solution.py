"""Exercise 4. Inputs that no mistake gets past."""

import numpy as np


def inputs():
    """A list of pairs x (rows, columns), g (rows,) on which a check of gradients finds three mistakes.

    The operation is y = max(x) - mean(x) of each row. What it does to g is right here, and wrong in three ways:

        top = x == x.max(axis=1, keepdims=True)
        right   g[:, None] * (top / top.sum(axis=1, keepdims=True) - 1 / x.shape[1])
        first   g[:, None] * (top - 1 / x.shape[1])
        second  g[:, None] * (top / top.sum(axis=1, keepdims=True) - 1 / x.shape[0])
        third   (top / top.sum(axis=1, keepdims=True) - 1 / x.shape[1])

    The check moves all equal numbers of a row together and compares slopes. The right one has to pass it.
    """
    tie = np.array([[1.0, 1.0, 0.0]])  # the first needs a maximum that is there twice
    wide = np.array([[0.0, 1.0, 2.0], [2.0, 1.0, 0.5]])  # the second a shape that is not square
    return [(tie, np.array([1.0])), (wide, np.array([2.0, -3.0]))]  # and the third a g that is not 1
