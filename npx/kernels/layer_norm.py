"""Layer normalisation over the last axis (Ba et al., 2016), used after each sub-layer (paper section 3.1)."""

from typing import Any

import numpy as np

from npx.array import Array, array_module
from npx.cuda.launch import contiguous, launch
from npx.kernels.dropout import draw
from npx.random import Key
from npx.registry import kernel
from npx.rows import map_blocks


@kernel
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> tuple[Array, tuple[Array, ...]]:
    """y = gamma * xhat + beta with xhat = (x - mean) * rstd, rstd = 1 / sqrt(var + eps), var the biased variance.

    x (..., D); gamma, beta (D,). Saved: gamma, xhat (..., D), rstd (..., 1).
    """
    xp = array_module(x)
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    rstd = 1 / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    xhat = centred * rstd
    return xhat * gamma + beta, (gamma, xhat, rstd)


@layer_norm.gradient
def layer_norm_grad(g: Array, gamma: Array, xhat: Array, rstd: Array) -> tuple[Array, Array, Array]:
    """Gradients (gx, ggamma, gbeta) of `layer_norm`. g, xhat (..., D); gamma (D,); rstd (..., 1).

    With h = g * gamma: gx = rstd * (h - mean(h) - xhat * mean(h * xhat)). The two means are what moving x_i does to
    every other component, through the mean and through the variance; ggamma = sum g * xhat and gbeta = sum g over rows.
    """
    xp = array_module(g)
    h = g * gamma
    gx = rstd * (h - xp.mean(h, -1, keepdims=True) - xhat * xp.mean(h * xhat, -1, keepdims=True))
    rows = tuple(range(g.ndim - 1))
    return gx, xp.sum(g * xhat, axis=rows), xp.sum(g, axis=rows)


def norm_rows(z: Array, gamma: Array, beta: Array, eps: float, y: Array, rstd: Array) -> None:
    """Normalise the rows z (n, D) in place to xhat; write y (n, D) and rstd (n, 1)."""
    z -= row_means(z)
    np.einsum("nd,nd->n", z, z, out=rstd[:, 0])
    rstd /= z.shape[-1]
    rstd += eps
    np.sqrt(rstd, out=rstd)
    np.reciprocal(rstd, out=rstd)
    z *= rstd
    np.multiply(z, gamma, out=y)
    y += beta


def norm_rows_grad(g: Array, gamma: Array, xhat: Array, rstd: Array, gx: Array) -> tuple[Array, Array]:
    """Write gx (n, D) for rows g, xhat (n, D), rstd (n, 1); return this block's ggamma and gbeta."""
    ggamma = np.einsum("nd,nd->d", g, xhat)
    gbeta = column_sums(g)
    np.multiply(g, gamma, out=gx)
    slope = np.einsum("nd,nd->n", gx, xhat)[:, None] / g.shape[-1]
    gx -= row_means(gx)
    gx -= xhat * slope
    gx *= rstd
    return ggamma, gbeta


def row_means(z: Array) -> Array:
    """Means over the last axis (n, 1), as a matrix-vector product: four times faster than `mean` on short rows."""
    return (z @ np.full((z.shape[-1], 1), 1 / z.shape[-1], z.dtype)) if z.shape[-1] else z[:, :1]


def column_sums(g: Array) -> Array:
    """Sums over the first axis of (n, D) as a vector-matrix product."""
    return np.ones(len(g), g.dtype) @ g


