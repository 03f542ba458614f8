"""There are three sub-layers: norm(x + f(x)). Only the first is causal; only the second reads the memory."""

from functools import cache

import numpy as np

import npx
from autograd import Tensor
from book.exercise import Rejected, Stage, draw, kind
from models import TransformerConfig
from models.architectures.layers import DecoderLayer

OUTPUTS = {"o": "the self-attention", "cross_o": "the cross-attention", "w2": "the feed-forward network"}


def weights(seed, d, f, active):
    """Return random weights; only the sub-layers whose output weights are in `active` add something."""
    names = ["q", "k", "v", "o", "cross_q", "cross_k", "cross_v", "cross_o"]
    w = {name: draw(seed + i, d, d) for i, name in enumerate(names)}
    w |= {"w1": draw(seed + 8, d, f), "b1": draw(seed + 9, f), "w2": draw(seed + 10, f, d), "b2": draw(seed + 11, d)}
    for i in (1, 2, 3):
        w |= {f"gamma{i}": 1 + 0.3 * draw(seed + 20 + i, d), f"beta{i}": 0.3 * draw(seed + 30 + i, d)}
    for name in OUTPUTS.keys() - active:
        w[name] = 0 * w[name]
    if "w2" not in active:
        w["b2"] = 0 * w["b2"]
    return w


@cache
def empty_layer(d, f, n_heads):
    c = TransformerConfig(vocab_size=8, d_model=d, d_ff=f, n_heads=n_heads, n_layers=1, dropout=0.0)
    with npx.keyed(0, 0):
        return DecoderLayer(c)


def model_layer(w, n_heads):
    """Return this project's decoder layer with these weights."""
    layer, merged = empty_layer(*w["w1"].shape, n_heads), np.concatenate
    values = {
        "attention.query_key_value.weight": merged([w["q"], w["k"], w["v"]], axis=1),
        "attention.output.weight": w["o"],
        "cross_attention.query.weight": w["cross_q"],
        "cross_attention.key_value.weight": merged([w["cross_k"], w["cross_v"]], axis=1),
        "cross_attention.output.weight": w["cross_o"],
        "feed_forward.inner.weight": w["w1"],
        "feed_forward.inner.bias": w["b1"],
        "feed_forward.outer.weight": w["w2"],
        "feed_forward.outer.bias": w["b2"],
    }
    for i, part in enumerate(("attention", "cross_attention", "feed_forward"), start=1):
        values |= {f"{part}_residual.norm.gamma": w[f"gamma{i}"], f"{part}_residual.norm.beta": w[f"beta{i}"]}
    for name, parameter in layer.named_parameters():
        parameter.data = values[name].copy()
    return layer


def run(module, x, memory, w, n_heads):
    """Return the learner's output and the leaves it was computed from."""
    leaves = {name: Tensor(a, requires_grad=True) for name, a in {"x": x, "memory": memory, **w}.items()}
    inputs = dict(leaves)
    y = module.decoder_block(inputs.pop("x"), inputs.pop("memory"), inputs, n_heads)
    if not isinstance(y, Tensor):
        raise Rejected(f"expected decoder_block to return a Tensor; got {kind(y)}")
    return y, leaves


def right_run(x, memory, w, n_heads):
    x, memory = Tensor(x, requires_grad=True), Tensor(memory, requires_grad=True)
    return model_layer(w, n_heads)(x, memory, npx.AttentionSpec()), {"x": x, "memory": memory}


def gradients(y, leaves):
    """Return the gradients of x and memory."""
    if y.node is None:
        raise Rejected("expected a Tensor with a graph; got one made from an array; try operations instead of .data")
    y.backward(np.sin(np.arange(1.0, y.size + 1)).reshape(y.shape))
    return [leaves[name].grad for name in ("x", "memory")]


def cases(active):
    shapes = [(1, 2, 3, 4, 2), (2, 3, 2, 6, 3)] if len(active) == 3 else [(1, 1, 1, 3, 1), (1, 2, 3, 4, 2)]

    def drawn(seed):
        for b, t, s, d, heads in shapes:
            yield draw(seed + 1, b, t, d), draw(seed + 2, b, s, d), weights(seed, d, 2 * d, active), heads

    return drawn


def call(x, memory, w, n_heads):
    return f"decoder_block(x {x.shape}, memory {memory.shape}, w, {n_heads}), with random weights"


def explain(yours, right, x, memory, w, n_heads):
    """Say where the error may be: in the sums and norms, in one sub-layer, or between sub-layers."""
    active = [name for key, name in OUTPUTS.items() if w[key].any()]
    if not active:
        return "Every sub-layer adds 0 here, so only the residual sums and the norms, with their weights, can be wrong."
    if len(active) == 1:
        return f"The output is right where every sub-layer adds 0. Look at what {active[0]} reads, computes and adds."
    return "Each sub-layer is right by itself, so look at what is passed from one to the next."


STAGES = [
    Stage(complaint, cases(active), lambda m, *a: run(m, *a)[0].data, lambda *a: right_run(*a)[0].data, call,
          close=1e-7, explain=explain)
    for complaint, active in [
        ("the output is wrong where every sub-layer adds 0", ()),
        *((f"the output is wrong where only {name} adds something", (key,)) for key, name in OUTPUTS.items()),
        ("the output is wrong", tuple(OUTPUTS)),
    ]
] + [
    Stage("the output is right, but not the gradients of x and memory", cases(tuple(OUTPUTS)),
          lambda m, *a: gradients(*run(m, *a)), lambda *a: gradients(*right_run(*a)), call, close=1e-6),
]  # fmt: skip
NAMES = {
    "x_0": "the block's input",
    "x_1": "the output of the first norm",
    "q_0": "q of the self-attention",
    "k_0": "k of the self-attention",
    "v_0": "v of the self-attention",
    "attended": "the output of attention",
    "attended_0": "that of the self-attention",
    "inner": "the output of the first linear map",
    "heads": "a reshape to heads",
    "inner_0": "the first linear map before its relu",
    "source": "what keys and values are computed from",
    "attend": "an attention with its projections",
}
AFTER = """\
The real one (models/architectures/layers.py, `DecoderLayer`) has the same three lines. Its projections to queries, keys
and values are one matmul, and dropout, sum and norm are one operation. You have now written each part of the model."""
