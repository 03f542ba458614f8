"""Rows of a table by index, and the sum of gradients that comes back to each row (paper section 3.4)."""

from typing import Any

import numpy as np

from npx.cuda import THREADS, contiguous, launch
from npx.device import array_module
from npx.registry import kernel


@kernel
def embedding(table: Any, ids: Any) -> Any:
    """y = table[ids], a new array. table (V, D); ids (...) integers in [0, V); y (..., D)."""
    return array_module(table).take(table, ids, axis=0)  # indexing would give a view for a single id


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


@embedding.fast("cupy", "float32", "float16", "bfloat16")
def embedding_cuda(table: Any, ids: Any) -> Any:
    """A warp for each row."""
    table, ids, d = contiguous(table), contiguous(ids), table.shape[1]
    y = array_module(table).empty((*ids.shape, d), table.dtype)
    args = table, ids, y, np.int64(ids.size), np.int32(d)
    launch("embedding.cu", "embedding", -(-ids.size // (THREADS // 32)), THREADS, args, T=table.dtype, ID=ids.dtype)
    return y


@embedding_grad.fast("cupy", "float32", "float16", "bfloat16")
def embedding_grad_cuda(g: Any, ids: Any, rows: int) -> Any:
    """Positions sorted by id, a block for each run of equal ids: no atomic additions, whose order would vary."""
    xp = array_module(g)
    g, ids, d = contiguous(g), contiguous(ids), g.shape[-1]
    gtable = xp.zeros((rows, d), g.dtype)
    order = xp.argsort(ids.reshape(-1), kind="stable").astype(np.int64, copy=False)
    args = g, ids, order, gtable, np.int64(ids.size), np.int32(d)
    launch("embedding.cu", "embedding_grad", (ids.size, -(-d // 256)), 256, args, T=g.dtype, ID=ids.dtype)
    return gtable
