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
    """Positions sorted by id, one sum for each run of equal ids: no scattered writes."""
    gtable = np.zeros((rows, g.shape[-1]), g.dtype)
    flat = ids.reshape(-1)
    if not flat.size:
        return gtable
    order = np.argsort(flat, kind="stable")
    in_order = flat[order]
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    gtable[in_order[starts]] = np.add.reduceat(g.reshape(-1, g.shape[-1])[order], starts, axis=0)
    return gtable
