"""Permute axes by name with einsum, and slice the mask from a square one."""

import numpy as np


def split(x, n_heads):
    """Permute (b, t, h, d) to (b, h, t, d)."""
    return np.einsum("bthd->bhtd", x.reshape(*x.shape[:2], n_heads, -1))


def merge(y):
    """Permute back, then reshape."""
    swapped = np.transpose(y, (0, 2, 1, 3))
    return swapped.reshape(*swapped.shape[:2], -1)


def causal(n_queries, n_keys):
    """Return the last rows of the square mask."""
    return ~np.triu(np.ones((n_keys, n_keys), bool), 1)[n_keys - n_queries :]
