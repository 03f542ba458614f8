"""Axes by name; the last rows of a square mask."""

import numpy as np


def split(x, heads):
    """b t h d to b h t d."""
    return np.einsum("bthd->bhtd", x.reshape(*x.shape[:2], heads, -1))


def merge(y):
    """And back."""
    moved = np.transpose(y, (0, 2, 1, 3))
    return moved.reshape(moved.shape[0], moved.shape[1], -1)


def causal(queries, keys):
    """Those before, of all positions."""
    return ~np.triu(np.ones((keys, keys), bool), 1)[keys - queries :]
