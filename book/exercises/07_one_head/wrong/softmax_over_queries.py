"""Your softmax runs over the queries, so the weights of each key sum to 1. Those of each query should."""

import numpy as np

from npx import softmax, softmax_grad


def attention(q, k, v, allowed):
    scale = 1 / np.sqrt(q.shape[1])
    p_transposed, saved = softmax((q @ k.T * scale).T, allowed.T)
    p = p_transposed.T

    def vjp(g):
        to_scores = softmax_grad((g @ v.T).T, saved).T * scale
        return to_scores @ k, to_scores.T @ q, p.T @ g

    return p @ v, vjp
