"""Ask of each mistake: on which x, and which g, does it give the right number by chance? Then leave that behind."""

import numpy as np

from book.exercise import Rejected, Stage


def forward(x):
    return x.max(axis=1) - x.mean(axis=1)


def share(x):
    top = x == x.max(axis=1, keepdims=True)
    return top / top.sum(axis=1, keepdims=True)


VJPS = {
    "the right one": lambda x, g: g[:, None] * (share(x) - 1 / x.shape[1]),
    "the first mistake": lambda x, g: g[:, None] * ((x == x.max(axis=1, keepdims=True)) - 1 / x.shape[1]),
    "the second mistake": lambda x, g: g[:, None] * (share(x) - 1 / x.shape[0]),
    "the third mistake": lambda x, g: share(x) - 1 / x.shape[1],
}


def passes(vjp, x, g):
    """Whether a gradient agrees with slopes: along each number of a row, with all that are equal to it."""
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
    given = module.inputs()
    pair = (tuple, list)
    if not isinstance(given, pair) or not given or not all(isinstance(x, pair) and len(x) == 2 for x in given):
        raise Rejected("expected inputs() to return a list of pairs (x, g)")
    pairs = [(np.asarray(x, float), np.asarray(g, float)) for x, g in given]
    for x, g in pairs:
        if x.ndim != 2 or not x.size or g.shape != (len(x),) or x.size > 1000:
            raise Rejected(f"expected x (rows, columns) and g (rows,), 1,000 numbers at most; got {x.shape}, {g.shape}")
    found = {name: all(passes(vjp, x, g) for x, g in pairs) for name, vjp in VJPS.items()}
    plain = " with g = 1" if all((g == 1).all() for _, g in pairs) else ""
    said = {True: "{} gets past" + plain, False: "{} does not pass"}
    return [said[passed].format(name) for name, passed in found.items() if passed != (name == "the right one")]


STAGES = [
    Stage("a mistake gets past these inputs, or the right gradient does not", lambda seed: [(0,)], yours,
          lambda _: [], lambda _: "inputs()"),
]  # fmt: skip
AFTER = """\
The kit does not ask you for such inputs: it derives them from one array of yours (autograd/testing/variants.py,
`VALUES`), ties, zeros, squares, wide rows, and a g that is never 1 (autograd/testing/gradcheck.py)."""
