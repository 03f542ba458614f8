"""Bugs in the source of the kernels of the losses, Adam and top-k."""

from tests.mutants.sources import adam, cached, cross_entropy, source_mutant, top_k

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
    "targets[i:j]",
    "targets[: j - i]",
)
ROWS = cross_entropy.replace_logits_with_gradient
source_mutant(
    "cross_entropy",
    "special value",
    "maximum not subtracted (fast version)",
    ROWS,
    "z -= z.max(axis=1)[:, None]",
    "pass",
)
source_mutant(
    "cross_entropy",
    "special value",
    "padding alone not treated as no tokens",
    cross_entropy.cross_entropy_numpy,
    "token_rows = np.flatnonzero(targets != smoothing.pad_id)",
    "token_rows = np.flatnonzero((targets != smoothing.pad_id) | (targets == smoothing.pad_id).all())",
)
source_mutant(
    "cross_entropy",
    "special value",
    "padding in the first row included",
    cross_entropy.cross_entropy_numpy,
    "token_rows = np.flatnonzero(targets != smoothing.pad_id)",
    "token_rows = np.flatnonzero((targets != smoothing.pad_id) | (np.arange(len(targets)) == 0))",
)
source_mutant(
    "cross_entropy",
    "special value",
    "target not subtracted without smoothing",
    ROWS,
    "z[at_target] -= on_value",
    "z[at_target] -= on_value if off_value else 0",
)
source_mutant(
    "cross_entropy",
    "blocks",
    "sum array shared by all threads",
    ROWS,
    "total = row_sums(z)",
    f"total = np.add(row_sums(z), 0, out={cached('len(z), z.dtype', 'row_sums(z)')})",
)
source_mutant(
    "cross_entropy",
    "dtype",
    "losses in float16",
    ROWS,
    "(np.log(total) - q_dot_z).sum",
    "(np.log(total) - q_dot_z).astype('float16').sum",
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
    cross_entropy.scale_in_place,
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
    FUSED, "blocks", "smoothing in the first chunk only", FORWARD, "x_tokens.sum(axis=0))", "chunk.sum(axis=0))"
)
source_mutant(
    FUSED,
    "blocks",
    "gx of every chunk added to the first rows",
    FORWARD,
    "gx_tokens[start : start + chunk_rows] +=",
    "gx_tokens[: len(chunk)] +=",
)
source_mutant(FUSED, "blocks", "buffer shared by all panels", LSE, "out=buffer[i // width,", "out=buffer[0,")
source_mutant(
    FUSED,
    "blocks",
    "padding excluded in the first chunk only",
    FORWARD,
    "token_rows = np.flatnonzero(targets != smoothing.pad_id)",
    "token_rows = np.flatnonzero((targets != smoothing.pad_id) | (np.arange(len(targets)) >= overridable_size(10**9)))",
)
source_mutant(FUSED, "special value", "first panel's maximum used for all", LSE, "peak = m.max(axis=0)", "peak = m[0]")
source_mutant(FUSED, "special value", "maximum not subtracted (fast version)", LSE, "z -= m[:, None]", "m *= 0")
source_mutant(
    FUSED,
    "state",
    "gw stored in the array of the first call",
    FORWARD,
    "gw = (np.empty if len(x_tokens) else np.zeros)(w.shape, x.dtype) if grad else None",
    f"gw = {cached('w.shape, x.dtype', 'np.zeros(w.shape, x.dtype)')} if grad else None\n"
    "    if grad and not len(x_tokens):\n        gw[...] = 0",
)
source_mutant(
    FUSED,
    "special value",
    "gradient missing for a single class",
    FORWARD,
    "gw[target_ids] -= on_value * sums",
    "gw[target_ids] -= on_value * sums * (len(w) > 1)",
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
    "p_compute[i:j] = p[i:j]",
    "p_compute[i:j] = p[: j - i]",
)
source_mutant(
    "adam",
    "blocks",
    "weight decay in the first block only",
    adam.adam_numpy,
    "if decay_factor != 1:",
    "if decay_factor != 1 and not i:",
)
source_mutant(
    "adam",
    "special value",
    "weight decay factor clamped to 0",
    adam.adam_numpy,
    "if decay_factor != 1:",
    "if 0 < decay_factor != 1:",
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
    "gb = g[i:j] * grad_scale",
    "g[i:j] *= grad_scale\n        gb = g[i:j]",
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

ROWS, MAXIMA = top_k.top_k_of_rows, top_k.first_maxima
source_mutant(
    "log_softmax_top_k",
    "blocks",
    "groups with equal maxima chosen in any order",
    top_k.log_softmax_top_k_numpy,
    "if (ties := largest_maxima[:, k - 1] == largest_maxima[:, k]).any():",
    "if (ties := largest_maxima[:, k - 1] > largest_maxima[:, k] + 1).any():",
)
source_mutant(
    "log_softmax_top_k",
    "blocks",
    "last columns, which belong to no group, never found",
    top_k.log_softmax_top_k_numpy,
    "np.concatenate([members, ungrouped], axis=1)",
    "members",
)
source_mutant(
    "log_softmax_top_k", "formula", "last column never found", MAXIMA, "z.argmax(axis=1)", "z[:, :-1].argmax(axis=1)"
)
source_mutant(
    "log_softmax_top_k", "formula", "largest value found k times", MAXIMA, "        z[rows, column] = -xp.inf\n", ""
)
source_mutant("log_softmax_top_k", "formula", "probabilities not normalized", ROWS, "    values -= log_total\n", "")
source_mutant(
    "log_softmax_top_k",
    "special value",
    "values that are not chosen excluded from the maximum",
    ROWS,
    "z -= z.max(axis=1, keepdims=True)",
    "z -= xp.delete(z, list(excluded), axis=1).max(axis=1, keepdims=True)",
)
source_mutant(
    "log_softmax_top_k",
    "special value",
    "fails for k equal to the number of columns",
    ROWS,
    "min(k, z.shape[1])",
    "min(k, max(1, z.shape[1] - 1))",
)
source_mutant(
    "log_softmax_top_k",
    "special value",
    "maximum not subtracted (fast version)",
    ROWS,
    "    z -= z.max(axis=1, keepdims=True)\n",
    "",
)
source_mutant(
    "log_softmax_top_k",
    "special value",
    "last of equal values chosen",
    MAXIMA,
    "z.argmax(axis=1)",
    "z.shape[1] - 1 - z[:, ::-1].argmax(axis=1)",
)
source_mutant(
    "log_softmax_top_k",
    "special value",
    "values that are not chosen excluded from the sum",
    ROWS,
    "xp.exp(z).sum(axis=1, keepdims=True)",
    "(xp.exp(z).sum(axis=1, keepdims=True) - xp.exp(z[:, list(excluded)]).sum(axis=1, keepdims=True))",
)
