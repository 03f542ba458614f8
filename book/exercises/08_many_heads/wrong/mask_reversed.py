"""The mask is reversed: it allows later positions and hides earlier ones."""

import numpy as np


def split(x, n_heads):
    b, t, d = x.shape
    return x.reshape(b, t, n_heads, d // n_heads).swapaxes(1, 2)


def merge(y):
    b, h, t, d = y.shape
    return y.swapaxes(1, 2).reshape(b, t, h * d)


def causal(n_queries, n_keys):
    positions = np.arange(n_keys - n_queries, n_keys)
    return np.arange(n_keys) >= positions[:, None]
