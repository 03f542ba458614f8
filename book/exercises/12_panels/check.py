"""Remember the largest number so far and the sum of exp(x - largest). When the largest grows, the sum shrinks."""

import tracemalloc

import numpy as np

from book.exercise import Stage, draw, text


def stream(panels):
    """One buffer for all."""
    for panel in panels:
        buffer = panel.copy()
        yield buffer
        buffer[...] = 333.0


def right(*panels):
    x = np.concatenate(panels, axis=1)
    peak = x.max(axis=1)
    rows = zip(x, peak, strict=True)
    return np.array([-np.inf if p == -np.inf else p + np.log(np.exp(row - p).sum()) for row, p in rows])


def matrix(*rows):
    return np.array(rows, float)


def edges(seed):
    yield (matrix([1.0]),)
    yield matrix([1.0]), matrix([2.0])
    yield matrix([1.0, 0.0]), matrix([0.0])
    yield matrix([2.0]), matrix([1.0])
    yield matrix([1000.0]), matrix([999.0])
    yield matrix([0.0]), matrix([1000.0])
    yield matrix([-1000.0]), matrix([-999.0])
    yield (matrix([-100000.0]),)
    yield matrix([-np.inf]), matrix([1.0])
    yield matrix([1.0]), matrix([-np.inf])
    yield (matrix([-np.inf]),)
    yield matrix([-1.0], [5.0]), matrix([5.0], [-1.0])
    yield (matrix([1000.0], [0.0]),)


def drawn(seed):
    for rows, widths in ((1, (1, 1, 1)), (1, (2, 1)), (2, (2, 2)), (2, (3, 2, 4)), (3, (1, 5))):
        yield tuple(30 * draw(seed + i, rows, width) for i, width in enumerate(widths))


def memory(seed):
    """Many panels: what remembers them all is found by its size."""
    yield 60, 400


def with_memory(module, number, width):
    """The sum over so many panels of 1 row, and whether half of them would fit what was kept."""
    tracemalloc.start()
    try:
        found = module.log_sum_exp(stream(panel(i, width) for i in range(number)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return {"sum": found, "memory": "as for all panels" if peak > number * width * 4 else "as for a few panels"}


def panel(i, width):
    return np.sin(np.arange(width) + i)[None]


def right_with_memory(number, width):
    x = np.concatenate([panel(i, width) for i in range(number)], axis=1)
    return {"sum": np.log(np.exp(x).sum(axis=1)), "memory": "as for a few panels"}


STAGES = [
    Stage("the sum is wrong", cases, lambda m, *panels: m.log_sum_exp(stream(panels)), right,
          lambda *panels: f"log_sum_exp(iter({text(list(panels))}))") for cases in (edges, drawn)
] + [
    Stage("the sum is right, but it remembers the panels", memory, with_memory, right_with_memory,
          lambda n, width: f"log_sum_exp(np.sin(np.arange({width}) + i)[None] for i in range({n}))"),
]  # fmt: skip
AFTER = """\
The real one (npx/kernels/cross_entropy.py, `panels_of_exponentials`) does this for all words of a vocabulary, panels
over threads, and keeps the exponentials for the way back: one factor a row and panel turns them into the softmax."""
