"""Exercise 5. Softmax and its gradient."""

import numpy as np


def softmax(x):
    """Return exp(x_i) / sum_j exp(x_j) over the last axis of x (..., n), and its vjp.

    The vjp takes g (..., n), the gradient with respect to the output, and returns a tuple with one array, the gradient
    with respect to x. Numbers as large as 1000 must work.
    """
    y = ...  # yours

    def vjp(g):
        return (...,)  # yours

    return y, vjp
