"""Write down where each number goes: x[b, t, h * d + i] becomes y[b, h, t, i]."""

import numpy as np

from autograd import neural
from book.exercise import Stage, draw, text


def inputs_of_split(seed):
    yield np.array([[[1.0, 2.0], [3.0, 4.0]]]), 2
    yield np.array([[[1.0, 2.0, 3.0, 4.0]]]), 2
    for b, t, h, d in ((1, 2, 2, 2), (2, 3, 2, 1), (2, 2, 3, 2), (1, 3, 1, 2)):
        yield draw(seed, b, t, h * d), h


def inputs_of_merge(seed):
    for x, heads in inputs_of_split(seed):
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


def first_misplaced(yours, expected, *_):
    """Say which number is in the wrong place."""
    yours = np.asarray(yours)
    at = tuple(map(int, np.argwhere(yours != expected)[0]))
    return f"At {list(at)}, {expected[at]:g} is expected; yours has {yours[at]:g} there."


def first_wrong_entry(yours, expected, queries, keys):
    wrong = np.argwhere(np.asarray(yours) != expected)
    if all(key == keys - queries + query for query, key in wrong):
        return "A query may look at its own position, but in yours, some may not. Does a range end too early?"
    query, key = map(int, wrong[0])
    may = "may" if expected[query, key] else "may not"
    return f"Query {query} is at position {keys - queries + query}: it {may} look at key {key}."


STAGES = [
    Stage("the heads are split in the wrong way", inputs_of_split, lambda m, x, h: m.split(x, h), right_split,
          lambda x, h: f"split({text(x)}, {h})", explain=first_misplaced),
    Stage("split is right, but merge does not undo it", inputs_of_merge, lambda m, y: m.merge(y), right_merge,
          lambda y: f"merge({text(y)})", explain=first_misplaced),
    Stage("the mask is wrong", sizes, lambda m, t, s: m.causal(t, s), right_causal, lambda t, s: f"causal({t}, {s})",
          explain=first_wrong_entry),
]  # fmt: skip
NAMES = {
    "positions": "the position of each query",
    "b": "B",
    "t": "T",
    "d": "the size of the last axis",
    "h": "H",
    "swapped": "y with two axes exchanged",
}
AFTER = """\
The real ones move no data: `split_heads` (autograd/neural.py) returns views, and the kernel reads each head where it
lies. The mask, your last function, is built only if an implementation of the kernel needs it as an array
(npx/kernels/attention_spec.py)."""
