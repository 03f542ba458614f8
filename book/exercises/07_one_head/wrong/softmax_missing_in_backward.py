"""The backward pass skips the softmax: you pass the gradient of p to the scores unchanged."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    scale = 1 / np.sqrt(q.shape[1])
    p, saved = softmax(q @ k.T * scale, allowed)

    def vjp(g):
        to_scores = (g @ v.T) * scale
        return to_scores @ k, to_scores.T @ q, p.T @ g

    return p @ v, vjp
