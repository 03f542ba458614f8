"""Mistakes planted in the kernels as they are: one line of a function is another one.

The changed function takes the place of the right one wherever that is registered or imported. `KEPT` in a changed line
is a dict that lives as long as the patch: what should not be kept from one call to the next, or shared by threads.
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
    """The function with lines (old, new, old, new, ...) of its source changed; each old one stands there once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(old) == 1, f"{function.__qualname__}: expected {old!r} once; got {source.count(old)}"
        source = source.replace(old, new)
    tree = ast.parse(f"def make(KEPT):\n{textwrap.indent(source, '    ')}\n    return {function.__name__}")
    tree.body[0].body[0].decorator_list = []
    made = {}
    exec(compile(tree, inspect.getsourcefile(function), "exec"), function.__globals__, made)
    return made["make"]({})


def mistake(entry, kind, what, function, *changes):
    """Enter a mutant of the kernel `entry`: `changes` in the source of a function that it uses."""

    @mutant(f"{entry}: {what}", "fast kernel", kind, f"kernel {entry}")
    def plant(patch):
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


def kept(key, like):
    """Source of an array that is made once for each key."""
    return f"KEPT.setdefault(({key}), {like})"


# Walking over blocks (row_blocks.py)

mistake(
    "adam",
    "blocks",
    "the last, shorter block is left out",
    row_blocks.parallel_ranges,
    "starts = range(0, n, step)",
    "starts = range(0, max(step, n // step * step) if n else 0, step)",
)
mistake(
    "linear_cross_entropy",
    "blocks",
    "results of threads are one place off",
    row_blocks.parallel_ranges,
    "results[number] =",
    "results[number - 1] =",
)
mistake(
    "adam",
    "blocks",
    "each thread walks over all blocks",
    row_blocks.parallel_ranges,
    "for number, i in remaining:",
    "for number, i in enumerate(starts):",
)
mistake(
    "dropout",
    "blocks",
    "no thread takes the last block",
    row_blocks.parallel_ranges,
    "iter(enumerate(starts))",
    "iter([*enumerate(starts)][:-1])",
)
mistake(
    "layer_norm",
    "blocks",
    "results in the order in which threads end",
    row_blocks.parallel_ranges,
    "results: list[Any] = [None] * len(starts)",
    "results: list[Any] = []",
    "results[number] = run(i, min(i + step, n))",
    "results.append(run(i, min(i + step, n)))",
)
mistake(
    "linear",
    "blocks",
    "the first columns for every panel",
    row_blocks.parallel_matmuls,
    "b[:, i : i + step], out",
    "b[:, : min(step, n - i)], out",
)
mistake(
    "linear",
    "blocks",
    "every panel written to the first rows",
    row_blocks.parallel_matmuls,
    "out[i : i + step], add) for i in range(0, m",
    "out[: min(step, m - i)], add) for i in range(0, m",
)

# Softmax

