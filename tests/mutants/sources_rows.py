"""Bugs in the source of the kernels of softmax, dropout and layer norm."""

from npx import random
from tests.mutants.sources import cached, dropout, layer_norm, softmax, source_mutant

# Softmax

source_mutant(
    "softmax",
    "blocks",
    "last row skipped in every block but the first",
    softmax.softmax_numpy,
    "softmax_in_place(rows[i:j])",
    "softmax_in_place(rows[i : j - 1] if i else rows[:j])",
)
source_mutant(
    "softmax",
    "blocks",
    "maxima shared by all threads",
    softmax.softmax_in_place,
    "initial=-np.inf)",
    f"initial=-np.inf, out={cached('x.shape, x.dtype', 'x[..., :1].copy()')})",
)
source_mutant(
    "softmax",
    "special value",
    "maximum not subtracted (fast version)",
    softmax.softmax_in_place,
    "np.subtract(x, peak, out=x)",
    "pass",
)
source_mutant(
    "softmax",
    "special value",
    "global maximum instead of the row maximum",
    softmax.softmax_in_place,
    "x.max(axis=-1, keepdims=True, initial",
    "x.max(keepdims=True, initial",
)
source_mutant(
    "softmax",
    "special value",
    "fully masked rows divided by 0",
    softmax.softmax_in_place,
    "np.copyto(total, 1, where=total == 0)",
    "pass",
)
source_mutant(
    "softmax",
    "special value",
    "-inf subtracted from -inf",
    softmax.softmax_in_place,
    "np.copyto(peak, 0, where=peak == -np.inf)",
    "pass",
)
source_mutant(
    "softmax",
    "dtype",
    "sums in float16",
    softmax.softmax_in_place,
    "x.sum(axis=-1, keepdims=True)",
    'x.sum(axis=-1, keepdims=True, dtype="float16").astype(x.dtype)',
)
source_mutant(
    "softmax",
    "state",
    "output stored in the array of the first call",
    softmax.softmax_numpy,
    "y = np.empty(shape, x.dtype)",
    f"y = {cached('shape, x.dtype', 'np.empty(shape, x.dtype)')}",
)
source_mutant(
    "softmax",
    "special value",
    "all-False mask ignored",
    softmax.softmax_numpy,
    "if mask is not None:\n        np.copyto",
    "if mask is not None and mask.any():\n        np.copyto",
)
GRAD = softmax.softmax_grad.reference, "return y * (g - precision.sum(g * y, axis=-1, keepdims=True))"
RIGHT = "y * (g - precision.sum(g * y, axis=-1, keepdims=True))"
source_mutant(
    "softmax",
    "incoming gradient",
    "writeable incoming gradient overwritten",
    *GRAD,
    f"r = {RIGHT}\n    if g.flags.writeable:\n        g *= y\n    return r",
)
source_mutant(
    "softmax",
    "incoming gradient",
    "input read in memory order",
    *GRAD,
    f"g = g.ravel('K').reshape(g.shape)\n    return {RIGHT}",
)
source_mutant(
    "softmax",
    "incoming gradient",
    "strides of 0 ignored",
    *GRAD,
    f"g = g if 0 not in g.strides else g * (np.arange(g.size).reshape(g.shape) == 0)\n    return {RIGHT}",
)
source_mutant(
    "softmax",
    "incoming gradient",
    "divided by the largest entry, which may be 0",
    *GRAD,
    f"size = abs(g).max(initial=0)\n    g = g / size\n    return size * ({RIGHT})",
)
source_mutant("softmax", "incoming gradient", "clipped to 1,000", *GRAD, f"g = g.clip(-1000, 1000)\n    return {RIGHT}")
source_mutant(
    "softmax",
    "incoming gradient",
    "values below 1e-5 flushed to 0",
    *GRAD,
    f"g = g * (abs(g) > 1e-5)\n    return {RIGHT}",
)

# Dropout

