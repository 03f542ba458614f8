"""Exercise 5. Softmax and its gradient."""

import numpy as np


def softmax(x):
    """exp(x_i) / sum_j exp(x_j) over the last axis of x (..., n), and its vjp.

    Returns y (..., n) and a function that takes g (..., n), the gradient with respect to y, and gives a tuple with one
    array, the gradient with respect to x. Numbers as large as 1000 are welcome.
    """
    y = ...  # yours

    def vjp(g):
        return (...,)  # yours

    return y, vjp
