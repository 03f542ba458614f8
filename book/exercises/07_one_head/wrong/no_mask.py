"""You never use `allowed`, so every query looks at every key."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    scale = 1 / np.sqrt(q.shape[1])
    p, saved = softmax(q @ k.T * scale)

    def vjp(g):
        to_scores = softmax_grad(g @ v.T, saved) * scale
        return to_scores @ k, to_scores.T @ q, p.T @ g

    return p @ v, vjp
