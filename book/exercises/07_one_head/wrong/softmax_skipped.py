"""The way back goes past the softmax: what comes from p is handed to the scores as it is."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    scale = 1 / np.sqrt(q.shape[1])
    p, saved = softmax(q @ k.T * scale, allowed)

    def vjp(g):
        to_scores = (g @ v.T) * scale
        return to_scores @ k, to_scores.T @ q, p.T @ g

    return p @ v, vjp