@layer_norm.fast("numpy", "float32", "float64")
def layer_norm_numpy(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> tuple[Array, tuple[Array, ...]]:
    """One block of rows at a time."""
    y, xhat = np.empty(x.shape, x.dtype), np.array(x, order="C")
    rstd = np.empty((*x.shape[:-1], 1), x.dtype)
    d = x.shape[-1]
    if x.size:
        y2, z2, r2 = y.reshape(-1, d), xhat.reshape(-1, d), rstd.reshape(-1, 1)

        def body(i: int, j: int) -> None:
            norm_rows(z2[i:j], gamma, beta, eps, y2[i:j], r2[i:j])

        map_blocks(body, len(z2), z2[:1].nbytes)
    return y, (gamma, xhat, rstd)


@layer_norm_grad.fast("numpy", "float32", "float64")
def layer_norm_grad_numpy(g: Array, gamma: Array, xhat: Array, rstd: Array) -> tuple[Array, Array, Array]:
    """One block of rows at a time; the blocks' parameter gradients are added in order."""
    gx = np.empty(g.shape, g.dtype)
    d = g.shape[-1]
    if not g.size:
        return gx, np.zeros(d, g.dtype), np.zeros(d, g.dtype)
    g2, x2, r2, gx2 = g.reshape(-1, d), xhat.reshape(-1, d), rstd.reshape(-1, 1), gx.reshape(-1, d)

    def body(i: int, j: int) -> tuple[Array, Array]:
        return norm_rows_grad(g2[i:j], gamma, x2[i:j], r2[i:j], gx2[i:j])

    ggamma, gbeta = sum_blocks(map_blocks(body, len(g2), g2[:1].nbytes))
    return gx, ggamma, gbeta


def sum_blocks(parts: list[tuple[Array, ...]]) -> list[Array]:
    """Add up what the blocks returned, in the order of the blocks."""
    return [np.add.reduce(part, axis=0) for part in zip(*parts, strict=True)]


WARP_COLUMNS = 1024  # of a row at most, that one warp holds in registers; longer rows are shared by several warps
MOST_WARPS = 8  # that share a row: more would leave a thread too few registers
PARTIAL_SUMS = 264  # blocks that sum gamma's and beta's gradients: two for each multiprocessor of a large GPU


@layer_norm.fast("cupy", "float32", "float16", "bfloat16")
def layer_norm_cuda(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> tuple[Array, tuple[Any, ...]]:
    """A warp for each row, which is read and written once."""
    return norm_rows_cuda(x, None, gamma, beta, 0.0, None, eps)


@layer_norm_grad.fast("cupy", "float32", "float16", "bfloat16")
def layer_norm_grad_cuda(g: Array, *saved: Any) -> tuple[Array, Array, Array]:
    """A warp for each row; each block's parameter gradients, then their sums in the order of the blocks."""
    return norm_rows_grad_cuda(g, *saved)[1:]


def norm_rows_cuda(
    x: Array, residual: Array | None, gamma: Array, beta: Array, rate: float, key: Key | None, eps: float
) -> tuple[Array, tuple[Any, ...]]:
    """layer_norm(residual + dropout(x)); residual or key None: without.

    Saved: gamma, xhat, rstd (N,), float32 whatever the dtype of the rows, and the dropout.
    """
    xp = array_module(x)
    x, gamma, beta = contiguous(x), contiguous(gamma), contiguous(beta)
    residual = None if residual is None else contiguous(residual)
    n, d, block, shape = row_shape(x)
    y, xhat, rstd = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype), xp.empty(n, np.float32)
    sizes = np.int32(n), np.int32(d), np.float32(eps)
    args = x, residual, gamma, beta, y, xhat, rstd, *sizes, *draw(rate, key)
    launch("layer_norm.cu", "layer_norm", -(-n // shape["ROWS"]), block, args, T=x.dtype, **shape)
    return y, (gamma, xhat, rstd, rate, key)


def norm_rows_grad_cuda(
    g: Array, gamma: Array, xhat: Array, rstd: Array, rate: float, key: Key | None
) -> tuple[Array, Array, Array, Array]:
    """Gradients (gx, gresidual, ggamma, gbeta) of `norm_rows_cuda`; without a key the first two are one array."""
    xp = array_module(g)
    g = contiguous(g)
    n, d, block, shape = row_shape(g)
    blocks = min(-(-n // shape["ROWS"]), PARTIAL_SUMS)
    gresidual, partial = xp.empty(g.shape, g.dtype), xp.empty((blocks, 2 * d), np.float32)
    gx = None if key is None else xp.empty(g.shape, g.dtype)
    args = g, gamma, xhat, rstd, gresidual, gx, partial, np.int32(n), np.int32(d), *draw(rate, key)
    launch("layer_norm.cu", "layer_norm_grad", blocks, block, args, T=g.dtype, **shape)
    sums = sum_columns_cuda(partial, g.dtype)
    return gresidual if gx is None else gx, gresidual, sums[:d], sums[d:]


def row_shape(x: Array) -> tuple[int, int, int, dict[str, Any]]:
    """Rows and columns of x, threads of a block, and how its warps are laid over rows."""
    d = x.shape[-1]
    warps = min(max(1, -(-d // WARP_COLUMNS)), MOST_WARPS)
    rows = 8 if warps == 1 else 1
    chunks = max(1, -(-d // (512 * warps)))
    return x.size // max(d, 1), d, 32 * warps * rows, {"WARPS": warps, "ROWS": rows, "CHUNKS": chunks}


def sum_columns_cuda(partial: Array, dtype: Any) -> Array:
    """The sums (D,) over the rows of partial (n, D), float32."""
    rows, columns = partial.shape
    sums = array_module(partial).empty(columns, dtype)
    sizes = np.int32(rows), np.int32(columns)
    launch("sums.cu", "column_sums", -(-columns // 32), 256, (partial, sums, *sizes), T=sums.dtype)
    return sums
