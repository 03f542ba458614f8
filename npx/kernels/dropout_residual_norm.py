"""LayerNorm(residual + Dropout(x)): what stands around every sub-layer of the post-norm Transformer (section 5.4).

One pass instead of three: on a CPU a block of rows stays in cache from the dropout to the normalised output, on a GPU
one warp reads and writes each row once.
"""

from typing import Any

import numpy as np

from npx.array import Array
from npx.kernels.dropout import dropout, dropout_grad, keep_mask, keep_scale
from npx.kernels.layer_norm import (
    layer_norm,
    layer_norm_grad,
    norm_rows,
    norm_rows_cuda,
    norm_rows_grad,
    norm_rows_grad_cuda,
    sum_blocks,
)
from npx.random import Key
from npx.registry import kernel
from npx.rows import map_blocks


@kernel
def dropout_residual_norm(
    x: Array, residual: Array, gamma: Array, beta: Array, rate: float = 0.0, key: Key | None = None, eps: float = 1e-6
) -> tuple[Array, tuple[Any, ...]]:
    """y = layer_norm(residual + dropout(x)); key None: no dropout.

    x, residual (..., D); gamma, beta (D,). Saved: what layer_norm saves; rate, keep (bool (..., D), or None).
    """
    kept, (_, keep) = (x, (rate, None)) if key is None else dropout.reference(x, rate, key)
    y, saved = layer_norm.reference(residual + kept, gamma, beta, eps)
    return y, (*saved, rate, keep)


@dropout_residual_norm.gradient
def dropout_residual_norm_grad(
    g: Array, gamma: Array, xhat: Array, rstd: Array, rate: float, keep: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Gradients (gx, gresidual, ggamma, gbeta): the layer norm's reaches the residual whole and x through its mask."""
    gresidual, ggamma, gbeta = layer_norm_grad.reference(g, gamma, xhat, rstd)
    gx = gresidual if keep is None else dropout_grad.reference(gresidual, rate, keep)
    return gx, gresidual, ggamma, gbeta


@dropout_residual_norm.fast("numpy", "float32", "float64")
def dropout_residual_norm_numpy(
    x: Array, residual: Array, gamma: Array, beta: Array, rate: float = 0.0, key: Key | None = None, eps: float = 1e-6
) -> tuple[Array, tuple[Any, ...]]:
    """One block of rows at a time."""
    d = x.shape[-1]
    y, xhat, rstd = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype), np.empty((*x.shape[:-1], 1), x.dtype)
    keep = None if key is None else keep_mask(key, x.shape, rate)
    if not x.size:
        return y, (gamma, xhat, rstd, rate, keep)
    x2, res2, y2, z2 = (a.reshape(-1, d) for a in (x, residual, y, xhat))
    r2 = rstd.reshape(-1, 1)
    keep2 = None if keep is None else keep.reshape(-1, d)
    scale = keep_scale(rate)

    def body(i: int, j: int) -> None:
        z = z2[i:j]
        if keep2 is None:
            np.add(x2[i:j], res2[i:j], out=z)
        else:
            np.multiply(x2[i:j], scale, out=z)
            z *= keep2[i:j]
            z += res2[i:j]
        norm_rows(z, gamma, beta, eps, y2[i:j], r2[i:j])

    map_blocks(body, len(x2), x2[:1].nbytes)
    return y, (gamma, xhat, rstd, rate, keep)


@dropout_residual_norm_grad.fast("numpy", "float32", "float64")
def dropout_residual_norm_grad_numpy(
    g: Array, gamma: Array, xhat: Array, rstd: Array, rate: float, keep: Array | None
) -> tuple[Array, Array, Array, Array]:
    """One block of rows at a time; the blocks' parameter gradients are added in order."""
    d = g.shape[-1]
    if not g.size:
        return np.empty_like(g), np.empty_like(g), np.zeros(d, g.dtype), np.zeros(d, g.dtype)
    gresidual = np.empty(g.shape, g.dtype)
    gx = gresidual if keep is None else np.empty(g.shape, g.dtype)
    g2, h2, r2 = g.reshape(-1, d), xhat.reshape(-1, d), rstd.reshape(-1, 1)
    gres2, gx2 = gresidual.reshape(-1, d), gx.reshape(-1, d)
    keep2 = None if keep is None else keep.reshape(-1, d)
    scale = keep_scale(rate)

    def body(i: int, j: int) -> tuple[Array, Array]:
        sums = norm_rows_grad(g2[i:j], gamma, h2[i:j], r2[i:j], gres2[i:j])
        if keep2 is not None:
            np.multiply(gres2[i:j], scale, out=gx2[i:j])
            gx2[i:j] *= keep2[i:j]
        return sums

    ggamma, gbeta = sum_blocks(map_blocks(body, len(g2), g2[:1].nbytes))
    return gx, gresidual, ggamma, gbeta


@dropout_residual_norm.fast("cupy", "float32", "float16", "bfloat16")
def dropout_residual_norm_cuda(
    x: Array, residual: Array, gamma: Array, beta: Array, rate: float = 0.0, key: Key | None = None, eps: float = 1e-6
) -> tuple[Array, tuple[Any, ...]]:
    """layer_norm.cu, which drops and adds while it reads; the mask is not stored."""
    return norm_rows_cuda(x, residual, gamma, beta, rate, key, eps)


@dropout_residual_norm_grad.fast("cupy", "float32", "float16", "bfloat16")
def dropout_residual_norm_grad_cuda(g: Array, *saved: Any) -> tuple[Array, Array, Array, Array]:
    """The mask is drawn again while the gradient is written."""
    return norm_rows_grad_cuda(g, *saved)
