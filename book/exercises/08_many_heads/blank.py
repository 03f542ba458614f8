"""Exercise 8. Many heads, and nobody looks ahead."""

import numpy as np


def split(x, heads):
    """x (B, T, D) as (B, H, T, D / H): the first D / H columns are the first head's, the next the second's, ..."""
    ...  # yours


def merge(y):
    """What `split` took apart, put together: y (B, H, T, d) as (B, T, H d)."""
    ...  # yours


def causal(queries, keys):
    """Which key each query may look at, bool (queries, keys): its own position and those before it.

    The queries are the last ones of the positions that have keys: two queries over five keys stand at 3 and 4.
    """
    ...  # yours
