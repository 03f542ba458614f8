"""Rows of a table by index, what is added to them and dropped of them, and the gradients that come back to each row.

Paper sections 3.4, 3.5 and 5.4: embedding, positions and dropout are one pass over the first layer's input.
"""

from typing import Any

import numpy as np

from npx.array import Array, array_module
from npx.cpu.row_blocks import map_blocks
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.kernels.dropout import Drop, draw, dropout, dropout_grad, dropout_grad_numpy
from npx.registry import Output, kernel


@kernel
def embedding(
    table: Array, ids: Array, scale: float = 1.0, added: Array | None = None, drop: Drop | None = None
) -> Output:
    """y = dropout(scale * table[ids] + added). table (V, D); ids (..., T) integers in [0, V); y (..., T, D).

    added: an array (T, D), or None; drop None: no dropout. Saved: ids, V, scale; drop, keep (bool, y's shape, or None).
    """
    y = array_module(table).take(table, ids, axis=0)  # a new array, where indexing gives a view for a single id
    if scale != 1.0:
        y *= scale
    if added is not None:
        y += added
    y, dropped = dropout.reference(y, drop)
    return y, (ids, len(table), scale, *dropped)


@embedding.gradient
def embedding_grad(
    g: Array,
    ids: Array,
    rows: int,
    scale: float,
    drop: Drop | None,
    keep: Array | None,
    accumulate_into: Array | None = None,
) -> Array:
    """gtable (rows, D) with gtable[v] = scale * sum of dropout's gradients over the positions where ids == v.

    g, keep (..., D); ids (...).
    `accumulate_into`: an array that it is added to, if not None.

    Repeated ids add up. The order of the sum is the order of the positions, so it can be repeated bit for bit. What is
    scaled are the rows of g, which are far fewer than those of the table.
    """
    xp = array_module(g)
    g = dropout_grad.reference(g, drop, keep)
    g = g if scale == 1.0 else (g * scale).astype(g.dtype, copy=False)
    gtable = xp.zeros((rows, g.shape[-1]), g.dtype)
    xp.add.at(gtable, ids.reshape(-1), g.reshape(-1, g.shape[-1]))
    if accumulate_into is None:
        return gtable
    accumulate_into += gtable
    return accumulate_into


@embedding.fast("numpy", "float32", "float64")
def embedding_numpy(
    table: Array, ids: Array, scale: float = 1.0, added: Array | None = None, drop: Drop | None = None
) -> Output:
    """A few sentences at a time, in cache from the table to what is dropped."""
    ids = np.asarray(ids)
    y = np.empty((*ids.shape, table.shape[1]), table.dtype)
    keep = drop and drop.keep(y.shape)
    saved = ids, len(table), scale, drop, keep
    if not y.size:
        return y, saved
    length = 1 if added is None or ids.ndim == 1 else ids.shape[-1]
    ids3, y3 = ids.reshape(-1, length), y.reshape(-1, length, table.shape[1])
    keep3 = None if keep is None else keep.reshape(y3.shape)

    def body(i: int, j: int) -> None:
        part = y3[i:j]
        part[...] = table[ids3[i:j]]
        if scale != 1.0:
            part *= scale
        if added is not None:
            part += added[i:j, None] if ids.ndim == 1 else added
        if drop and keep3 is not None:
            part *= drop.scale
            part *= keep3[i:j]

    map_blocks(body, len(y3), y3[:1].nbytes)
    return y, saved


@embedding_grad.fast("numpy", "float32", "float64")
def embedding_grad_numpy(
    g: Array,
    ids: Array,
    rows: int,
    scale: float,
    drop: Drop | None,
    keep: Array | None,
    accumulate_into: Array | None = None,
) -> Array:
    """Only the rows that occur are summed, without scattered writes."""
    g = dropout_grad_numpy(g, drop, keep)
    g = g if scale == 1.0 else (g * scale).astype(g.dtype, copy=False)
    gtable = np.zeros((rows, g.shape[-1]), g.dtype) if accumulate_into is None else accumulate_into
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
def embedding_cuda(
    table: Array, ids: Array, scale: float = 1.0, added: Array | None = None, drop: Drop | None = None
) -> Output:
    """A warp for each row."""
    table, ids, d = contiguous(table), contiguous(ids), table.shape[1]
    added = None if added is None else contiguous(added.astype(table.dtype, copy=False))
    y = array_module(table).empty((*ids.shape, d), table.dtype)
    sizes = np.int64(ids.size), np.int32(d), np.int32(1 if added is None else len(added)), np.float32(scale)
    args, blocks = (table, ids, added, y, *sizes, *draw(drop)), -(-ids.size // (BLOCK_THREADS // 32))
    launch("embedding.cu", "embedding", blocks, BLOCK_THREADS, args, T=table.dtype, ID=ids.dtype)
    return y, (ids, len(table), scale, drop)


@embedding_grad.fast("cupy", "float32", "float16", "bfloat16")
def embedding_grad_cuda(
    g: Array, ids: Array, rows: int, scale: float, drop: Drop | None, accumulate_into: Array | None = None
) -> Array:
    """Positions sorted by id, a block for each run of equal ids: no atomic additions, whose order would vary."""
    xp = array_module(g)
    g, d = contiguous(g), g.shape[-1]
    total = accumulate_into if accumulate_into is not None and accumulate_into.dtype == np.float32 else None
    gtable: Any = xp.zeros((rows, d), g.dtype) if total is None else None
    order = xp.argsort(ids.reshape(-1), kind="stable").astype(np.int64, copy=False)
    args = g, ids, order, gtable, total, np.int64(ids.size), np.int32(d), np.float32(scale), *draw(drop)
    launch("embedding.cu", "embedding_grad", (ids.size, -(-d // 512)), 256, args, T=g.dtype, ID=ids.dtype)
    return gtable if total is None else total
