"""Add the mask to the scores as -inf, and write out the softmax."""

import numpy as np


def attention(q, k, v, allowed):
    """Use neither of the given functions."""
    root = np.sqrt(q.shape[-1])
    scores = np.einsum("td,sd->ts", q, k) / root + np.where(allowed, 0, -np.inf)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = e / e.sum(axis=1, keepdims=True)

    def vjp(g):
        gv = np.einsum("ts,tm->sm", weights, g)
        gw = np.einsum("tm,sm->ts", g, v)
        gs = weights * (gw - (gw * weights).sum(axis=1, keepdims=True)) / root
        return np.einsum("ts,sd->td", gs, k), np.einsum("ts,td->sd", gs, q), gv

    return weights @ v, vjp
