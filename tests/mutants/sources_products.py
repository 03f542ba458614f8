"""Bugs in the source of the kernels of linear layers, embeddings and attention."""

from tests.mutants.sources import attention, cached, embedding, layer_norm, linear, source_mutant

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
    "column_sums(g[: row_blocks.overridable_size(1024)])",
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
    "gtable = np.zeros((n_rows, g.shape[-1]), g.dtype)",
    f"gtable = {cached('n_rows, g.shape[-1], g.dtype', 'np.zeros((n_rows, g.shape[-1]), g.dtype)')}.copy()\n"
    "    CACHE[n_rows, g.shape[-1], g.dtype] = gtable",
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
    "block.part_of_scores(bias, *sizes)",
    "bias[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
source_mutant(
    "attention",
    "blocks",
    "first block's dropout mask used for all",
    FORWARD,
    "block.part_of_scores(keep_mask, *sizes)",
    "keep_mask[: block.j - block.i, :, : sizes[0], : sizes[1]]",
)
source_mutant(
    "attention",
    "blocks",
    "first block's dropout mask used in the backward pass",
    GRAD,
    "block.part_of_scores(keep_mask, *sizes)",
    "keep_mask[: block.j - block.i, :, : sizes[0], : sizes[1]]",
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
    "p = np.empty((batch, n_heads, n_queries, n_keys), q.dtype)",
    f"p = {cached('q.shape, k.shape, q.dtype', 'np.empty((batch, n_heads, n_queries, n_keys), q.dtype)')}",
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
    "np.add(pb, block.part_of_scores(bias, *sizes), out=pb)",
    "np.add(pb, np.maximum(block.part_of_scores(bias, *sizes), -1e4), out=pb)",
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
