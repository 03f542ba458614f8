"""The linear layer of every projection, with the ReLU of the feed-forward network (paper section 3.3)."""

import numpy as np

from npx import precision
from npx.backend import NO_ACCUMULATORS, Accumulators, Array, accumulate, array_module, ceil_div
from npx.cpu import row_blocks
from npx.cpu.row_blocks import map_blocks, matmul, panel_count, panel_size, parallel_for, parallel_matmuls
from npx.cuda import blas
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.dispatch import Output, kernel
from npx.kernels.layer_norm import column_sums, sum_columns_cuda

Gradients = tuple[Array, Array, Array | None]


@kernel
def linear(x: Array, w: Array, b: Array | None = None, activation: str | None = None) -> Output:
    """Return y = x w + b, or max(0, x w + b) if `activation` is "relu".

    x (R, I); w (I, O); b (O,) or None; y (R, O). Saved: x, w, y if there is a ReLU, and whether there is a bias.
    """
    xp = array_module(x)
    y = x @ w
    if b is not None:
        y = y + b
    y = (xp.maximum(y, 0) if activation else y).astype(x.dtype, copy=False)  # NumPy's matmul of bfloat16 is float32
    return y, (x, w, y if activation else None, b is not None)


@linear.define_gradient
def linear_grad(
    g: Array, x: Array, w: Array, y: Array | None, bias: bool, accumulate_into: Accumulators = NO_ACCUMULATORS
) -> Gradients:
    """Return the gradients (gx, gw, gb) of `linear`; gb is None without `bias`.

    With ReLU, g is first set to 0 where y = 0. gx = g w^T; gw = x^T g; gb = sum of g over rows. g, y (R, O); x (R, I).

    Args:
        accumulate_into: arrays to which the gradients are added, or None for new arrays.
    """
    if y is not None:
        g = g * (y > 0)
    gx, gw = (part.astype(g.dtype, copy=False) for part in (g @ w.T, x.T @ g))
    return accumulate((gx, gw, precision.sum(g, axis=0) if bias else None), accumulate_into)


@linear.fast("numpy", "float32", "float64")
def linear_numpy(x: Array, w: Array, b: Array | None = None, activation: str | None = None) -> Output:
    """Apply bias and ReLU in place to each panel of the result, right after its matmul."""
    if b is None and not activation:
        return matmul(x, w), (x, w, None, False)
    y = np.empty((len(x), w.shape[1]), x.dtype)

    def body(i: int, j: int) -> None:
        part = np.matmul(x[i:j], w, out=y[i:j])
        if b is not None:
            part += b
        if activation:
            np.maximum(part, 0, out=part)

    flops = 2 * x.size * w.shape[1]
    parallel_for(body, len(x), panel_size(len(x), panel_count(flops)), inline=flops < row_blocks.INLINE_FLOPS)
    return y, (x, w, y if activation else None, b is not None)


@linear_grad.fast("numpy", "float32", "float64")
def linear_grad_numpy(
    g: Array, x: Array, w: Array, y: Array | None, bias: bool, accumulate_into: Accumulators = NO_ACCUMULATORS
) -> Gradients:
    """Apply the ReLU's mask in blocks, then run both matmuls at once."""
    x_sum, w_sum, *_ = accumulate_into
    if y is not None:
        masked = np.empty(g.shape, g.dtype)
        map_blocks(lambda i, j: np.multiply(g[i:j], y[i:j] > 0, out=masked[i:j]), len(g), g[:1].nbytes)
        g = masked
    gx = np.empty(x.shape, g.dtype) if x_sum is None else x_sum
    gw = np.empty(w.shape, g.dtype) if w_sum is None else w_sum
    parallel_matmuls((g, w.T, gx, x_sum is not None), (x.T, g, gw, w_sum is not None))
    return gx, gw, accumulate((column_sums(g),), accumulate_into[2:])[0] if bias else None


SLICE_ROWS = 128  # rows that one block sums in `relu_grad`


@linear.fast("cupy", "float32", "float16", "bfloat16")
def linear_cuda(x: Array, w: Array, b: Array | None = None, activation: str | None = None) -> Output:
    """Apply bias and ReLU in the epilogue of cuBLASLt, or in place in one pass after the matmul."""
    has_epilogue = b is not None or bool(activation)
    if has_epilogue and array_module(x) is not np and blas.fuses_epilogues() and x.size and w.size:
        y = blas.matmul(x, w, bias=contiguous(b), relu=bool(activation))
        return y, (x, w, y if activation else None, b is not None)
    y = blas.matmul(x, w)
    if has_epilogue:
        n, columns = y.shape
        threads = min(BLOCK_THREADS, 32 * ceil_div(columns, 256))
        args = y, contiguous(b), np.int32(columns), np.int32(bool(activation))
        launch("linear.cu", "bias_relu", (n, ceil_div(columns, 8 * threads)), threads, args, T=y.dtype)
    return y, (x, w, y if activation else None, b is not None)


@linear_grad.fast("cupy", "float32", "float16", "bfloat16")
def linear_grad_cuda(
    g: Array, x: Array, w: Array, y: Array | None, bias: bool, accumulate_into: Accumulators = NO_ACCUMULATORS
) -> Gradients:
    """In one pass, set g to 0 where the ReLU is 0 and sum slices of rows; then run both matmuls."""
    masked, gb = mask_and_sum(g, y, bias, accumulate_into[2:3])
    return (
        blas.matmul(masked, w.T, accumulate_into[0], add=True),
        blas.matmul(x.T, masked, accumulate_into[1], add=True),
        gb,
    )


def mask_and_sum(g: Array, y: Array | None, bias: bool, accumulate_into: Accumulators) -> tuple[Array, Array | None]:
    """Return g with 0 where y = 0 (g itself if y is None), and the sum of its rows (None unless `bias`)."""
    if y is None and not bias:
        return g, None
    xp = array_module(g)
    g, y = contiguous(g), contiguous(y)
    n, columns = g.shape
    slice_rows = row_blocks.overridable_size(SLICE_ROWS)
    grid = ceil_div(columns, 256), ceil_div(n, slice_rows)
    masked = g if y is None else xp.empty(g.shape, g.dtype)
    partial = xp.empty((grid[1], columns), np.float32) if bias else None
    sizes = np.int32(n), np.int32(columns), np.int32(slice_rows)
    launch("linear.cu", "relu_grad", grid, 256, (g, y, masked, partial, *sizes), T=g.dtype)
    return masked, None if partial is None else sum_columns_cuda(partial, g.dtype, accumulate_into)[0]
