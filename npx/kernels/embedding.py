"""Rows of a table by index, and the sum of gradients that comes back to each row (paper section 3.4)."""

from typing import Any

import numpy as np

from npx.array import Array, array_module
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.registry import Output, kernel


@kernel
def embedding(table: Array, ids: Array, scale: float = 1.0) -> Output:
    """y = scale * table[ids]. table (V, D); ids (...) integers in [0, V); y (..., D). Saved: ids, V, scale."""
    y = array_module(table).take(table, ids, axis=0)  # a new array, where indexing gives a view for a single id
    if scale != 1.0:
        y *= scale
    return y, (ids, len(table), scale)


@embedding.gradient
def embedding_grad(g: Array, ids: Array, rows: int, scale: float, into: Array | None = None) -> Array:
    """gtable (rows, D) with gtable[v] = scale * sum of g over the positions where ids == v. g (..., D); ids (...).

    `into`: an array that it is added to, if not None.

    Repeated ids add up. The order of the sum is the order of the positions, so it can be repeated bit for bit. What is
    scaled are the rows of g, which are far fewer than those of the table.
    """
    xp = array_module(g)
    g = g if scale == 1.0 else (g * scale).astype(g.dtype, copy=False)
    gtable = xp.zeros((rows, g.shape[-1]), g.dtype)
    xp.add.at(gtable, ids.reshape(-1), g.reshape(-1, g.shape[-1]))
    if into is None:
        return gtable
    into += gtable
    return into


embedding.fast("numpy", "float32", "float64")(embedding.reference)  # it is the gradient that can be faster


@embedding_grad.fast("numpy", "float32", "float64")
def embedding_grad_numpy(g: Array, ids: Array, rows: int, scale: float, into: Array | None = None) -> Array:
    """Only the rows that occur are summed, without scattered writes."""
    g = g if scale == 1.0 else (g * scale).astype(g.dtype, copy=False)
    gtable = np.zeros((rows, g.shape[-1]), g.dtype) if into is None else into
    found, sums = sums_by_id(g.reshape(-1, g.shape[-1]), ids.reshape(-1))
    gtable[found] += sums
    return gtable


def sums_by_id(g: Array, ids: Array) -> tuple[Array, Array]:
    """The different ids (U,), ascending, and for each the sum of its rows of g (N, D), (U, D), in the rows' order."""
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    starts = np.flatnonzero(np.concatenate((in_order[:1] == in_order[:1], in_order[1:] != in_order[:-1])))
    if not len(starts):
        return in_order, g[order]
    return in_order[starts], np.add.reduceat(g[order], starts, axis=0)


@embedding.fast("cupy", "float32", "float16", "bfloat16")
def embedding_cuda(table: Array, ids: Array, scale: float = 1.0) -> Output:
    """A warp for each row."""
    table, ids, d = contiguous(table), contiguous(ids), table.shape[1]
    y = array_module(table).empty((*ids.shape, d), table.dtype)
    args = table, ids, y, np.int64(ids.size), np.int32(d), np.float32(scale)
    blocks = -(-ids.size // (BLOCK_THREADS // 32))
    launch("embedding.cu", "embedding", blocks, BLOCK_THREADS, args, T=table.dtype, ID=ids.dtype)
    return y, (ids, len(table), scale)


@embedding_grad.fast("cupy", "float32", "float16", "bfloat16")
def embedding_grad_cuda(g: Array, ids: Array, rows: int, scale: float, into: Array | None = None) -> Array:
    """Positions sorted by id, a block for each run of equal ids: no atomic additions, whose order would vary."""
    xp = array_module(g)
    g, d = contiguous(g), g.shape[-1]
    total = into if into is not None and into.dtype == np.float32 else None
    gtable: Any = xp.zeros((rows, d), g.dtype) if total is None else None
    order = xp.argsort(ids.reshape(-1), kind="stable").astype(np.int64, copy=False)
    args = g, ids, order, gtable, total, np.int64(ids.size), np.int32(d), np.float32(scale)
    launch("embedding.cu", "embedding_grad", (ids.size, -(-d // 256)), 256, args, T=g.dtype, ID=ids.dtype)
    return gtable if total is None else total
