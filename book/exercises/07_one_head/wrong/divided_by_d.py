"""You divide the scores by d. Divide by sqrt(d), the typical size of a sum of d products of size 1."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    scale = 1 / q.shape[1]
    p, saved = softmax(q @ k.T * scale, allowed)

    def vjp(g):
        to_scores = softmax_grad(g @ v.T, saved) * scale
        return to_scores @ k, to_scores.T @ q, p.T @ g

    return p @ v, vjp
