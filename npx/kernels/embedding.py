"""Rows of a table by index, and the sum of gradients that comes back to each row (paper section 3.4)."""

from typing import Any

import numpy as np

from npx.device import array_module
from npx.registry import kernel


@kernel
def embedding(table: Any, ids: Any) -> Any:
    """y = table[ids]. table (V, D); ids (...) integers in [0, V); y (..., D)."""
    return table[ids]


@kernel
def embedding_grad(g: Any, ids: Any, rows: int) -> Any:
    """gtable (rows, D) with gtable[v] = sum of g over the positions where ids == v. g (..., D); ids (...).

    Repeated ids add up. The order of the sum is the order of the positions, so it can be repeated bit for bit.
    """
    xp = array_module(g)
    gtable = xp.zeros((rows, g.shape[-1]), g.dtype)
    xp.add.at(gtable, ids.reshape(-1), g.reshape(-1, g.shape[-1]))
    return gtable


@embedding_grad.fast("numpy", "float32", "float64")
def embedding_grad_numpy(g: np.ndarray, ids: np.ndarray, rows: int) -> np.ndarray:
    """Only the rows that occur are summed, without scattered writes."""
    gtable = np.zeros((rows, g.shape[-1]), g.dtype)
    found, sums = sums_by_id(g.reshape(-1, g.shape[-1]), ids.reshape(-1))
    gtable[found] = sums
    return gtable


def sums_by_id(g: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different ids (U,), ascending, and for each the sum of its rows of g (N, D), (U, D), in the rows' order."""
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    starts = np.flatnonzero(np.concatenate((in_order[:1] == in_order[:1], in_order[1:] != in_order[:-1])))
    if not len(starts):
        return in_order, g[order]
    return in_order[starts], np.add.reduceat(g[order], starts, axis=0)