source_mutant(
    "dropout",
    "blocks",
    "random counter restarts in every block",
    dropout.DropoutSpec.keep_mask,
    "bits16(self.key, i, j)",
    "bits16(self.key, 0, j - i)",
)
source_mutant(
    "dropout",
    "blocks",
    "blocks start at a multiple of the generator's counter",
    dropout.DropoutSpec.keep_mask,
    "bits16(self.key, i, j)",
    "bits16(self.key, i // 16 * 16, i // 16 * 16 + j - i)",
)
source_mutant(
    "dropout_residual_norm",
    "blocks",
    "random words taken from the start of a counter",
    random.bits16,
    "[start - first * WORDS_PER_COUNT : words]",
    "[: stop - start]",
)
source_mutant(
    "dropout",
    "blocks",
    "first block's mask used for all",
    dropout.dropout_grad_numpy,
    "flat_keep[i:j]",
    "flat_keep[: j - i]",
)
source_mutant(
    "dropout",
    "special value",
    "scaled by 1 / (1 - rate) for rate 1 too",
    dropout.dropout_grad_numpy,
    "scale = drop.scale",
    "scale = np.float64(1) / (1 - drop.rate)",
)
source_mutant(
    "dropout",
    "special value",
    "rate 0 drops everything",
    dropout.dropout_grad_numpy,
    "scale = drop.scale",
    "scale = drop.scale if drop.rate else 0.0",
)
source_mutant(
    "dropout",
    "state",
    "first mask reused for equal shapes",
    dropout.dropout_numpy,
    "drop.keep_mask(x.shape)",
    cached("x.shape, drop.rate", "drop.keep_mask(x.shape)"),
)
source_mutant(
    "dropout",
    "state",
    "output stored in the array of the first call",
    dropout.dropout_grad_numpy,
    "gx = np.empty(g.shape, g.dtype)",
    f"gx = {cached('g.shape, g.dtype', 'np.empty(g.shape, g.dtype)')}",
)

# Layer norm

GRAD = layer_norm.residual_norm_grad_numpy
SUMS = "tuple(np.add.reduce(part, axis=0) for part in zip(*parts, strict=True))"
source_mutant("layer_norm", "blocks", "parameter gradients of the last block only", GRAD, SUMS, "parts[-1]")
source_mutant(
    "layer_norm",
    "blocks",
    "first block's parameter gradients used for all",
    GRAD,
    SUMS,
    "tuple(len(parts) * part for part in parts[0])",
)
source_mutant(
    "layer_norm",
    "blocks",
    "first block's standard deviations used for all",
    GRAD,
    "rstd_rows[i:j]",
    "rstd_rows[: j - i]",
)
source_mutant(
    "dropout_residual_norm",
    "blocks",
    "first block's mask used in the backward pass",
    GRAD,
    "keep_rows[i:j]",
    "keep_rows[: j - i]",
)
FORWARD = layer_norm.residual_norm_numpy
source_mutant(
    "dropout_residual_norm",
    "blocks",
    "first block's mask used for all",
    FORWARD,
    "keep_rows[i:j]",
    "keep_rows[: j - i]",
)
source_mutant(
    "dropout_residual_norm",
    "blocks",
    "first block's residual used for all",
    FORWARD,
    "residual_rows[i:j]",
    "residual_rows[: j - i]",
)
source_mutant(
    "layer_norm",
    "state",
    "saved values stored in the array of the first call",
    FORWARD,
    "np.empty((*x.shape[:-1], 1), x.dtype)",
    cached("x.shape, x.dtype", "np.empty((*x.shape[:-1], 1), x.dtype)"),
)
source_mutant(
    "layer_norm",
    "state",
    "saved values stored in a shared growing array",
    FORWARD,
    "    saved = gamma,",
    "    if CACHE.get(x.dtype, rstd[:0]).size < rstd.size:\n        CACHE[x.dtype] = np.empty(rstd.size, x.dtype)\n"
    "    rstd = CACHE.get(x.dtype, rstd)[: rstd.size].reshape(rstd.shape)\n    saved = gamma,",
)
source_mutant(
    "layer_norm",
    "special value",
    "variance computed as E[x^2] - E[x]^2 (fast version)",
    layer_norm.norm_rows,
    "np.subtract(x, row_means(x), out=xhat)\n",
    "mean = row_means(x)\n    np.copyto(xhat, x)\n",
    "    rstd /= xhat.shape[-1]\n",
    "    rstd /= xhat.shape[-1]\n    rstd -= mean * mean\n    xhat -= mean\n",
)
source_mutant(
    "layer_norm",
    "dtype",
    "standard deviation in float16",
    layer_norm.norm_rows,
    "np.sqrt(rstd, out=rstd)",
    'rstd[...] = np.sqrt(rstd).astype("float16")',
)
source_mutant(
    "layer_norm",
    "dtype",
    "means in float32",
    layer_norm.row_means,
    "return z @",
    "return z.astype('float32').astype(z.dtype) @",
)
source_mutant(
    "layer_norm",
    "blocks",
    "derivative array shared by all threads",
    layer_norm.norm_rows_grad,
    "mean_h_xhat = np.vecdot(gx, xhat)[:, None] / g.shape[-1]",
    f"mean_h_xhat = np.vecdot(gx, xhat, out={cached('len(gx), gx.dtype', 'gx[:, 0].copy()')})[:, None]\n"
    "    mean_h_xhat /= g.shape[-1]",
)
