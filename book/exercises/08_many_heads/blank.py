"""Exercise 8. Many heads and a causal mask."""

import numpy as np


def split(x, n_heads):
    """Return x (B, T, D) as (B, H, T, D / H): the first D / H columns form head 0, the next D / H head 1, ..."""
    ...  # yours


def merge(y):
    """Undo `split`: return y (B, H, T, d) as (B, T, H d)."""
    ...  # yours


def causal(n_queries, n_keys):
    """Return a bool array (n_queries, n_keys): True where the key is at the query's position or before it.

    The queries are at the last positions of the keys: two queries over five keys are at positions 3 and 4.
    """
    ...  # yours
