"""You mask after the softmax, so the remaining weights of a row no longer sum to 1. Mask the scores before it."""

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
