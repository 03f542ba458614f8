"""Exercise 4. Inputs that expose every bug."""

import numpy as np


def inputs():
    """Return a list of pairs (x, g) with which a gradient check exposes three bugs.

    x has the shape (rows, columns) and g, the gradient of the output, has the shape (rows,). The operation is
    y = max(x) - mean(x) of each row. Here are its correct gradient and three wrong ones:

        top = x == x.max(axis=1, keepdims=True)
        right   g[:, None] * (top / top.sum(axis=1, keepdims=True) - 1 / x.shape[1])
        first   g[:, None] * (top - 1 / x.shape[1])
        second  g[:, None] * (top / top.sum(axis=1, keepdims=True) - 1 / x.shape[0])
        third   (top / top.sum(axis=1, keepdims=True) - 1 / x.shape[1])

    The check moves all equal numbers of a row together and compares slopes. The correct gradient must pass it.
    """
    return [(..., ...)]  # yours
