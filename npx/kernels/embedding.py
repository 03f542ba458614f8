"""Embedding lookup with scaling, positional encodings and dropout in one pass (paper sections 3.4, 3.5 and 5.4)."""

from typing import Any

import numpy as np

from npx.backend import Array, accumulate, array_module, ceil_div
from npx.cpu.row_blocks import map_blocks
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.dispatch import Output, kernel
from npx.kernels.dropout import DropoutSpec, dropout, dropout_grad, dropout_grad_numpy, launch_arguments
from npx.precision import accumulation_dtype


@kernel
def embedding(
    table: Array, ids: Array, scale: float = 1.0, encodings: Array | None = None, drop: DropoutSpec | None = None
) -> Output:
    """Return y = dropout(scale * table[ids] + encodings).

    table (V, D); ids (..., T) integers in [0, V); encodings (T, D) or None; y (..., T, D). Saved: ids, V, scale, drop,
    keep_mask (bool, shape of y, or None).
    """
    y = array_module(table).take(table, ids, axis=0)  # always a new array; indexing returns a view for a single id
    if scale != 1.0:
        y *= scale
    if encodings is not None:
        y += encodings
    y, saved_dropout = dropout.reference(y, drop)
    return y, (ids, len(table), scale, *saved_dropout)


@embedding.define_gradient
def embedding_grad(
    g: Array,
    ids: Array,
    n_rows: int,
    scale: float,
    drop: DropoutSpec | None,
    keep_mask: Array | None,
    accumulate_into: Array | None = None,
) -> Array:
    """Return gtable (n_rows, D): gtable[v] = scale * the sum of dropout's gradient over all positions where ids == v.

    g, keep_mask (..., D); ids (...).

    Args:
        accumulate_into: an array to which gtable is added, or None for a new array.

    Sums follow the order of the positions, so they are deterministic. The scale is applied to g, which has far fewer
    rows than gtable.
    """
    xp = array_module(g)
    g = dropout_grad.reference(g, drop, keep_mask)
    g = g if scale == 1.0 else (g * scale).astype(g.dtype, copy=False)
    sum_dtype = accumulation_dtype(g.dtype)
    gtable = xp.zeros((n_rows, g.shape[-1]), sum_dtype)
    xp.add.at(gtable, ids.reshape(-1), g.reshape(-1, g.shape[-1]).astype(sum_dtype, copy=False))
    gtable = gtable.astype(g.dtype, copy=False)
    if accumulate_into is None:
        return gtable
    accumulate_into += gtable
    return accumulate_into


@embedding.fast("numpy", "float32", "float64")
def embedding_numpy(
    table: Array, ids: Array, scale: float = 1.0, encodings: Array | None = None, drop: DropoutSpec | None = None
) -> Output:
    """Compute a few sentences at a time, so that they stay in cache from the lookup to the dropout."""
    ids = np.asarray(ids)
    y = np.empty((*ids.shape, table.shape[1]), table.dtype)
    keep_mask = drop and drop.keep_mask(y.shape)
    saved = ids, len(table), scale, drop, keep_mask
    if not y.size:
        return y, saved
    length = 1 if encodings is None or ids.ndim == 1 else ids.shape[-1]
    id_rows = ids.reshape(-1, length)  # one row per sentence or, without encodings or with 1-d ids, per id
    y_rows = y.reshape(-1, length, table.shape[1])
    keep_rows = None if keep_mask is None else keep_mask.reshape(y_rows.shape)

    def body(i: int, j: int) -> None:
        part = y_rows[i:j]
        part[...] = table[id_rows[i:j]]
        if scale != 1.0:
            part *= scale
        if encodings is not None:
            part += encodings[i:j, None] if ids.ndim == 1 else encodings
        if drop and keep_rows is not None:
            part *= drop.scale
            part *= keep_rows[i:j]

    map_blocks(body, len(y_rows), y_rows[:1].nbytes)
    return y, saved


@embedding_grad.fast("numpy", "float32", "float64")
def embedding_grad_numpy(
    g: Array,
    ids: Array,
    n_rows: int,
    scale: float,
    drop: DropoutSpec | None,
    keep_mask: Array | None,
    accumulate_into: Array | None = None,
) -> Array:
    """Sum the rows of g for each id that occurs, and add these sums to gtable."""
    g = dropout_grad_numpy(g, drop, keep_mask)
    g = g if scale == 1.0 else (g * scale).astype(g.dtype, copy=False)
    gtable = np.zeros((n_rows, g.shape[-1]), g.dtype) if accumulate_into is None else accumulate_into
    unique_ids, sums = sums_by_id(g.reshape(-1, g.shape[-1]), ids.reshape(-1))
    gtable[unique_ids] += sums
    return gtable


def sums_by_id(g: Array, ids: Array) -> tuple[Array, Array]:
    """Return the sorted unique ids (U,) and, as (U, D), the sum of the rows of g (R, D) for each id, in row order."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.flatnonzero(np.concatenate((sorted_ids[:1] == sorted_ids[:1], sorted_ids[1:] != sorted_ids[:-1])))
    if not len(starts):
        return sorted_ids, g[order]
    return sorted_ids[starts], np.add.reduceat(g[order], starts, axis=0)


@embedding.fast("cupy", "float32", "float16", "bfloat16")
def embedding_cuda(
    table: Array, ids: Array, scale: float = 1.0, encodings: Array | None = None, drop: DropoutSpec | None = None
) -> Output:
    """Let one warp compute each row."""
    table, ids = contiguous(table), contiguous(ids)
    d = table.shape[1]
    encodings = None if encodings is None else contiguous(encodings.astype(table.dtype, copy=False))
    y = array_module(table).empty((*ids.shape, d), table.dtype)
    sizes = np.int64(ids.size), np.int32(d), np.int32(1 if encodings is None else len(encodings)), np.float32(scale)
    args = table, ids, encodings, y, *sizes, *launch_arguments(drop)
    blocks = ceil_div(ids.size, BLOCK_THREADS // 32)
    launch("embedding.cu", "embedding", blocks, BLOCK_THREADS, args, T=table.dtype, ID=ids.dtype)
    return y, (ids, len(table), scale, drop)


@embedding_grad.fast("cupy", "float32", "float16", "bfloat16")
def embedding_grad_cuda(
    g: Array, ids: Array, n_rows: int, scale: float, drop: DropoutSpec | None, accumulate_into: Array | None = None
) -> Array:
    """Sort the positions by id and sum each run of equal ids in one block, deterministically and without atomics."""
    xp = array_module(g)
    g = contiguous(g)
    d = g.shape[-1]
    total = accumulate_into if accumulate_into is not None and accumulate_into.dtype == np.float32 else None
    gtable: Any = xp.zeros((n_rows, d), g.dtype) if total is None else None
    order = xp.argsort(ids.reshape(-1), kind="stable").astype(np.int64, copy=False)
    args = g, ids, order, gtable, total, np.int64(ids.size), np.int32(d), np.float32(scale), *launch_arguments(drop)
    launch("embedding.cu", "embedding_grad", (ids.size, ceil_div(d, 512)), 256, args, T=g.dtype, ID=ids.dtype)
    return accumulate((gtable,), (accumulate_into,))[0] if total is None else total
