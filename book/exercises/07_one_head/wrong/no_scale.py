"""You do not divide the scores by sqrt(d). With large d, one weight takes everything and the gradient vanishes."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    scale = 1.0
    p, saved = softmax(q @ k.T * scale, allowed)

    def vjp(g):
        to_scores = softmax_grad(g @ v.T, saved) * scale
        return to_scores @ k, to_scores.T @ q, p.T @ g

    return p @ v, vjp