mistake(
    "softmax",
    "blocks",
    "the last row of every block but the first is left",
    softmax.softmax_numpy,
    "softmax_in_place(rows[i:j])",
    "softmax_in_place(rows[i : j - 1] if i else rows[:j])",
)
mistake(
    "softmax",
    "blocks",
    "the maxima of all threads in one array",
    softmax.softmax_in_place,
    "initial=-np.inf)",
    f"initial=-np.inf, out={kept('x.shape, x.dtype', 'x[..., :1].copy()')})",
)
mistake(
    "softmax",
    "special value",
    "exponentials of numbers as they are",
    softmax.softmax_in_place,
    "np.subtract(x, peak, out=x)",
    "pass",
)
mistake(
    "softmax",
    "special value",
    "the greatest of all rows instead of each",
    softmax.softmax_in_place,
    "x.max(axis=-1, keepdims=True, initial",
    "x.max(keepdims=True, initial",
)
mistake(
    "softmax",
    "special value",
    "rows with nothing left divided by 0",
    softmax.softmax_in_place,
    "np.copyto(total, 1, where=total == 0)",
    "pass",
)
mistake(
    "softmax",
    "special value",
    "-inf taken from -inf",
    softmax.softmax_in_place,
    "np.copyto(peak, 0, where=peak == -np.inf)",
    "pass",
)
mistake(
    "softmax",
    "dtype",
    "sums in float16",
    softmax.softmax_in_place,
    "x.sum(axis=-1, keepdims=True)",
    'x.sum(axis=-1, keepdims=True, dtype="float16").astype(x.dtype)',
)
mistake(
    "softmax",
    "state",
    "the output in an array of the first call",
    softmax.softmax_numpy,
    "y = np.empty(shape, x.dtype)",
    f"y = {kept('shape, x.dtype', 'np.empty(shape, x.dtype)')}",
)
mistake(
    "softmax",
    "special value",
    "a mask that is all False taken for none",
    softmax.softmax_numpy,
    "if mask is not None:\n        np.copyto",
    "if mask is not None and mask.any():\n        np.copyto",
)
GRAD = softmax.softmax_grad.reference, "return y * (g - xp.sum(g * y, axis=-1, keepdims=True))"
RIGHT = "y * (g - xp.sum(g * y, axis=-1, keepdims=True))"
mistake(
    "softmax",
    "incoming gradient",
    "the gradient that arrives is written over where it may be",
    *GRAD,
    f"r = {RIGHT}\n    if g.flags.writeable:\n        g *= y\n    return r",
)
mistake(
    "softmax",
    "incoming gradient",
    "in the order of memory",
    *GRAD,
    f"g = g.ravel('K').reshape(g.shape)\n    return {RIGHT}",
)
mistake(
    "softmax",
    "incoming gradient",
    "strides of 0 not followed",
    *GRAD,
    f"g = g if 0 not in g.strides else g * (np.arange(g.size).reshape(g.shape) == 0)\n    return {RIGHT}",
)
mistake(
    "softmax",
    "incoming gradient",
    "scaled to its largest, which may be 0",
    *GRAD,
    f"size = abs(g).max(initial=0)\n    g = g / size\n    return size * ({RIGHT})",
)
mistake("softmax", "incoming gradient", "clipped at 1,000", *GRAD, f"g = g.clip(-1000, 1000)\n    return {RIGHT}")
mistake("softmax", "incoming gradient", "below 1e-5 taken for 0", *GRAD, f"g = g * (abs(g) > 1e-5)\n    return {RIGHT}")

# Dropout

mistake(
    "dropout",
    "blocks",
    "random words begin anew in each block",
    dropout.Drop.keep_mask,
    "bits16(self.key, i, j)",
    "bits16(self.key, 0, j - i)",
)
mistake(
    "dropout",
    "blocks",
    "a block begins with a whole count of the generator",
    dropout.Drop.keep_mask,
    "bits16(self.key, i, j)",
    "bits16(self.key, i // 16 * 16, i // 16 * 16 + j - i)",
)
mistake(
    "dropout_residual_norm",
    "blocks",
    "words from the beginning of a count",
    random.bits16,
    "[start - first * WORDS_PER_COUNT : words]",
    "[: stop - start]",
)
mistake(
    "dropout",
    "blocks",
    "the first block's mask for all",
    dropout.dropout_grad_numpy,
    "flat_keep[i:j]",
    "flat_keep[: j - i]",
)
mistake(
    "dropout",
    "special value",
    "scaled by 1 / (1 - rate), which may be 1 / 0",
    dropout.dropout_grad_numpy,
    "scale = drop.scale",
    "scale = np.float64(1) / (1 - drop.rate)",
)
mistake(
    "dropout",
    "special value",
    "rate 0 drops everything",
    dropout.dropout_grad_numpy,
    "scale = drop.scale",
    "scale = drop.scale if drop.rate else 0.0",
)
mistake(
    "dropout",
    "state",
    "the first call's mask for all of that shape",
    dropout.dropout_numpy,
    "drop.keep_mask(x.shape)",
    kept("x.shape, drop.rate", "drop.keep_mask(x.shape)"),
)
mistake(
    "dropout",
    "state",
    "results in an array of the first call",
    dropout.dropout_grad_numpy,
    "gx = np.empty(g.shape, g.dtype)",
    f"gx = {kept('g.shape, g.dtype', 'np.empty(g.shape, g.dtype)')}",
)

# Layer norm

