"""Exercise 7. One head of attention."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    """softmax(q k^T / sqrt(d)) v, each query looking only where it is allowed to, and its vjp.

    q (T, d); k (S, d); v (S, m); allowed (T, S) bool, with a True in each row. Returns y (T, m) and a function that
    takes g (T, m) and gives a tuple of three: the gradients of q, k and v.

    Given: softmax(x, mask) gives (y, saved), where the mask is False as if x were -inf; softmax_grad(g, saved) its
    gradient.
    """
    y = ...  # yours

    def vjp(g):
        return (..., ..., ...)  # yours

    return y, vjp
