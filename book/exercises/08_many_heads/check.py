"""Write down the index of each number, x[b, t, h * d + i], and where it has to go: y[b, h, t, i]."""

import numpy as np

from autograd import neural
from book.exercise import Stage, draw, text


def merged(seed):
    yield np.array([[[1.0, 2.0], [3.0, 4.0]]]), 2
    yield np.array([[[1.0, 2.0, 3.0, 4.0]]]), 2
    for b, t, h, d in ((1, 2, 2, 2), (2, 3, 2, 1), (2, 2, 3, 2), (1, 3, 1, 2)):
        yield draw(seed, b, t, h * d), h


def apart(seed):
    for x, heads in merged(seed):
        yield (right_split(x, heads),)


def right_split(x, heads):
    (part,) = neural.split_heads(x, heads, x.shape[-1] // heads)
    return np.ascontiguousarray(part.swapaxes(1, 2))


def right_merge(y):
    return np.concatenate([y[:, head] for head in range(y.shape[1])], axis=-1)


def sizes(seed):
    return [(1, 1), (2, 2), (1, 2), (3, 3), (2, 3), (2, 5), (1, 4)]


def right_causal(queries, keys):
    return np.array([[key <= keys - queries + query for key in range(keys)] for query in range(queries)])


STAGES = [
    Stage("the heads are not split as they should be", merged, lambda m, x, h: m.split(x, h), right_split,
          lambda x, h: f"split({text(x)}, {h})"),
    Stage("split is right, merge is not its way back", apart, lambda m, y: m.merge(y), right_merge,
          lambda y: f"merge({text(y)})"),
    Stage("the mask is wrong", sizes, lambda m, t, s: m.causal(t, s), right_causal, lambda t, s: f"causal({t}, {s})"),
]  # fmt: skip
AFTER = """\
The real ones move no data: `split_heads` (autograd/neural.py) cuts views, the kernel reads heads where they lie, and
`additive` (npx/kernels/attention_spec.py) makes the mask, your last function, only when a version of the kernel asks
for it."""
