"""The most probable classes of each row of logits, for search (paper section 6.1)."""

import numpy as np

from npx.backend import Array, array_module
from npx.cpu.row_blocks import map_blocks, overridable_size, row_sums
from npx.dispatch import kernel
from npx.precision import accumulation_dtype


@kernel
def log_softmax_top_k(logits: Array, k: int, excluded: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Return the k largest values of log softmax(logits) in each row and their column indices.

    logits (R, V), with k at most V; values (R, k) in descending order; columns (R, k) int64. Ties go to the lower
    column. The softmax includes the columns in `excluded`, but they are never chosen. If fewer than k columns remain,
    the missing values are -inf and their columns are meaningless.
    """
    xp = array_module(logits)
    z = logits - logits.max(axis=1, keepdims=True)
    total = xp.sum(xp.exp(z), axis=1, keepdims=True)
    z[:, list(excluded)] = -xp.inf
    columns = xp.argsort(-z, axis=1, kind="stable")[:, :k]
    values = xp.take_along_axis(z, columns, axis=1)
    return values - xp.log(total), xp.where(values > -xp.inf, columns, 0)


GROUP_COLUMNS = 16  # number of columns per group in `log_softmax_top_k_numpy`
LARGEST_EXPONENT = 50.0  # row maxima are subtracted before exp only if any has a larger magnitude


@log_softmax_top_k.fast("numpy", "float32", "float64")
def log_softmax_top_k_numpy(logits: Array, k: int, excluded: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Read the logits twice: for the exponentials, and for the maxima of groups of columns.

    Group g of G has the columns g, g + G, g + 2 G, ... The k largest logits are in the k groups with the largest
    maxima, or in the last columns, which belong to no group. If several groups of a row tie for place k, the first of
    them need not contain the lowest column, so `top_k_of_rows` computes the row instead.
    """
    n, n_columns = logits.shape
    size = overridable_size(GROUP_COLUMNS)
    n_groups = n_columns // size
    n_grouped = size * n_groups
    if not n or n_groups <= k:
        return top_k_of_rows(logits, k, excluded)
    maxima = np.empty((n, n_groups), logits.dtype)
    log_total = np.empty((n, 1), logits.dtype)

    def body(i: int, j: int) -> None:
        z = logits[i:j]
        with np.errstate(over="ignore"):
            total = row_sums(np.exp(z))[:, None]
        np.max(z[:, :n_grouped].reshape(j - i, size, n_groups), axis=1, out=maxima[i:j])
        peak = z[:, n_grouped:].max(axis=1, keepdims=True, initial=-np.inf)
        np.maximum(peak, maxima[i:j].max(axis=1, keepdims=True), out=peak)
        if (np.abs(peak) <= LARGEST_EXPONENT).all():
            np.maximum(np.log(total), peak, out=log_total[i:j])  # despite rounding, no log-probability is above 0
        else:
            np.add(np.log(row_sums(np.exp(z - peak))[:, None]), peak, out=log_total[i:j])

    map_blocks(body, n, logits[:1].nbytes)
    for g in {column % n_groups for column in excluded}:
        allowed = [column for column in range(g, n_grouped, n_groups) if column not in excluded]
        maxima[:, g] = logits[:, allowed].max(axis=1, initial=-np.inf)
    largest_maxima, groups = first_maxima(maxima, k + 1)
    groups = np.sort(groups[:, :k], axis=1)
    members = (groups[:, None] + n_groups * np.arange(size)[:, None]).reshape(n, size * k)  # ascending in each row
    ungrouped = np.broadcast_to(np.arange(n_grouped, n_columns), (n, n_columns - n_grouped))
    candidates = np.concatenate([members, ungrouped], axis=1)
    z = logits.ravel().take(candidates + n_columns * np.arange(n)[:, None])
    for column in excluded:
        z[candidates == column] = -np.inf
    values, index = first_maxima(z, k)
    columns = np.where(values > -np.inf, np.take_along_axis(candidates, index, axis=1), 0)
    values -= log_total
    if (ties := largest_maxima[:, k - 1] == largest_maxima[:, k]).any():
        values[ties], columns[ties] = top_k_of_rows(logits[ties], k, excluded)
    return values, columns


@log_softmax_top_k.fast("cupy", "float32", "float16", "bfloat16")
def top_k_of_rows(logits: Array, k: int, excluded: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Find the largest logits of each row one by one, because CuPy cannot sort bfloat16."""
    xp = array_module(logits)
    z = logits.astype(accumulation_dtype(logits.dtype), copy=True)
    z -= z.max(axis=1, keepdims=True)
    log_total = xp.log(xp.exp(z).sum(axis=1, keepdims=True))  # at least 0 despite rounding: the sum contains exp(0)
    z[:, list(excluded)] = -xp.inf
    values, columns = first_maxima(z, min(k, z.shape[1]))
    values -= log_total
    columns[values == -xp.inf] = 0
    return values.astype(logits.dtype, copy=False), columns


def first_maxima(z: Array, k: int) -> tuple[Array, Array]:
    """Return the k largest values (n, k) of each row of z and their columns; in z, replace them with -inf.

    Equal values are taken from left to right.
    """
    xp = array_module(z)
    rows = xp.arange(len(z))
    values = xp.empty((len(z), k), z.dtype)
    columns = xp.empty((len(z), k), xp.int64)
    for i in range(k):
        columns[:, i] = column = z.argmax(axis=1)
        values[:, i] = z[rows, column]
        z[rows, column] = -xp.inf
    return values, columns
