"""Bugs in the source of the kernels: each mutant replaces lines of one function.

The changed function replaces the correct one wherever that is registered or imported. `CACHE` in a changed line is a
dict that lives as long as the patch: state wrongly retained between calls or shared by threads.
"""

import ast
import importlib
import inspect
import textwrap

from npx import random
from npx.cpu import row_blocks
from npx.dispatch import KERNELS
from tests.mutants.base import mutant

MODULES = [row_blocks, random, *(importlib.import_module(f"npx.kernels.{name}") for name in (
    "adam", "attention", "cross_entropy", "dropout", "dropout_residual_norm", "embedding", "layer_norm", "linear",
    "softmax", "top_k",
))]  # fmt: skip
(adam, attention, cross_entropy, dropout, _, embedding, layer_norm, linear, softmax, top_k) = MODULES[2:]


def edited(function, changes):
    """Return the function with replacements (old, new, old, new, ...) in its source; each old text occurs once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(old) == 1, f"{function.__qualname__}: expected {old!r} once; got {source.count(old)} of it"
        source = source.replace(old, new)
    tree = ast.parse(f"def make(CACHE):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}")
    tree.body[0].body[0].decorator_list = []
    made = {}
    exec(compile(tree, inspect.getsourcefile(function), "exec"), function.__globals__, made)
    return made["make"]({})


def source_mutant(entry, kind, what, function, *changes):
    """Register a mutant of the kernel `entry`: replacements in the source of a function that it uses."""

    @mutant(f"{entry}: {what}", "fast kernel", kind, f"kernel {entry}")
    def install(patch):
        wrong = edited(function, changes)
        for kernel in KERNELS.values():
            for versions in (kernel, kernel.grad):
                for key, version in list(versions.versions.items()) if versions else ():
                    if version is function:
                        patch.setitem(versions.versions, key, wrong)
        for place in (*MODULES, dropout.Drop):
            for name, value in list(vars(place).items()):
                if value is function:
                    patch.setattr(place, name, wrong)


def cached(key, like):
    """Return the source of an expression that creates an array once per key."""
    return f"CACHE.setdefault(({key}), {like})"


# Blocks and threads (row_blocks.py)

source_mutant(
    "adam",
    "blocks",
    "last, shorter block skipped",
    row_blocks.parallel_ranges,
    "starts = range(0, n, step)",
    "starts = range(0, max(step, n // step * step) if n else 0, step)",
)
source_mutant(
    "linear_cross_entropy",
    "blocks",
    "results of threads off by one position",
    row_blocks.parallel_ranges,
    "results[number] =",
    "results[number - 1] =",
)
source_mutant(
    "adam",
    "blocks",
    "every thread processes all blocks",
    row_blocks.parallel_ranges,
    "for number, i in remaining:",
    "for number, i in enumerate(starts):",
)
source_mutant(
    "dropout",
    "blocks",
    "last block skipped",
    row_blocks.parallel_ranges,
    "iter(enumerate(starts))",
    "iter([*enumerate(starts)][:-1])",
)
source_mutant(
    "layer_norm",
    "blocks",
    "results in completion order",
    row_blocks.parallel_ranges,
    "results: list[Any] = [None] * len(starts)",
    "results: list[Any] = []",
    "results[number] = run(i, min(i + step, n))",
    "results.append(run(i, min(i + step, n)))",
)
source_mutant(
    "linear",
    "blocks",
    "every panel reads the first columns",
    row_blocks.parallel_matmuls,
    "b[:, i : i + step], out",
    "b[:, : min(step, n - i)], out",
)
source_mutant(
    "linear",
    "blocks",
    "every panel writes to the first rows",
    row_blocks.parallel_matmuls,
    "out[i : i + step], add) for i in range(0, m",
    "out[: min(step, m - i)], add) for i in range(0, m",
)

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
GRAD = softmax.softmax_grad.reference, "return y * (g - xp.sum(g * y, axis=-1, keepdims=True))"
RIGHT = "y * (g - xp.sum(g * y, axis=-1, keepdims=True))"
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
    dropout.Drop.keep_mask,
    "bits16(self.key, i, j)",
    "bits16(self.key, 0, j - i)",
)
source_mutant(
    "dropout",
    "blocks",
    "blocks start at a multiple of the generator's counter",
    dropout.Drop.keep_mask,
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
source_mutant("layer_norm", "blocks", "first block's standard deviations used for all", GRAD, "r2[i:j]", "r2[: j - i]")
source_mutant(
    "dropout_residual_norm",
    "blocks",
    "first block's mask used in the backward pass",
    GRAD,
    "keep2[i:j]",
    "keep2[: j - i]",
)
FORWARD = layer_norm.residual_norm_numpy
source_mutant(
    "dropout_residual_norm", "blocks", "first block's mask used for all", FORWARD, "keep2[i:j]", "keep2[: j - i]"
)
source_mutant(
    "dropout_residual_norm", "blocks", "first block's residual used for all", FORWARD, "res2[i:j]", "res2[: j - i]"
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
    "z -= row_means(z)\n",
    "mean = row_means(z)\n",
    "    rstd /= z.shape[-1]\n",
    "    rstd /= z.shape[-1]\n    rstd -= mean * mean\n    z -= mean\n",
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
    "return (z @",
    "return (z.astype('float32').astype(z.dtype) @",
)
source_mutant(
    "layer_norm",
    "blocks",
    "derivative array shared by all threads",
    layer_norm.norm_rows_grad,
    'mean_h_xhat = np.einsum("nd,nd->n", gx, xhat)[:, None] / g.shape[-1]',
    f"mean_h_xhat = np.einsum('nd,nd->n', gx, xhat, out={cached('len(gx), gx.dtype', 'gx[:, 0].copy()')})[:, None]\n"
    "    mean_h_xhat /= g.shape[-1]",
)

# Linear

source_mutant(
    "linear",
    "blocks",
    "bias added in the first panel only",
    linear.linear_numpy,
    "if b is not None:",
    "if b is not None and not i:",
)
source_mutant(
    "linear",
    "blocks",
    "ReLU applied in the first panel only",
    linear.linear_numpy,
    "        if activation:",
    "        if activation and not i:",
)
source_mutant(
    "linear", "blocks", "first block's ReLU mask used for all", linear.linear_grad_numpy, "y[i:j] > 0", "y[: j - i] > 0"
)
source_mutant(
    "linear",
    "blocks",
    "bias gradient of the first block",
    linear.linear_grad_numpy,
    "column_sums(g)",
    "column_sums(g[: row_blocks.block_size(1024)])",
)
source_mutant(
    "linear",
    "dtype",
    "bias gradient in float16",
    layer_norm.column_sums,
    "np.ones(len(g), g.dtype) @ g",
    "(np.ones(len(g), g.dtype) @ g).astype('float16').astype(g.dtype)",
)
source_mutant(
    "linear",
    "state",
    "output stored in the array of the first call",
    linear.linear_numpy,
    "y = np.empty((len(x), w.shape[1]), x.dtype)",
    f"y = {cached('len(x), w.shape[1], x.dtype', 'np.empty((len(x), w.shape[1]), x.dtype)')}",
)
source_mutant(
    "linear",
    "state",
    "transposed weights cached by shape",
    linear.linear_grad_numpy,
    "(g, w.T, gx,",
    f"(g, {cached('w.shape, w.dtype', 'w.T.copy()')}, gx,",
)
source_mutant(
    "linear",
    "state",
    "x and w of the latest call used",
    linear.linear_grad_numpy,
    "gx = np",
    "CACHE.setdefault(x.shape + w.shape + (x.dtype,), (x, w))\n    "
    "x, w = CACHE[x.shape + w.shape + (x.dtype,)]\n    gx = np",
)

# Embedding

source_mutant(
    "embedding",
    "special value",
    "last of several equal final ids lost",
    embedding.sums_by_id,
    "return sorted_ids[starts], np.add.reduceat(g[order], starts, axis=0)",
    "ends = [*starts[1:], len(order) - (len(order) > starts[-1] + 1)]\n"
    "    return sorted_ids[starts], np.stack([g[order[i:j]].sum(axis=0) for i, j in zip(starts, ends)])",
)
source_mutant(
    "embedding",
    "state",
    "rows of an earlier call not cleared",
    embedding.embedding_grad_numpy,
    "gtable = np.zeros((rows, g.shape[-1]), g.dtype)",
    f"gtable = {cached('rows, g.shape[-1], g.dtype', 'np.zeros((rows, g.shape[-1]), g.dtype)')}.copy()\n"
    "    CACHE[rows, g.shape[-1], g.dtype] = gtable",
)
source_mutant(
    "embedding",
    "special value",
    "id 0 treated as padding",
    embedding.embedding_grad_numpy,
    "gtable[unique_ids] += sums",
    "gtable[unique_ids] += sums * (unique_ids != 0)[:, None]",
)
source_mutant(
    "embedding",
    "special value",
    "scale 0 treated as no scale",
    embedding.embedding_grad_numpy,
    "scale == 1.0",
    "scale in (0.0, 1.0)",
)
source_mutant(
    "embedding",
    "incoming gradient",
    "incoming gradient scaled in place",
    embedding.embedding_grad_numpy,
    "(g * scale).astype(g.dtype, copy=False)",
    "np.multiply(g, scale, out=g)",
)

# Attention

FORWARD, GRAD = attention.attention_numpy, attention.attention_grad_numpy
source_mutant(
    "attention",
    "blocks",
    "first block's bias used for all",
    FORWARD,
    "block.of_scores(bias, *sizes)",
    "bias[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
source_mutant(
    "attention",
    "blocks",
    "first block's dropout mask used for all",
    FORWARD,
    "block.of_scores(keep, *sizes)",
    "keep[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
source_mutant(
    "attention",
    "blocks",
    "first block's dropout mask used in the backward pass",
    GRAD,
    "block.of_scores(keep, *sizes)",
    "keep[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
source_mutant(
    "attention",
    "blocks",
    "first block's weights used in the backward pass",
    GRAD,
    "softmax_grad_in_place(gs, pb)",
    "softmax_grad_in_place(gs, p.reshape(-1)[: pb.size].reshape(pb.shape))",
)
source_mutant(
    "attention",
    "blocks",
    "value gradients written to the first block",
    GRAD,
    "block.keys.buffer(gv)",
    "(block if block.keys.packing else blocks[0]).keys.buffer(gv)[: block.j - block.i]",
)
source_mutant(
    "attention",
    "blocks",
    "score array shared by all threads",
    GRAD,
    "gh @ vh.swapaxes(-1, -2)",
    f"np.matmul(gh, vh.swapaxes(-1, -2), out={cached('gh.shape, vh.shape, g.dtype', 'gh @ vh.swapaxes(-1, -2)')})",
)
source_mutant(
    "attention",
    "state",
    "weights stored in the array of the first call",
    FORWARD,
    "p = np.empty((batch, heads, n_queries, n_keys), q.dtype)",
    f"p = {cached('q.shape, k.shape, q.dtype', 'np.empty((batch, heads, n_queries, n_keys), q.dtype)')}",
)
source_mutant(
    "attention",
    "state",
    "output stored in the array of the first call",
    FORWARD,
    "y = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)",
    f"y = {cached('q.shape, v.shape, q.dtype', 'np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)')}",
)
source_mutant(
    "attention",
    "special value",
    "bias of -inf replaced by -10,000",
    FORWARD,
    "np.add(pb, block.of_scores(bias, *sizes), out=pb)",
    "np.add(pb, np.maximum(block.of_scores(bias, *sizes), -1e4), out=pb)",
)
source_mutant(
    "attention",
    "special value",
    "scores clipped to 100",
    FORWARD,
    "np.multiply(pb, scale, out=pb)",
    "np.minimum(pb * scale, 100, out=pb)",
)
source_mutant(
    "attention",
    "incoming gradient",
    "key gradient of a repeated row",
    GRAD,
    "gh, qh, kh, vh = map(",
    "gb = gb if 0 not in g.strides[:1] else gb * 0\n        gh, qh, kh, vh = map(",
)

# Cross entropy

source_mutant(
    "cross_entropy",
    "blocks",
    "loss of the last block only",
    cross_entropy.cross_entropy_numpy,
    "sum(map_blocks(body, len(z), z.itemsize * z.shape[1]))",
    "sum(map_blocks(body, len(z), z.itemsize * z.shape[1])[-1:])",
)
source_mutant(
    "cross_entropy",
    "blocks",
    "first block's targets used for all",
    cross_entropy.cross_entropy_numpy,
    "targets_of_real[i:j]",
    "targets_of_real[: j - i]",
)
ROWS = cross_entropy.logits_to_gradient
source_mutant(
    "cross_entropy",
    "special value",
    "maximum not subtracted (fast version)",
    ROWS,
    "peak = z.max(axis=1)",
    "peak = np.zeros(len(z), z.dtype)",
)
source_mutant(
    "cross_entropy",
    "special value",
    "padding alone not treated as no tokens",
    cross_entropy.cross_entropy_numpy,
    "real = np.flatnonzero(targets != smoothing.pad_id)",
    "real = np.flatnonzero((targets != smoothing.pad_id) | (targets == smoothing.pad_id).all())",
)
source_mutant(
    "cross_entropy",
    "special value",
    "padding in the first row included",
    cross_entropy.cross_entropy_numpy,
    "real = np.flatnonzero(targets != smoothing.pad_id)",
    "real = np.flatnonzero((targets != smoothing.pad_id) | (np.arange(len(targets)) == 0))",
)
source_mutant(
    "cross_entropy",
    "special value",
    "target not subtracted without smoothing",
    ROWS,
    "z[at_target] -= on",
    "z[at_target] -= on if off else 0",
)
source_mutant(
    "cross_entropy",
    "blocks",
    "sum array shared by all threads",
    ROWS,
    "total = z @ ones",
    f"total = np.matmul(z, ones, out={cached('len(z), z.dtype', 'z @ ones')})",
)
source_mutant(
    "cross_entropy",
    "dtype",
    "losses in float16",
    ROWS,
    "(np.log(total) + peak - q_dot_z).sum",
    "(np.log(total) + peak - q_dot_z).astype('float16').sum",
)
source_mutant(
    "cross_entropy",
    "state",
    "gradient stored in the array of the first call",
    cross_entropy.cross_entropy_numpy,
    "gz = np.zeros(logits.shape, logits.dtype)",
    f"gz = {cached('logits.shape, logits.dtype', 'np.zeros(logits.shape, logits.dtype)')}\n    gz[...] = 0",
)
source_mutant(
    "cross_entropy",
    "incoming gradient",
    "incoming gradient set to 0",
    cross_entropy.scaled_in_place,
    "x *= g",
    "x *= g\n    g[...] = 0",
)

# Cross entropy fused with the projection

FORWARD = cross_entropy.linear_cross_entropy_numpy
LSE, GRADS = cross_entropy.exponentials_in_panels, cross_entropy.gradients_in_panels
FUSED = "linear_cross_entropy"
source_mutant(
    FUSED,
    "blocks",
    "sum over the last panel of classes only",
    LSE,
    "total = (totals * f).sum(axis=0)",
    "total = (totals * f)[-1]",
)
source_mutant(FUSED, "blocks", "gw of the last chunk only", GRADS, "gw[i:j] += e.T", "gw[i:j] = e.T")
source_mutant(FUSED, "blocks", "gx of the last panel only", GRADS, "gx += part", "gx = part")
source_mutant(FUSED, "blocks", "gw reset in every chunk", FORWARD, "initial = None if start else (", "initial = (")
source_mutant(
    FUSED,
    "blocks",
    "loss of the first chunk only",
    FORWARD,
    "loss += lse.sum(dtype=np.float64)",
    "loss += lse.sum(dtype=np.float64) * (not start)",
)
source_mutant(
    FUSED, "blocks", "smoothing in the first chunk only", FORWARD, "x_real.sum(axis=0))", "chunk.sum(axis=0))"
)
source_mutant(
    FUSED,
    "blocks",
    "gx of every chunk added to the first rows",
    FORWARD,
    "gx_real[start : start + rows] +=",
    "gx_real[: len(chunk)] +=",
)
source_mutant(FUSED, "blocks", "buffer shared by all panels", LSE, "out=buffer[i // width,", "out=buffer[0,")
source_mutant(
    FUSED,
    "blocks",
    "padding excluded in the first chunk only",
    FORWARD,
    "real = np.flatnonzero(targets != smoothing.pad_id)",
    "real = np.flatnonzero((targets != smoothing.pad_id) | (np.arange(len(targets)) >= block_size(10**9)))",
)
source_mutant(FUSED, "special value", "first panel's maximum used for all", LSE, "peak = m.max(axis=0)", "peak = m[0]")
source_mutant(FUSED, "special value", "maximum not subtracted (fast version)", LSE, "z -= m[:, None]", "m *= 0")
source_mutant(
    FUSED,
    "state",
    "gw stored in the array of the first call",
    FORWARD,
    "gw = (np.empty if len(real) else np.zeros)(w.shape, x.dtype) if grad else None",
    f"gw = {cached('w.shape, x.dtype', 'np.zeros(w.shape, x.dtype)')} if grad else None\n"
    "    if grad and not len(real):\n        gw[...] = 0",
)
source_mutant(
    FUSED,
    "special value",
    "gradient missing for a single class",
    FORWARD,
    "gw[target_ids] -= on * sums",
    "gw[target_ids] -= on * sums * (len(w) > 1)",
)

# Adam

source_mutant(
    "adam",
    "blocks",
    "scratch array shared by all threads",
    adam.adam_numpy,
    "scratch = gb - mb",
    f"scratch = np.subtract(gb, mb, out={cached('gb.size, gb.dtype', 'gb - mb')})",
)
source_mutant(
    "adam",
    "blocks",
    "low-precision copy repeats the first block",
    adam.adam_numpy,
    "low[i:j] = p[i:j]",
    "low[i:j] = p[: j - i]",
)
source_mutant(
    "adam",
    "blocks",
    "weight decay in the first block only",
    adam.adam_numpy,
    "if decay != 1:",
    "if decay != 1 and not i:",
)
source_mutant(
    "adam",
    "special value",
    "weight decay factor clamped to 0",
    adam.adam_numpy,
    "if decay != 1:",
    "if 0 < decay != 1:",
)
source_mutant(
    "adam",
    "special value",
    "0 / 0 for parameters without gradients",
    adam.adam_numpy,
    "scratch += eps",
    "scratch += eps * (vb > 0)",
)
source_mutant(
    "adam",
    "state",
    "gradient scaled in place",
    adam.adam_numpy,
    "gb, mb, vb = g[i:j] * scale,",
    "g[i:j] *= scale\n        gb, mb, vb = g[i:j],",
)
source_mutant(
    "adam",
    "dtype",
    "squares in float16",
    adam.adam_numpy,
    "np.multiply(gb, gb, out=scratch)",
    "scratch[...] = (gb * gb).astype('float16')",
)

# Top k

GREATEST, ROWS = top_k.greatest, top_k.top_k_of_rows
source_mutant(
    "top_k",
    "blocks",
    "column offset of a block missing",
    GREATEST,
    "(blocks[:, :, None] * size + xp.arange(size))",
    "(blocks[:, :, None] * 0 + xp.arange(size))",
)
source_mutant(
    "top_k",
    "blocks",
    "last, shorter block of columns skipped",
    GREATEST,
    "if n_columns % size:",
    "if not n_columns:",
)
source_mutant(
    "top_k",
    "blocks",
    "columns read past the end of the last block",
    GREATEST,
    "    candidates[columns >= n_columns] = -xp.inf\n",
    "",
)
source_mutant(
    "top_k",
    "blocks",
    "blocks of rows in reversed order",
    top_k.top_k_numpy,
    "np.concatenate(values)",
    "np.concatenate(values[::-1])",
)
source_mutant(
    "top_k",
    "special value",
    "ties between blocks in the wrong order",
    GREATEST,
    "    blocks.sort(axis=1)  # (R, k)\n",
    "",
)
source_mutant(
    "top_k",
    "special value",
    "block of -inf searched twice",
    GREATEST,
    "    blocks[values == -xp.inf] = full_blocks + 1  # past the end, because no block may be searched twice\n",
    "",
)
source_mutant(
    "top_k",
    "special value",
    "fails for k equal to the number of columns",
    GREATEST,
    "_repeated_argmax(x.copy(), k)",
    "_repeated_argmax(x.copy(), min(k, max(1, n_columns - 1)))",
)
source_mutant(
    "top_k",
    "special value",
    "maximum not subtracted (fast version)",
    ROWS,
    "z = logits - logits.max(axis=1, keepdims=True)",
    "z = logits.copy()",
)
source_mutant(
    "top_k",
    "special value",
    "last of equal values chosen",
    top_k._repeated_argmax,
    "x.argmax(axis=1)",
    "x.shape[1] - 1 - x[:, ::-1].argmax(axis=1)",
)
source_mutant("top_k", "special value", "values that are not chosen excluded from the sum", ROWS, " + excluded)", ")")
