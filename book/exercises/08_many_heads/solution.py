"""Exercise 8. Many heads and a causal mask."""

import numpy as np


def split(x, n_heads):
    """Return x (B, T, D) as (B, H, T, D / H): the first D / H columns form head 0, the next D / H head 1, ..."""
    b, t, d = x.shape
    return x.reshape(b, t, n_heads, d // n_heads).swapaxes(1, 2)  # cut the last axis, then bring the heads forward


def merge(y):
    """Undo `split`: return y (B, H, T, d) as (B, T, H d)."""
    b, h, t, d = y.shape
    return y.swapaxes(1, 2).reshape(b, t, h * d)  # the same two steps in reverse order


def causal(n_queries, n_keys):
    """Return a bool array (n_queries, n_keys): True where the key is at the query's position or before it.

    The queries are at the last positions of the keys: two queries over five keys are at positions 3 and 4.
    """
    positions = np.arange(n_keys - n_queries, n_keys)  # the position of each query
    return np.arange(n_keys) <= positions[:, None]  # <= includes the query's own position