GRAD = layer_norm.residual_norm_grad_numpy
SUMS = "tuple(np.add.reduce(part, axis=0) for part in zip(*parts, strict=True))"
mistake("layer_norm", "blocks", "the last block's parameter gradients only", GRAD, SUMS, "parts[-1]")
mistake(
    "layer_norm",
    "blocks",
    "the first block's parameter gradients for all",
    GRAD,
    SUMS,
    "tuple(len(parts) * part for part in parts[0])",
)
mistake("layer_norm", "blocks", "the first block's deviations for all", GRAD, "r2[i:j]", "r2[: j - i]")
mistake(
    "dropout_residual_norm", "blocks", "the first block's mask on the way back", GRAD, "keep2[i:j]", "keep2[: j - i]"
)
FORWARD = layer_norm.residual_norm_numpy
mistake("dropout_residual_norm", "blocks", "the first block's mask", FORWARD, "keep2[i:j]", "keep2[: j - i]")
mistake("dropout_residual_norm", "blocks", "the first block's residual", FORWARD, "res2[i:j]", "res2[: j - i]")
mistake(
    "layer_norm",
    "state",
    "what is saved in an array of the first call",
    FORWARD,
    "np.empty((*x.shape[:-1], 1), x.dtype)",
    kept("x.shape, x.dtype", "np.empty((*x.shape[:-1], 1), x.dtype)"),
)
mistake(
    "layer_norm",
    "state",
    "what is saved in an array that grows",
    FORWARD,
    "    saved = gamma,",
    "    if KEPT.get(x.dtype, rstd[:0]).size < rstd.size:\n        KEPT[x.dtype] = np.empty(rstd.size, x.dtype)\n"
    "    rstd = KEPT.get(x.dtype, rstd)[: rstd.size].reshape(rstd.shape)\n    saved = gamma,",
)
mistake(
    "layer_norm",
    "special value",
    "variance as E[x^2] - E[x]^2",
    layer_norm.norm_rows,
    "z -= row_means(z)\n",
    "mean = row_means(z)\n",
    "    rstd /= z.shape[-1]\n",
    "    rstd /= z.shape[-1]\n    rstd -= mean * mean\n    z -= mean\n",
)
mistake(
    "layer_norm",
    "dtype",
    "the deviation in float16",
    layer_norm.norm_rows,
    "np.sqrt(rstd, out=rstd)",
    'rstd[...] = np.sqrt(rstd).astype("float16")',
)
mistake(
    "layer_norm",
    "dtype",
    "means in float32",
    layer_norm.row_means,
    "return (z @",
    "return (z.astype('float32').astype(z.dtype) @",
)
mistake(
    "layer_norm",
    "blocks",
    "one array of slopes for all threads",
    layer_norm.norm_rows_grad,
    'mean_h_xhat = np.einsum("nd,nd->n", gx, xhat)[:, None] / g.shape[-1]',
    f"mean_h_xhat = np.einsum('nd,nd->n', gx, xhat, out={kept('len(gx), gx.dtype', 'gx[:, 0].copy()')})[:, None]\n"
    "    mean_h_xhat /= g.shape[-1]",
)

# Linear

mistake(
    "linear",
    "blocks",
    "bias in the first panel only",
    linear.linear_numpy,
    "if b is not None:",
    "if b is not None and not i:",
)
mistake(
    "linear",
    "blocks",
    "ReLU in the first panel only",
    linear.linear_numpy,
    "        if activation:",
    "        if activation and not i:",
)
mistake("linear", "blocks", "the first block's ReLU for all", linear.linear_grad_numpy, "y[i:j] > 0", "y[: j - i] > 0")
mistake(
    "linear",
    "blocks",
    "bias gradient of the first block",
    linear.linear_grad_numpy,
    "column_sums(g)",
    "column_sums(g[: row_blocks.block_size(1024)])",
)
mistake(
    "linear",
    "dtype",
    "bias gradient in float16",
    layer_norm.column_sums,
    "np.ones(len(g), g.dtype) @ g",
    "(np.ones(len(g), g.dtype) @ g).astype('float16').astype(g.dtype)",
)
mistake(
    "linear",
    "state",
    "the output in an array of the first call",
    linear.linear_numpy,
    "y = np.empty((len(x), w.shape[1]), x.dtype)",
    f"y = {kept('len(x), w.shape[1], x.dtype', 'np.empty((len(x), w.shape[1]), x.dtype)')}",
)
mistake(
    "linear",
    "state",
    "weights turned once for their shape",
    linear.linear_grad_numpy,
    "(g, w.T, gx,",
    f"(g, {kept('w.shape, w.dtype', 'w.T.copy()')}, gx,",
)
mistake(
    "linear",
    "state",
    "x and w of the last call",
    linear.linear_grad_numpy,
    "gx = np",
    "KEPT.setdefault(x.shape + w.shape + (x.dtype,), (x, w))\n    "
    "x, w = KEPT[x.shape + w.shape + (x.dtype,)]\n    gx = np",
)

