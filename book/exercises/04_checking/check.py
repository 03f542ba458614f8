"""For each bug, ask: for which x and g is the result right by chance? Then choose another input."""

import numpy as np

from book.exercise import Rejected, Stage


def forward(x):
    return x.max(axis=1) - x.mean(axis=1)


def max_gradient(x):
    top = x == x.max(axis=1, keepdims=True)
    return top / top.sum(axis=1, keepdims=True)


VJPS = {
    "the correct gradient": lambda x, g: g[:, None] * (max_gradient(x) - 1 / x.shape[1]),
    "the first bug": lambda x, g: g[:, None] * ((x == x.max(axis=1, keepdims=True)) - 1 / x.shape[1]),
    "the second bug": lambda x, g: g[:, None] * (max_gradient(x) - 1 / x.shape[0]),
    "the third bug": lambda x, g: max_gradient(x) - 1 / x.shape[1],
}


def passes(vjp, x, g):
    """Return whether a gradient agrees with numerical slopes, moving all equal numbers of a row together."""
    gradient, h = vjp(x, g), 1e-6 * max(10.0, abs(x).max())
    for row in range(len(x)):
        for value in np.unique(x[row]):
            along = np.zeros(x.shape)
            along[row] = x[row] == value
            numeric = (g * (forward(x + h * along) - forward(x - h * along))).sum() / (2 * h)
            if not abs((gradient * along).sum() - numeric) <= 1e-6 * max(1.0, abs(g).max()):
                return False
    return True


def yours(module, _):
    answer = module.inputs()
    pair = (tuple, list)
    if not isinstance(answer, pair) or not answer or not all(isinstance(x, pair) and len(x) == 2 for x in answer):
        raise Rejected("expected inputs() to return a list of pairs (x, g)")
    pairs = [(np.asarray(x, float), np.asarray(g, float)) for x, g in answer]
    for x, g in pairs:
        if x.ndim != 2 or not x.size or g.shape != (len(x),) or x.size > 1000:
            raise Rejected(f"expected x (rows, columns) and g (rows,), at most 1,000 numbers; got {x.shape}, {g.shape}")
    passed = {name: all(passes(vjp, x, g) for x, g in pairs) for name, vjp in VJPS.items()}
    condition = " with g = 1" if all((g == 1).all() for _, g in pairs) else ""
    ties = [g[(x == x.max(axis=1, keepdims=True)).sum(axis=1) > 1] for x, g in pairs]
    if any(g.size for g in ties) and not any(g.any() for g in ties):
        condition = " with g = 0 at each tie"
    message = {True: "{} passes" + condition, False: "{} does not pass"}
    return [message[ok].format(name) for name, ok in passed.items() if ok != (name == "the correct gradient")]


STAGES = [
    Stage("a bug passes on these inputs, or the correct gradient fails", lambda seed: [(0,)], yours,
          lambda _: [], lambda _: "inputs()"),
]  # fmt: skip
AFTER = """\
The gradient checker does not ask for such inputs. From a single example it derives ties, zeros, squares, wide rows,
and a g that is never 1 (autograd/testing/variants.py)."""
