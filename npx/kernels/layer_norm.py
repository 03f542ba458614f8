"""Layer normalization over the last axis (Ba et al., 2016), used after each sub-layer (paper section 3.1)."""

from typing import Any

import numpy as np

from npx.backend import NO_ACCUMULATORS, Accumulators, Array, accumulate, array_module, ceil_div
from npx.cpu.row_blocks import map_blocks, overridable_size
from npx.cuda.launch import contiguous, launch
from npx.dispatch import Output, kernel
from npx.kernels.dropout import DropoutSpec, launch_arguments
from npx.precision import accumulation_dtype


@kernel
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> tuple[Array, tuple[Array, ...]]:
    """Return y = gamma * xhat + beta with xhat = (x - mean) * rstd and rstd = 1 / sqrt(var + eps).

    x (..., D); gamma, beta (D,); var is the biased variance. Saved: gamma, xhat (..., D), rstd (..., 1).
    """
    xp = array_module(x)
    wide = x.astype(accumulation_dtype(x.dtype), copy=False)
    centered = wide - xp.mean(wide, axis=-1, keepdims=True)
    rstd = 1 / xp.sqrt(xp.mean(centered * centered, axis=-1, keepdims=True) + eps)
    xhat = centered * rstd
    return (xhat * gamma + beta).astype(x.dtype, copy=False), (gamma, xhat, rstd)


@layer_norm.define_gradient
def layer_norm_grad(
    g: Array, gamma: Array, xhat: Array, rstd: Array, accumulate_into: Accumulators = NO_ACCUMULATORS
) -> Any:
    """Return the gradients (gx, ggamma, gbeta) of `layer_norm`. g, xhat (..., D); gamma (D,); rstd (..., 1).

    Args:
        accumulate_into: arrays to which ggamma and gbeta are added, or None for new arrays.

    With h = g * gamma: gx = rstd * (h - mean(h) - xhat * mean(h * xhat)). The two means arise because mean and variance
    depend on every x_i. ggamma = sum g * xhat and gbeta = sum g over all rows.
    """
    xp = array_module(g)
    wide = g.astype(xhat.dtype, copy=False)
    h = wide * gamma
    gx = rstd * (h - xp.mean(h, -1, keepdims=True) - xhat * xp.mean(h * xhat, -1, keepdims=True))
    axes = tuple(range(g.ndim - 1))
    parts = gx, xp.sum(wide * xhat, axes), xp.sum(wide, axes)
    gx, ggamma, gbeta = (part.astype(g.dtype, copy=False) for part in parts)
    return gx, *accumulate((ggamma, gbeta), accumulate_into)


def check_residual(x: Array, residual: Array | None) -> None:
    """Raise ValueError unless the residual, if any, has the shape of x."""
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"dropout_residual_norm: expected a residual of shape {x.shape}, like x; got {residual.shape}")


def norm_rows(x: Array, gamma: Array, beta: Array, eps: float, xhat: Array, y: Array, rstd: Array) -> None:
    """Normalize the rows x (n, D), and write xhat (n, D), y (n, D) and rstd (n, 1); xhat may be x itself."""
    np.subtract(x, row_means(x), out=xhat)
    np.vecdot(xhat, xhat, out=rstd[:, 0])  # rstd is also scratch memory: first for the variance, then for its root
    rstd /= xhat.shape[-1]
    rstd += eps
    np.sqrt(rstd, out=rstd)
    np.reciprocal(rstd, out=rstd)
    xhat *= rstd
    np.multiply(xhat, gamma, out=y)
    y += beta


def norm_rows_grad(g: Array, gamma: Array, xhat: Array, rstd: Array, gx: Array) -> tuple[Array, Array]:
    """Write gx (n, D) for rows g, xhat (n, D), rstd (n, 1); return this block's ggamma and gbeta."""
    ggamma = np.einsum("nd,nd->d", g, xhat)
    gbeta = column_sums(g)
    np.multiply(g, gamma, out=gx)
    mean_h_xhat = np.vecdot(gx, xhat)[:, None] / g.shape[-1]
    gx -= row_means(gx)
    gx -= xhat * mean_h_xhat
    gx *= rstd
    return ggamma, gbeta


def row_means(z: Array) -> Array:
    """Return the means over the last axis (n, 1); for short rows a matmul is four times faster than `mean`."""
    return z @ np.ones((z.shape[-1], 1), z.dtype) / z.shape[-1] if z.shape[-1] else z[:, :1]


def column_sums(g: Array) -> Array:
    """Compute the sums over the first axis of (n, D) as a matmul."""
    return np.ones(len(g), g.dtype) @ g