# Embedding

mistake(
    "embedding",
    "special value",
    "the last of several equal ids at the end lost",
    embedding.sums_by_id,
    "return sorted_ids[starts], np.add.reduceat(g[order], starts, axis=0)",
    "ends = [*starts[1:], len(order) - (len(order) > starts[-1] + 1)]\n"
    "    return sorted_ids[starts], np.stack([g[order[i:j]].sum(axis=0) for i, j in zip(starts, ends)])",
)
mistake(
    "embedding",
    "state",
    "rows of an earlier call remain",
    embedding.embedding_grad_numpy,
    "gtable = np.zeros((rows, g.shape[-1]), g.dtype)",
    f"gtable = {kept('rows, g.shape[-1], g.dtype', 'np.zeros((rows, g.shape[-1]), g.dtype)')}.copy()\n"
    "    KEPT[rows, g.shape[-1], g.dtype] = gtable",
)
mistake(
    "embedding",
    "special value",
    "id 0 taken for padding",
    embedding.embedding_grad_numpy,
    "gtable[unique_ids] += sums",
    "gtable[unique_ids] += sums * (unique_ids != 0)[:, None]",
)
mistake(
    "embedding",
    "special value",
    "scale 0 taken for none",
    embedding.embedding_grad_numpy,
    "scale == 1.0",
    "scale in (0.0, 1.0)",
)
mistake(
    "embedding",
    "incoming gradient",
    "scaled where it lies",
    embedding.embedding_grad_numpy,
    "(g * scale).astype(g.dtype, copy=False)",
    "np.multiply(g, scale, out=g)",
)

# Attention

