"""The mask comes after the softmax: the weights of a row do not sum to 1 any more, some were thrown away."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    scale = 1 / np.sqrt(q.shape[1])
    y, saved = softmax(q @ k.T * scale)
    p = y * allowed

    def vjp(g):
        to_scores = softmax_grad(g @ v.T * allowed, saved) * scale
        return to_scores @ k, to_scores.T @ q, p.T @ g

    return p @ v, vjp
