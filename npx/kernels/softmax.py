"""Softmax over the last axis, with a mask of positions that take no part (paper section 3.2.3)."""

from typing import Any

import numpy as np

from npx.cuda import contiguous, launch
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
    if not x.size:
        return x
    peak = xp.max(x, axis=-1, keepdims=True)  # exp(x - peak) cannot overflow
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


def threads(n: int) -> int:
    """Threads of the block that takes a row of n values."""
    return 32 if n <= 1024 else 256


@softmax.fast("cupy", "float32", "float16", "bfloat16")
def softmax_cuda(x: Any, mask: Any = None) -> Any:
    """A block for each row; the mask is read where it lies, through the strides of its broadcast view."""
    xp = array_module(x)
    shape = x.shape if mask is None else np.broadcast_shapes(x.shape, mask.shape)
    x, n = contiguous(xp.broadcast_to(x, shape)), shape[-1]
    y = xp.empty(shape, x.dtype)
    if not y.size:
        return y
    leading, strides = (1, 1), (0, 0, 0, 0)
    if mask is not None:
        if len(shape) > 4:
            mask, shape = xp.broadcast_to(mask, shape).reshape(-1, n), (y.size // n, n)
        mask = contiguous(mask)
        view = xp.broadcast_to(mask, (1,) * (4 - len(shape)) + shape)
        leading, strides = view.shape[1:3], view.strides
    numbers = np.int32(n), *map(np.int32, leading), *map(np.int64, strides)
    launch("softmax.cu", "softmax", y.size // n, threads(n), (x, mask, y, *numbers), T=x.dtype)
    return y


@softmax_grad.fast("cupy", "float32", "float16", "bfloat16")
def softmax_grad_cuda(g: Any, y: Any) -> Any:
    """A block for each row."""
    g, y, n = contiguous(g), contiguous(y), g.shape[-1]
    gx = array_module(g).empty(g.shape, g.dtype)
    launch("softmax.cu", "softmax_grad", g.size // max(n, 1), threads(n), (g, y, gx, np.int32(n)), T=g.dtype)
    return gx
