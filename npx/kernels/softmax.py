"""Softmax over the last axis, with an optional mask (paper section 3.2.3)."""

import numpy as np

from npx import precision
from npx.backend import Array, array_module
from npx.cpu.row_blocks import map_blocks, row_sums
from npx.cuda.launch import contiguous, launch
from npx.dispatch import kernel
from npx.precision import accumulation_dtype


@kernel
def softmax(x: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """Return y_i = exp(x_i) / sum_j exp(x_j) over the last axis, with x = -inf where `mask` is False.

    x (..., n); mask bool, broadcastable to x. A fully masked row gives zeros. Saved: y.
    """
    xp = array_module(x)
    if mask is not None:
        x = xp.where(mask, x, -xp.inf)
    if not x.size:
        return x, x
    peak = xp.max(x, axis=-1, keepdims=True)  # exp(x - peak) cannot overflow
    y = xp.exp(x - xp.where(peak == -xp.inf, 0, peak).astype(x.dtype))
    total = xp.sum(y, axis=-1, keepdims=True, dtype=accumulation_dtype(x.dtype))
    y = (y / xp.where(total == 0, 1, total)).astype(x.dtype, copy=False)
    return y, y


@softmax.define_gradient
def softmax_grad(g: Array, y: Array) -> Array:
    """Return gx_i = y_i (g_i - sum_j g_j y_j), from dy_i/dx_j = y_i (delta_ij - y_j). g, y (..., n)."""
    return y * (g - precision.sum(g * y, axis=-1, keepdims=True))


def softmax_in_place(x: Array) -> None:
    """Compute the softmax over the last axis of a NumPy array in place; rows that are entirely -inf become zeros."""
    peak = x.max(axis=-1, keepdims=True, initial=-np.inf)
    np.copyto(peak, 0, where=peak == -np.inf)
    np.subtract(x, peak, out=x)
    np.exp(x, out=x)
    total = x.sum(axis=-1, keepdims=True)
    np.copyto(total, 1, where=total == 0)
    np.divide(x, total, out=x)


def softmax_in_place_without_peak(x: Array) -> bool:
    """Compute the softmax in place without subtracting each row's maximum, and return whether that succeeded.

    Returns False, with x overwritten, if any row's sum is too small or too large. Subtracting the maximum is rarely
    necessary, and for short rows it takes longer than the exponentials.
    """
    with np.errstate(over="ignore"):
        np.exp(x, out=x)
    total = row_sums(x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1]))
    if not ((total > 1e-15) & (total < 1e15)).all():
        return False
    np.divide(x, total.reshape(*x.shape[:-1], 1), out=x)
    return True


def softmax_grad_in_place(g: Array, y: Array) -> None:
    """Compute `softmax_grad` in place in `g`."""
    np.subtract(g, np.einsum("...n,...n->...", g, y)[..., None], out=g)
    np.multiply(g, y, out=g)


@softmax.fast("numpy", "float32", "float64")
def softmax_numpy(x: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """Compute one block of rows at a time, directly in the output array."""
    shape: tuple[int, ...] = np.broadcast_shapes(x.shape, mask.shape) if mask is not None else x.shape
    y = np.empty(shape, x.dtype)
    if not y.size:
        return y, y
    np.copyto(y, x)
    if mask is not None:
        np.copyto(y, -np.inf, where=~mask)
    rows = y.reshape(-1, y.shape[-1])

    def body(i: int, j: int) -> None:
        softmax_in_place(rows[i:j])

    map_blocks(body, len(rows), rows[:1].nbytes)
    return y, y


softmax_grad.fast("numpy", "float32", "float64")(softmax_grad.reference)  # the reference needs few passes


def block_threads(n: int) -> int:
    """Return the number of threads in a block that computes one row of n values."""
    return 32 if n <= 1024 else 256


@softmax.fast("cupy", "float32", "float16", "bfloat16")
def softmax_cuda(x: Array, mask: Array | None = None) -> tuple[Array, Array]:
    """Launch one block per row. Blocks read the mask through the strides of its broadcast view, without a copy."""
    xp = array_module(x)
    shape = x.shape if mask is None else np.broadcast_shapes(x.shape, mask.shape)
    x = contiguous(xp.broadcast_to(x, shape))
    n = int(shape[-1])
    y = xp.empty(shape, x.dtype)
    if not y.size:
        return y, y
    n1_n2: tuple[int, ...] = (1, 1)  # the lengths of the mask's second and third axis
    strides: tuple[int, ...] = (0, 0, 0, 0)
    if mask is not None:
        if len(shape) > 4:
            mask = xp.broadcast_to(mask, shape).reshape(-1, n)
            shape = mask.shape
        mask = contiguous(mask)
        view = xp.broadcast_to(mask, (1,) * (4 - len(shape)) + shape)
        n1_n2 = view.shape[1:3]
        strides = view.strides
    sizes = np.int32(n), *map(np.int32, n1_n2), *map(np.int64, strides)
    launch("softmax.cu", "softmax", y.size // n, block_threads(n), (x, mask, y, *sizes), T=x.dtype)
    return y, y


@softmax_grad.fast("cupy", "float32", "float16", "bfloat16")
def softmax_grad_cuda(g: Array, y: Array) -> Array:
    """Launch one block per row."""
    g, y = contiguous(g), contiguous(y)
    n = g.shape[-1]
    gx = array_module(g).empty(g.shape, g.dtype)
    launch("softmax.cu", "softmax_grad", g.size // max(n, 1), block_threads(n), (g, y, gx, np.int32(n)), T=g.dtype)
    return gx
