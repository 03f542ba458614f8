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
    scale = 1 / np.sqrt(q.shape[1])
    p, saved = softmax(q @ k.T * scale, allowed)  # (T, S), a row of weights for each query
    y = p @ v

    def vjp(g):
        to_p = g @ v.T  # (T, S)
        to_scores = softmax_grad(to_p, saved) * scale  # 0 where it is not allowed: p is 0 there
        return to_scores @ k, to_scores.T @ q, p.T @ g  # each product turned round, as in any matmul

    return y, vjp
