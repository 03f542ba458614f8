"""Exercise 7. One head of attention."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    """Return softmax(q k^T / sqrt(d)) v, where each query attends only to its allowed keys, and its vjp.

    q is (T, d), k (S, d), v (S, m), and allowed (T, S) is bool, with a True in each row. The output is (T, m). The vjp
    takes g (T, m) and returns a tuple with the gradients of q, k and v.

    Two functions are given. softmax(x, mask) returns (y, saved) and treats x as -inf where the mask is False.
    softmax_grad(g, saved) returns the gradient of x.
    """
    y = ...  # yours

    def vjp(g):
        return (..., ..., ...)  # yours

    return y, vjp
