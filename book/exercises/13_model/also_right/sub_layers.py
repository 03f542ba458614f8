"""A list of the three sub-layers, each in the same residual connection."""

from autograd.neural import attention, layer_norm, linear
from npx import AttentionSpec


def decoder_block(x, memory, w, n_heads):
    """Go through the sub-layers in order."""

    def multi_head(queries, source, names, causal):
        shapes = [(*a.shape[:2], n_heads, a.shape[2] // n_heads) for a in (queries, source, source)]
        parts = [linear(a, w[name], None) for a, name in zip((queries, source, source), names[:3], strict=True)]
        heads = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        return linear(attention(*heads, AttentionSpec(causal=causal)).reshape(queries.shape), w[names[3]], None)

    sub_layers = [
        lambda y: multi_head(y, y, "qkvo", y.shape[1] > 1),
        lambda y: multi_head(y, memory, ["cross_q", "cross_k", "cross_v", "cross_o"], False),
        lambda y: linear(linear(y, w["w1"], w["b1"], "relu"), w["w2"], w["b2"]),
    ]
    for number, f in enumerate(sub_layers, start=1):
        x = layer_norm(x + f(x), w[f"gamma{number}"], w[f"beta{number}"])
    return x