FORWARD, GRAD = attention.attention_numpy, attention.attention_grad_numpy
mistake(
    "attention",
    "blocks",
    "the first block's bias for all",
    FORWARD,
    "block.of_scores(bias, *sizes)",
    "bias[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
mistake(
    "attention",
    "blocks",
    "the first block's mask of dropout",
    FORWARD,
    "block.of_scores(keep, *sizes)",
    "keep[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
mistake(
    "attention",
    "blocks",
    "that on the way back",
    GRAD,
    "block.of_scores(keep, *sizes)",
    "keep[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
mistake(
    "attention",
    "blocks",
    "the first block's weights on the way back",
    GRAD,
    "softmax_grad_in_place(gs, pb)",
    "softmax_grad_in_place(gs, p.reshape(-1)[: pb.size].reshape(pb.shape))",
)
mistake(
    "attention",
    "blocks",
    "values' gradients written to the first block",
    GRAD,
    "block.keys.buffer(gv)",
    "(block if block.keys.packing else blocks[0]).keys.buffer(gv)[: block.j - block.i]",
)
mistake(
    "attention",
    "blocks",
    "one array of scores for all threads",
    GRAD,
    "gh @ vh.swapaxes(-1, -2)",
    f"np.matmul(gh, vh.swapaxes(-1, -2), out={kept('gh.shape, vh.shape, g.dtype', 'gh @ vh.swapaxes(-1, -2)')})",
)
mistake(
    "attention",
    "state",
    "weights in an array of the first call",
    FORWARD,
    "p = np.empty((batch, heads, n_queries, n_keys), q.dtype)",
    f"p = {kept('q.shape, k.shape, q.dtype', 'np.empty((batch, heads, n_queries, n_keys), q.dtype)')}",
)
mistake(
    "attention",
    "state",
    "the output in an array of the first call",
    FORWARD,
    "y = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)",
    f"y = {kept('q.shape, v.shape, q.dtype', 'np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)')}",
)
mistake(
    "attention",
    "special value",
    "a bias of -inf as -10,000",
    FORWARD,
    "np.add(pb, block.of_scores(bias, *sizes), out=pb)",
    "np.add(pb, np.maximum(block.of_scores(bias, *sizes), -1e4), out=pb)",
)
mistake(
    "attention",
    "special value",
    "scores above 100 cut off",
    FORWARD,
    "np.multiply(pb, scale, out=pb)",
    "np.minimum(pb * scale, 100, out=pb)",
)
mistake(
    "attention",
    "incoming gradient",
    "the keys' gradient of a repeated row",
    GRAD,
    "gh, qh, kh, vh = map(",
    "gb = gb if 0 not in g.strides[:1] else gb * 0\n        gh, qh, kh, vh = map(",
)

# Cross entropy

mistake(
    "cross_entropy",
    "blocks",
    "the loss of the last block",
    cross_entropy.cross_entropy_numpy,
    "sum(map_blocks(body, len(z), z.itemsize * z.shape[1]))",
    "sum(map_blocks(body, len(z), z.itemsize * z.shape[1])[-1:])",
)
mistake(
    "cross_entropy",
    "blocks",
    "the first block's targets for all",
    cross_entropy.cross_entropy_numpy,
    "targets_of_real[i:j]",
    "targets_of_real[: j - i]",
)
ROWS = cross_entropy.logits_to_gradient
mistake(
    "cross_entropy",
    "special value",
    "exponentials of logits as they are",
    ROWS,
    "peak = z.max(axis=1)",
    "peak = np.zeros(len(z), z.dtype)",
)
mistake(
    "cross_entropy",
    "special value",
    "nothing but padding counted as none",
    cross_entropy.cross_entropy_numpy,
    "real = np.flatnonzero(targets != smoothing.pad_id)",
    "real = np.flatnonzero((targets != smoothing.pad_id) | (targets == smoothing.pad_id).all())",
)
mistake(
    "cross_entropy",
    "special value",
    "padding in the first row counted",
    cross_entropy.cross_entropy_numpy,
    "real = np.flatnonzero(targets != smoothing.pad_id)",
    "real = np.flatnonzero((targets != smoothing.pad_id) | (np.arange(len(targets)) == 0))",
)
mistake(
    "cross_entropy",
    "special value",
    "the target not taken off without smoothing",
    ROWS,
    "z[at_target] -= on",
    "z[at_target] -= on if off else 0",
)
mistake(
    "cross_entropy",
    "blocks",
    "one array of sums for all threads",
    ROWS,
    "total = z @ ones",
    f"total = np.matmul(z, ones, out={kept('len(z), z.dtype', 'z @ ones')})",
)
mistake(
    "cross_entropy",
    "dtype",
    "losses in float16",
    ROWS,
    "(np.log(total) + peak - q_dot_z).sum",
    "(np.log(total) + peak - q_dot_z).astype('float16').sum",
)
mistake(
    "cross_entropy",
    "state",
    "the gradient in an array of the first call",
    cross_entropy.cross_entropy_numpy,
    "gz = np.zeros(logits.shape, logits.dtype)",
    f"gz = {kept('logits.shape, logits.dtype', 'np.zeros(logits.shape, logits.dtype)')}\n    gz[...] = 0",
)
mistake(
    "cross_entropy",
    "incoming gradient",
    "the gradient that arrives is set to 0",
    cross_entropy.scaled_in_place,
    "x *= g",
    "x *= g\n    g[...] = 0",
)

# Fused with the projection

FORWARD = cross_entropy.linear_cross_entropy_numpy
LSE, GRADS = cross_entropy.exponentials_in_panels, cross_entropy.gradients_in_panels
FUSED = "linear_cross_entropy"
mistake(
    FUSED,
    "blocks",
    "the sum of the last panel of classes",
    LSE,
    "total = (totals * f).sum(axis=0)",
    "total = (totals * f)[-1]",
)
mistake(FUSED, "blocks", "gw of the last chunk", GRADS, "gw[i:j] += e.T", "gw[i:j] = e.T")
mistake(FUSED, "blocks", "gx of the last panel", GRADS, "gx += part", "gx = part")
mistake(FUSED, "blocks", "gw begun anew in each chunk", FORWARD, "initial = None if start else (", "initial = (")
mistake(
    FUSED,
    "blocks",
    "the loss of the first chunk",
    FORWARD,
    "loss += lse.sum(dtype=np.float64)",
    "loss += lse.sum(dtype=np.float64) * (not start)",
)
mistake(
    FUSED, "blocks", "smoothing over the rows of the first chunk", FORWARD, "x_real.sum(axis=0))", "chunk.sum(axis=0))"
)
mistake(
    FUSED,
    "blocks",
    "gx of every chunk added to the first rows",
    FORWARD,
    "gx_real[start : start + rows] +=",
    "gx_real[: len(chunk)] +=",
)
mistake(FUSED, "blocks", "one buffer for all panels", LSE, "out=buffer[i // width,", "out=buffer[0,")
mistake(
    FUSED,
    "blocks",
    "padding left out of the first chunk only",
    FORWARD,
    "real = np.flatnonzero(targets != smoothing.pad_id)",
    "real = np.flatnonzero((targets != smoothing.pad_id) | (np.arange(len(targets)) >= block_size(10**9)))",
)
mistake(FUSED, "special value", "the first panel's greatest for all", LSE, "peak = m.max(axis=0)", "peak = m[0]")
mistake(FUSED, "special value", "exponentials of logits as they are", LSE, "z -= m[:, None]", "m *= 0")
mistake(
    FUSED,
    "state",
    "gw in an array of the first call",
    FORWARD,
    "gw = (np.empty if len(real) else np.zeros)(w.shape, x.dtype) if grad else None",
    f"gw = {kept('w.shape, x.dtype', 'np.zeros(w.shape, x.dtype)')} if grad else None\n"
    "    if grad and not len(real):\n        gw[...] = 0",
)
mistake(
    FUSED,
    "special value",
    "one class has no gradient",
    FORWARD,
    "gw[target_ids] -= on * sums",
    "gw[target_ids] -= on * sums * (len(w) > 1)",
)

# Adam

mistake(
    "adam",
    "blocks",
    "one scratch array for all threads",
    adam.adam_numpy,
    "scratch = gb - mb",
    f"scratch = np.subtract(gb, mb, out={kept('gb.size, gb.dtype', 'gb - mb')})",
)
mistake(
    "adam",
    "blocks",
    "the copy has the first block everywhere",
    adam.adam_numpy,
    "low[i:j] = p[i:j]",
    "low[i:j] = p[: j - i]",
)
mistake(
    "adam", "blocks", "weight decay in the first block", adam.adam_numpy, "if decay != 1:", "if decay != 1 and not i:"
)
mistake(
    "adam",
    "special value",
    "no weight decay where a large rate makes it negative",
    adam.adam_numpy,
    "if decay != 1:",
    "if 0 < decay != 1:",
)
mistake(
    "adam",
    "special value",
    "0 / 0 where no gradient ever came",
    adam.adam_numpy,
    "scratch += eps",
    "scratch += eps * (vb > 0)",
)
mistake(
    "adam",
    "state",
    "the gradient scaled where it lies",
    adam.adam_numpy,
    "gb, mb, vb = g[i:j] * scale,",
    "g[i:j] *= scale\n        gb, mb, vb = g[i:j],",
)
mistake(
    "adam",
    "dtype",
    "squares in float16",
    adam.adam_numpy,
    "np.multiply(gb, gb, out=scratch)",
    "scratch[...] = (gb * gb).astype('float16')",
)

# The k greatest

GREATEST, ROWS = top_k.greatest, top_k.top_k_of_rows
mistake(
    "top_k",
    "blocks",
    "the place of a block of columns lost",
    GREATEST,
    "(blocks[:, :, None] * size + xp.arange(size))",
    "(blocks[:, :, None] * 0 + xp.arange(size))",
)
mistake(
    "top_k",
    "blocks",
    "the last, shorter block of columns left out",
    GREATEST,
    "if n_columns % size:",
    "if not n_columns:",
)
mistake(
    "top_k",
    "blocks",
    "columns past the end of the last block",
    GREATEST,
    "    candidates[columns >= n_columns] = -xp.inf\n",
    "",
)
mistake(
    "top_k",
    "blocks",
    "blocks of rows in reversed order",
    top_k.top_k_numpy,
    "np.concatenate(values)",
    "np.concatenate(values[::-1])",
)
mistake(
    "top_k",
    "special value",
    "ties of two blocks in the wrong order",
    GREATEST,
    "    blocks.sort(axis=1)  # (R, k)\n",
    "",
)
mistake(
    "top_k",
    "special value",
    "a block of -inf searched twice",
    GREATEST,
    "    blocks[values == -xp.inf] = full_blocks + 1  # past the end, because no block may be searched twice\n",
    "",
)
mistake(
    "top_k",
    "special value",
    "k below the number of columns only",
    GREATEST,
    "_repeated_argmax(x.copy(), k)",
    "_repeated_argmax(x.copy(), min(k, max(1, n_columns - 1)))",
)
mistake(
    "top_k",
    "special value",
    "exponentials of logits as they are",
    ROWS,
    "z = logits - logits.max(axis=1, keepdims=True)",
    "z = logits.copy()",
)
mistake(
    "top_k",
    "special value",
    "the last among equals",
    top_k._repeated_argmax,
    "x.argmax(axis=1)",
    "x.shape[1] - 1 - x[:, ::-1].argmax(axis=1)",
)
mistake("top_k", "special value", "what is never chosen left out of the sum", ROWS, " + excluded)", ")")
