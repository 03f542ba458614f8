"""The most probable classes of each row of logits, for search (paper section 6.1)."""

import numpy as np

from npx.array import Array, array_module
from npx.cpu.row_blocks import map_blocks
from npx.dispatch import kernel


@kernel
def top_k(logits: Array, k: int, never: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Return the k largest values of log softmax(logits) in each row and their column indices.

    logits (R, V), with k at most V; values (R, k) in descending order; columns (R, k) int64. Ties go to the lower
    column. The softmax includes the columns in `never`, but they are never chosen. If fewer than k columns remain, the
    missing values are -inf and their columns are meaningless.
    """
    xp = array_module(logits)
    z = logits - logits.max(axis=1, keepdims=True)
    total = xp.sum(xp.exp(z), axis=1, keepdims=True)
    z[:, list(never)] = -xp.inf
    columns = xp.argsort(-z, axis=1, kind="stable")[:, :k]
    values = xp.take_along_axis(z, columns, axis=1)
    return values - xp.log(total), xp.where(values > -xp.inf, columns, 0)


@top_k.fast("numpy", "float32", "float64")
def top_k_numpy(logits: Array, k: int, never: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Compute one block of rows at a time: in cache, k passes of argmax take less time than the exponentials."""
    if not len(logits):
        return top_k_of_rows(logits, k, never)
    parts = map_blocks(lambda i, j: top_k_of_rows(logits[i:j], k, never), len(logits), logits[:1].nbytes)
    values, columns = zip(*parts, strict=True)
    return np.concatenate(values), np.concatenate(columns)


@top_k.fast("cupy", "float32")
def top_k_of_rows(logits: Array, k: int, never: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Find the largest logits of each row without sorting it: k times the first maximum, overwritten with -inf."""
    xp = array_module(logits)
    z = logits - logits.max(axis=1, keepdims=True)
    log_total = xp.log(xp.exp(z).sum(axis=1, keepdims=True))  # at least 0 despite rounding: the sum contains exp(0)
    z[:, list(never)] = -xp.inf
    rows, k = xp.arange(len(z)), min(k, z.shape[1])
    values, columns = xp.empty((len(z), k), z.dtype), xp.empty((len(z), k), xp.int64)
    for i in range(k):
        columns[:, i] = column = z.argmax(axis=1)
        values[:, i] = z[rows, column]
        z[rows, column] = -xp.inf
    values -= log_total
    columns[values == -xp.inf] = 0
    return values, columns