@layer_norm.fast("numpy", "float32", "float64")
def layer_norm_numpy(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> Output:
    """Call `residual_norm_numpy` without a residual or dropout."""
    return residual_norm_numpy(x, None, gamma, beta, None, eps)


@layer_norm_grad.fast("numpy", "float32", "float64")
def layer_norm_grad_numpy(g: Array, *saved: Any, **options: Any) -> tuple[Array, ...]:
    """Return (gx, ggamma, gbeta). Without dropout, gx equals gresidual, so the first of the four results is omitted."""
    return residual_norm_grad_numpy(g, *saved, **options)[1:]


def residual_norm_numpy(
    x: Array, residual: Array | None, gamma: Array, beta: Array, drop: DropoutSpec | None = None, eps: float = 1e-6
) -> Output:
    """Compute layer_norm(residual + dropout(x)) one block of rows at a time; a `residual` of None counts as 0.

    Saves y, which the next operation saves anyway, instead of xhat = (y - beta) / gamma. Columns of xhat that cannot be
    recovered accurately from y are saved too. The dropout mask takes one bit per value.
    """
    check_residual(x, residual)
    y = np.empty(x.shape, x.dtype)
    rstd = np.empty((*x.shape[:-1], 1), x.dtype)
    keep_mask = drop and drop.keep_mask(x.shape)
    lossy = lossy_columns(gamma, beta)
    xhat_lossy = np.empty((rstd.size, len(lossy)), x.dtype)
    keep_bits = None if keep_mask is None else np.packbits(keep_mask, axis=-1)
    saved = gamma, beta, y, (lossy, xhat_lossy), rstd, drop, keep_bits
    if not x.size:
        return y, saved
    x_rows, residual_rows, keep_rows = (as_rows(a) for a in (x, residual, keep_mask))
    y_rows, rstd_rows = as_rows(y), as_rows(rstd)
    scale = drop.scale if drop else 1.0

    def body(i: int, j: int) -> None:
        xb = x_rows[i:j]
        z = np.empty(xb.shape, x.dtype)
        if keep_rows is not None:
            xb = np.multiply(xb, scale, out=z)
            xb *= keep_rows[i:j]
        if residual_rows is not None:
            xb = np.add(xb, residual_rows[i:j], out=z)
        norm_rows(xb, gamma, beta, eps, z, y_rows[i:j], rstd_rows[i:j])
        if len(lossy):
            xhat_lossy[i:j] = z[:, lossy]

    map_blocks(body, len(x_rows), x_rows[:1].nbytes)
    return y, saved


def lossy_columns(gamma: Array, beta: Array) -> Array:
    """Return the indices of the columns where (y - beta) / gamma does not recover xhat with nearly full precision."""
    magnitude = np.abs(gamma)
    limits = np.finfo(gamma.dtype)
    in_range = (magnitude > limits.tiny**0.5) & (magnitude < limits.max**0.5)
    return np.flatnonzero(~(in_range & (4 * magnitude >= np.abs(beta))))


def residual_norm_grad_numpy(
    g: Array,
    gamma: Array,
    beta: Array,
    y: Array,
    saved_xhat: tuple[Array, Array],
    rstd: Array,
    drop: DropoutSpec | None,
    keep_bits: Array | None,
    accumulate_into: Accumulators = NO_ACCUMULATORS,
) -> tuple[Array, ...]:
    """Return the gradients (gx, gresidual, ggamma, gbeta) of `residual_norm_numpy`.

    The sums over rows are added in the order of the blocks, so they do not depend on the number of threads.
    """
    d = g.shape[-1]
    gresidual = np.empty(g.shape, g.dtype)
    gx = gresidual if keep_bits is None else np.empty(g.shape, g.dtype)
    if not g.size:
        return gx, gresidual, *accumulate((np.zeros(d, g.dtype), np.zeros(d, g.dtype)), accumulate_into)
    g_rows, y_rows, rstd_rows = (as_rows(a) for a in (g, y, rstd))
    gresidual_rows, gx_rows, keep_rows = (as_rows(a) for a in (gresidual, gx, keep_bits))
    lossy, xhat_lossy = saved_xhat
    scale = drop.scale if drop else 1.0
    inverse = 1 / np.where(np.isin(np.arange(d), lossy), 1, gamma)

    def body(i: int, j: int) -> tuple[Array, Array]:
        xhat = y_rows[i:j] - beta
        xhat *= inverse
        if len(lossy):
            xhat[:, lossy] = xhat_lossy[i:j]
        sums = norm_rows_grad(g_rows[i:j], gamma, xhat, rstd_rows[i:j], gresidual_rows[i:j])
        if keep_rows is not None:
            np.multiply(gresidual_rows[i:j], scale, out=gx_rows[i:j])
            gx_rows[i:j] *= np.unpackbits(keep_rows[i:j], axis=1, count=d)
        return sums

    parts = map_blocks(body, len(g_rows), g_rows[:1].nbytes)
    sums = tuple(np.add.reduce(part, axis=0) for part in zip(*parts, strict=True))
    return gx, gresidual, *accumulate(sums, accumulate_into)


def as_rows(x: Array | None) -> Any:
    """Return x (..., D), which must not be empty, as rows (R, D); return None if x is None."""
    return None if x is None else x.reshape(-1, x.shape[-1])


WARP_COLUMNS = 1024  # number of columns that one warp can hold in registers; longer rows take several warps
MAX_WARPS = 8  # warps per row: more would leave each thread too few registers
PARTIAL_SUMS = 264  # blocks that sum the gradients of gamma and beta: two per multiprocessor of a large GPU
COLUMN_SUM_WARPS = 32  # warps per block of `sum_columns_cuda`


@layer_norm.fast("cupy", "float32", "float16", "bfloat16")
def layer_norm_cuda(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> Output:
    """Call `residual_norm_cuda` without a residual or dropout."""
    return residual_norm_cuda(x, None, gamma, beta, None, eps)


@layer_norm_grad.fast("cupy", "float32", "float16", "bfloat16")
def layer_norm_grad_cuda(g: Array, *saved: Any, **options: Any) -> tuple[Array, ...]:
    """Return (gx, ggamma, gbeta). Without dropout, gx equals gresidual, so the first of the four results is omitted."""
    return residual_norm_grad_cuda(g, *saved, **options)[1:]


def residual_norm_cuda(
    x: Array, residual: Array | None, gamma: Array, beta: Array, drop: DropoutSpec | None = None, eps: float = 1e-6
) -> Output:
    """Compute layer_norm(residual + dropout(x)); a `residual` of None counts as 0.

    Each row is read and written once, by one warp or, if it is long, by several. Saved: gamma, xhat, rstd (R,) in
    float32, and `drop`, from which the gradient regenerates the mask.
    """
    check_residual(x, residual)
    xp = array_module(x)
    x, residual, gamma, beta = (contiguous(a) for a in (x, residual, gamma, beta))
    d = x.shape[-1]
    n = x.size // max(d, 1)
    threads, defines = row_layout(d)
    y, xhat = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
    rstd = xp.empty(n, np.float32)
    sizes = np.int32(n), np.int32(d), np.float32(eps)
    args = x, residual, gamma, beta, y, xhat, rstd, *sizes, *launch_arguments(drop)
    launch("layer_norm.cu", "layer_norm", ceil_div(n, defines["ROWS"]), threads, args, T=x.dtype, **defines)
    return y, (gamma, xhat, rstd, drop)


def residual_norm_grad_cuda(
    g: Array,
    gamma: Array,
    xhat: Array,
    rstd: Array,
    drop: DropoutSpec | None,
    accumulate_into: Accumulators = NO_ACCUMULATORS,
) -> tuple[Array, ...]:
    """Return the gradients (gx, gresidual, ggamma, gbeta) of `residual_norm_cuda`; without dropout gx is gresidual.

    Each block writes its sums for gamma and beta; the sums are then added in the order of the blocks.
    """
    xp = array_module(g)
    g = contiguous(g)
    d = g.shape[-1]
    n = g.size // max(d, 1)
    threads, defines = row_layout(d)
    blocks = min(ceil_div(n, defines["ROWS"]), overridable_size(PARTIAL_SUMS))
    partial = xp.empty((blocks, 2 * d), np.float32)
    gresidual = xp.empty(g.shape, g.dtype)
    gx = xp.empty(g.shape, g.dtype) if drop else None
    args = g, gamma, xhat, rstd, gresidual, gx, partial, np.int32(n), np.int32(d), *launch_arguments(drop)
    launch("layer_norm.cu", "layer_norm_grad", blocks, threads, args, T=g.dtype, **defines)
    return gresidual if gx is None else gx, gresidual, *sum_columns_cuda(partial, g.dtype, accumulate_into[:2])


def row_layout(d: int) -> tuple[int, dict[str, Any]]:
    """Return the threads per block and the definitions (WARPS, ROWS, CHUNKS) of layer_norm.cu for rows of d values."""
    warps = min(max(1, ceil_div(d, WARP_COLUMNS)), MAX_WARPS)
    rows = 8 if warps == 1 else 1
    chunks = max(1, ceil_div(d, 512 * warps))
    return 32 * warps * rows, {"WARPS": warps, "ROWS": rows, "CHUNKS": chunks}


def sum_columns_cuda(partial: Array, dtype: Any, accumulate_into: Accumulators) -> list[Array]:
    """Sum the rows of `partial` (n, D), float32, and split the sums into as many equal parts as `accumulate_into`.

    Each part is added to its array in `accumulate_into`; a new array of `dtype` is returned in place of a None.
    """
    rows, columns = partial.shape
    width = columns // len(accumulate_into)
    totals = [total for total in accumulate_into if total is not None and total.dtype == np.float32]
    add = len(totals) == len(accumulate_into)
    sums = totals if add else list(array_module(partial).empty((len(accumulate_into), width), dtype))
    args = partial, sums[0], sums[-1], np.int32(rows), np.int32(columns), np.int32(width), np.int32(add)
    blocks, threads = ceil_div(columns, 32), 32 * COLUMN_SUM_WARPS
    launch("column_sums.cu", "column_sums", blocks, threads, args, T=sums[0].dtype, WARPS=COLUMN_SUM_WARPS)
    return sums if add else list(accumulate(tuple(sums), accumulate_into))
