"""Layer normalisation over the last axis (Ba et al., 2016), used after each sub-layer (paper section 3.1)."""

from typing import Any

import numpy as np

from npx.array import NO_TARGETS, Array, GradientTargets, added, array_module
from npx.cpu.row_blocks import block, map_blocks
from npx.cuda.launch import contiguous, launch
from npx.kernels.dropout import Drop, draw
from npx.registry import Output, kernel


@kernel
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> tuple[Array, tuple[Array, ...]]:
    """y = gamma * xhat + beta with xhat = (x - mean) * rstd, rstd = 1 / sqrt(var + eps), var the biased variance.

    x (..., D); gamma, beta (D,). Saved: gamma, xhat (..., D), rstd (..., 1).
    """
    check_rows(x)
    xp = array_module(x)
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    rstd = 1 / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    xhat = centred * rstd
    y = (xhat * gamma + beta).astype(x.dtype, copy=False)  # NumPy's mean of bfloat16 is float32
    return y, (gamma, xhat, rstd)


@layer_norm.gradient
def layer_norm_grad(
    g: Array, gamma: Array, xhat: Array, rstd: Array, accumulate_into: GradientTargets = NO_TARGETS
) -> Any:
    """Gradients (gx, ggamma, gbeta) of `layer_norm`. g, xhat (..., D); gamma (D,); rstd (..., 1).

    `accumulate_into`: arrays that those of gamma and beta are added to, if not None.

    With h = g * gamma: gx = rstd * (h - mean(h) - xhat * mean(h * xhat)). The two means are what moving x_i does to
    every other component, through the mean and through the variance; ggamma = sum g * xhat and gbeta = sum g over rows.
    """
    xp = array_module(g)
    h = g * gamma
    gx = rstd * (h - xp.mean(h, -1, keepdims=True) - xhat * xp.mean(h * xhat, -1, keepdims=True))
    rows = tuple(range(g.ndim - 1))
    gx, ggamma, gbeta = (part.astype(g.dtype, copy=False) for part in (gx, xp.sum(g * xhat, rows), xp.sum(g, rows)))
    return gx, *added((ggamma, gbeta), accumulate_into)


