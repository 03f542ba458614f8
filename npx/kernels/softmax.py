"""Softmax over the last axis, with a mask of positions that take no part (paper section 3.2.3)."""

from typing import Any

import numpy as np

from npx.device import array_module
from npx.parallel import map_blocks
from npx.registry import kernel


@kernel
def softmax(x: Any, mask: Any = None) -> Any:
    """y_i = exp(x_i) / sum_j exp(x_j) over the last axis; positions where `mask` is False count as x = -inf.

    x (..., n); mask bool, broadcastable to x, True = takes part. A row with no position left gives zeros.
    """
    xp = array_module(x)
    if mask is not None:
        x = xp.where(mask, x, -xp.inf)
    peak = xp.max(x, axis=-1, keepdims=True, initial=-xp.inf)  # exp(x - peak) cannot overflow
    y = xp.exp(x - xp.where(peak == -xp.inf, 0, peak).astype(x.dtype))
    total = xp.sum(y, axis=-1, keepdims=True)
    return y / xp.where(total == 0, 1, total).astype(x.dtype)


@kernel
def softmax_grad(g: Any, y: Any) -> Any:
    """gx_i = y_i (g_i - sum_j g_j y_j), from dy_i/dx_j = y_i (delta_ij - y_j). g, y (..., n)."""
    xp = array_module(g)
    return y * (g - xp.sum(g * y, axis=-1, keepdims=True))


def softmax_in_place(x: np.ndarray) -> None:
    """Softmax over the last axis of a NumPy array, written over it; rows of only -inf become zeros."""
    peak = x.max(axis=-1, keepdims=True, initial=-np.inf)
    np.copyto(peak, 0, where=peak == -np.inf)
    np.subtract(x, peak, out=x)
    np.exp(x, out=x)
    total = x.sum(axis=-1, keepdims=True)
    np.copyto(total, 1, where=total == 0)
    np.divide(x, total, out=x)


def softmax_grad_in_place(g: np.ndarray, y: np.ndarray) -> None:
    """`softmax_grad`, written over `g`."""
    np.subtract(g, np.einsum("...n,...n->...", g, y)[..., None], out=g)
    np.multiply(g, y, out=g)


@softmax.fast("numpy", "float32", "float64")
def softmax_numpy(x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """One block of rows at a time, in place in the output."""
    shape = np.broadcast_shapes(x.shape, mask.shape) if mask is not None else x.shape
    y = np.empty(shape, x.dtype)
    if not y.size:
        return y
    np.copyto(y, x)
    if mask is not None:
        np.copyto(y, -np.inf, where=~mask)
    rows = y.reshape(-1, y.shape[-1])

    def body(i: int, j: int) -> None:
        softmax_in_place(rows[i:j])

    map_blocks(body, len(rows), rows[:1].nbytes)
    return y