def check_rows(x: Array, residual: Array | None = None) -> None:
    """ValueError for what a norm of residual + x would cut down, to whole numbers, or read in another order."""
    if x.dtype.kind in "iub":
        raise ValueError(f"norm: expected x of floating-point numbers; got {x.dtype}; try x.astype('float32')")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"norm: expected a residual of x's shape {x.shape}; got {residual.shape}")


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
def layer_norm_numpy(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> Output:
    """`residual_norm_numpy` without residual and dropout."""
    return residual_norm_numpy(x, None, gamma, beta, None, eps)


@layer_norm_grad.fast("numpy", "float32", "float64")
def layer_norm_grad_numpy(g: Array, *saved: Any, **options: Any) -> tuple[Array, ...]:
    """That of `residual_norm_numpy`."""
    return residual_norm_grad_numpy(g, *saved, **options)[1:]


def residual_norm_numpy(
    x: Array, residual: Array | None, gamma: Array, beta: Array, drop: Drop | None = None, eps: float = 1e-6
) -> Output:
    """layer_norm(residual + dropout(x)), one block of rows at a time; residual None: without.

    What is kept is y, which the next operation keeps as well: xhat is had from it, but for the columns `hidden`, of
    which it is kept; and of the mask a bit for each value.
    """
    check_rows(x, residual)
    y, rstd = np.empty(x.shape, x.dtype), np.empty((*x.shape[:-1], 1), x.dtype)
    keep, hidden = drop and drop.keep(x.shape), hidden_columns(gamma, beta)
    columns = np.empty((rstd.size, len(hidden)), x.dtype)
    saved = gamma, beta, y, (hidden, columns), rstd, drop, None if keep is None else np.packbits(keep, axis=-1)
    if not x.size:
        return y, saved
    x2, res2, keep2, y2, r2 = (as_rows(a) for a in (x, residual, keep, y, rstd))
    scale = drop.scale if drop else 1.0

    def body(i: int, j: int) -> None:
        kept, z = x2[i:j], np.empty((j - i, x2.shape[1]), x.dtype)
        if keep2 is not None:
            kept = np.multiply(kept, scale, out=z)
            kept *= keep2[i:j]
        if res2 is None:
            np.copyto(z, kept)
        else:
            np.add(kept, res2[i:j], out=z)
        norm_rows(z, gamma, beta, eps, y2[i:j], r2[i:j])
        if len(hidden):
            columns[i:j] = z[:, hidden]

    map_blocks(body, len(x2), x2[:1].nbytes)
    return y, saved


def hidden_columns(gamma: Array, beta: Array) -> Array:
    """Numbers of the columns where y = gamma xhat + beta does not tell xhat to nearly all its digits."""
    size, limits = np.abs(gamma), np.finfo(gamma.dtype)
    return np.flatnonzero(~((4 * size >= np.abs(beta)) & (size > limits.tiny**0.5) & (size < limits.max**0.5)))


def residual_norm_grad_numpy(
    g: Array,
    gamma: Array,
    beta: Array,
    y: Array,
    kept: tuple[Array, Array],
    rstd: Array,
    drop: Drop | None,
    keep: Array | None,
    accumulate_into: GradientTargets = NO_TARGETS,
) -> tuple[Array, ...]:
    """Its gradients (gx, gresidual, ggamma, gbeta), those of the parameters added up in the order of the blocks."""
    gresidual, d = np.empty(g.shape, g.dtype), g.shape[-1]
    gx = gresidual if keep is None else np.empty(g.shape, g.dtype)
    if not g.size:
        return gx, gresidual, *added((np.zeros(d, g.dtype), np.zeros(d, g.dtype)), accumulate_into)
    g2, y2, r2, gres2, gx2, keep2 = (as_rows(a) for a in (g, y, rstd, gresidual, gx, keep))
    (hidden, columns), scale = kept, drop.scale if drop else 1.0
    inverse = 1 / np.where(np.isin(np.arange(d), hidden), 1, gamma)

    def body(i: int, j: int) -> tuple[Array, Array]:
        xhat = y2[i:j] - beta
        xhat *= inverse
        if len(hidden):
            xhat[:, hidden] = columns[i:j]
        sums = norm_rows_grad(g2[i:j], gamma, xhat, r2[i:j], gres2[i:j])
        if keep2 is not None:
            np.multiply(gres2[i:j], scale, out=gx2[i:j])
            gx2[i:j] *= np.unpackbits(keep2[i:j], axis=1, count=d)
        return sums

    parts = map_blocks(body, len(g2), g2[:1].nbytes)
    return (
        gx,
        gresidual,
        *added(tuple(np.add.reduce(part, axis=0) for part in zip(*parts, strict=True)), accumulate_into),
    )


def as_rows(x: Array | None) -> Any:
    """x (..., D) as (N, D), with at least one number."""
    return None if x is None else x.reshape(-1, x.shape[-1])


WARP_COLUMNS = 1024  # of a row at most, that one warp holds in registers; longer rows are shared by several warps
MOST_WARPS = 8  # that share a row: more would leave a thread too few registers
PARTIAL_SUMS = 264  # blocks that sum gamma's and beta's gradients: two for each multiprocessor of a large GPU


@layer_norm.fast("cupy", "float32", "float16", "bfloat16")
def layer_norm_cuda(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> Output:
    """`residual_norm_cuda` without residual and dropout."""
    return residual_norm_cuda(x, None, gamma, beta, None, eps)


@layer_norm_grad.fast("cupy", "float32", "float16", "bfloat16")
def layer_norm_grad_cuda(g: Array, *saved: Any, **options: Any) -> tuple[Array, ...]:
    """That of `residual_norm_cuda`."""
    return residual_norm_grad_cuda(g, *saved, **options)[1:]


def residual_norm_cuda(
    x: Array, residual: Array | None, gamma: Array, beta: Array, drop: Drop | None = None, eps: float = 1e-6
) -> Output:
    """layer_norm(residual + dropout(x)); residual None: without. A warp for each row, which is read and written once.

    Saved: gamma, xhat, rstd (N,), float32 whatever the dtype of the rows, and the dropout: the mask is not stored.
    """
    check_rows(x, residual)
    xp = array_module(x)
    x, residual, gamma, beta = (contiguous(a) for a in (x, residual, gamma, beta))
    n, d, threads, shape = row_shape(x)
    y, xhat, rstd = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype), xp.empty(n, np.float32)
    sizes = np.int32(n), np.int32(d), np.float32(eps)
    args = x, residual, gamma, beta, y, xhat, rstd, *sizes, *draw(drop)
    launch("layer_norm.cu", "layer_norm", -(-n // shape["ROWS"]), threads, args, T=x.dtype, **shape)
    return y, (gamma, xhat, rstd, drop)


def residual_norm_grad_cuda(
    g: Array, gamma: Array, xhat: Array, rstd: Array, drop: Drop | None, accumulate_into: GradientTargets = NO_TARGETS
) -> tuple[Array, ...]:
    """Its gradients (gx, gresidual, ggamma, gbeta); without dropout the first two are one array.

    A warp for each row; each block's parameter gradients, then their sums in the order of the blocks.
    """
    xp = array_module(g)
    g = contiguous(g)
    n, d, threads, shape = row_shape(g)
    blocks = min(-(-n // shape["ROWS"]), block(PARTIAL_SUMS))
    gresidual, partial = xp.empty(g.shape, g.dtype), xp.empty((blocks, 2 * d), np.float32)
    gx = xp.empty(g.shape, g.dtype) if drop else None
    args = g, gamma, xhat, rstd, gresidual, gx, partial, np.int32(n), np.int32(d), *draw(drop)
    launch("layer_norm.cu", "layer_norm_grad", blocks, threads, args, T=g.dtype, **shape)
    return gresidual if gx is None else gx, gresidual, *sum_columns_cuda(partial, g.dtype, accumulate_into[:2])


def row_shape(x: Array) -> tuple[int, int, int, dict[str, Any]]:
    """Rows and columns of x, threads of a block, and how its warps are laid over rows."""
    d = x.shape[-1]
    warps = min(max(1, -(-d // WARP_COLUMNS)), MOST_WARPS)
    rows = 8 if warps == 1 else 1
    chunks = max(1, -(-d // (512 * warps)))
    return x.size // max(d, 1), d, 32 * warps * rows, {"WARPS": warps, "ROWS": rows, "CHUNKS": chunks}


def sum_columns_cuda(partial: Array, dtype: Any, accumulate_into: GradientTargets) -> list[Array]:
    """The sums over the rows of partial (n, D), float32, in as many equal parts as `accumulate_into` has places: one
    or two.

    Added there if each is an array; else in new ones of `dtype`.
    """
    (rows, columns), parts = partial.shape, len(accumulate_into)
    places = [place for place in accumulate_into if place is not None and place.dtype == np.float32]
    add, width = len(places) == parts, columns // parts
    sums = places if add else list(array_module(partial).empty((parts, width), dtype))
    args = partial, sums[0], sums[-1], np.int32(rows), np.int32(columns), np.int32(width), np.int32(add)
    launch("sums.cu", "column_sums", -(-columns // 32), 256, args, T=sums[0].dtype)
    return sums
