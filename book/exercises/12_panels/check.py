"""Remember the maximum so far and the sum of exp(x - maximum). Rescale the sum when the maximum grows."""

import tracemalloc

import numpy as np

from book.exercise import Stage, draw, text


def stream(panels):
    """Yield each panel in a buffer that is overwritten afterwards."""
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
    yield matrix([1000.0]), matrix([0.0])
    yield (matrix([0.0, 1000.0]),)
    yield matrix([-1000.0]), matrix([-999.0])
    yield (matrix([-1e300]),)
    yield matrix([-np.inf]), matrix([1.0])
    yield matrix([1.0]), matrix([-np.inf])
    yield (matrix([-np.inf]),)
    yield (matrix([1.0, -np.inf]),)
    yield matrix([-np.inf]), matrix([-1000.0])
    yield matrix([-np.inf], [2.0]), matrix([1.0], [3.0])
    yield matrix([2.0], [-np.inf]), matrix([3.0], [1.0])
    yield matrix([-1.0], [5.0]), matrix([5.0], [-1.0])
    yield (matrix([1000.0], [0.0]),)


def drawn(seed):
    for rows, widths in ((1, (1, 1, 1)), (1, (2, 1)), (2, (2, 2)), (2, (3, 2, 4)), (3, (1, 5))):
        yield tuple(30 * draw(seed + i, rows, width) for i, width in enumerate(widths))


def memory(seed):
    """Yield many panels, so that storing them all shows in the peak memory."""
    yield 60, 400


def with_memory(module, number, width):
    """Return the sum over `number` panels of one row, and whether the peak memory could hold half of the panels."""
    tracemalloc.start()
    try:
        result = module.log_sum_exp(stream(panel(i, width) for i in range(number)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return {
        "sum": result,
        "memory": "enough for all panels" if peak > number * width * 4 else "enough for a few panels",
    }


def panel(i, width):
    return np.sin(np.arange(width) + i)[None]


def right_with_memory(number, width):
    x = np.concatenate([panel(i, width) for i in range(number)], axis=1)
    return {"sum": np.log(np.exp(x).sum(axis=1)), "memory": "enough for a few panels"}


def also_of_list(module, *panels):
    """Return the result, and the result for a list of panels that are not overwritten."""
    first = module.log_sum_exp(stream(panels))
    try:
        return [first, module.log_sum_exp(list(panels))]
    except TypeError:  # the answer calls next, which needs an iterator
        return [first, module.log_sum_exp(iter(panels))]


def explain(yours, expected, *panels):
    if np.any(abs(yours - 333) < 5) and max(abs(panel[np.isfinite(panel)]).max(initial=0) for panel in panels) < 300:
        return (
            "Your result comes from the 333 that overwrites each panel after its turn. A slice of a panel is a view "
            "and changes with it: copy it, or go through the panels only once."
        )
    yours = np.broadcast_to(yours, expected.shape)
    row = int(np.argwhere(~((yours == expected) | (abs(yours - expected) < 1e-6)))[0, 0])
    parts = ", ".join(f"{right(panel[row : row + 1])[0]:.6g}" for panel in panels)
    return f"Row {row}: the panels' own results are {parts}. Together they give log(sum(exp(...))) of these."


STAGES = [
    Stage("the sum is wrong", cases, lambda m, *panels: m.log_sum_exp(stream(panels)), right,
          lambda *panels: f"log_sum_exp(iter({text(list(panels))}))", explain=explain,
          compared=also_of_list) for cases in (edges, drawn)
] + [
    Stage("the sum is right, but the panels are stored", memory, with_memory, right_with_memory,
          lambda n, width: f"log_sum_exp(np.sin(np.arange({width}) + i)[None] for i in range({n}))"),
]  # fmt: skip
NAMES = {
    "peak": "the maximum so far",
    "total": "the sum so far",
    "new_peak": "the maximum with the new panel",
    "shift": "the same, but 0 for -inf",
    "column": "a column of a panel",
    "number": "a number of a panel",
    "peaks": "the maximum so far",
    "sums": "the sum so far",
    "row": "the index of a row",
    "panel_peak": "the maximum of the panel",
}
AFTER = """\
The real one (npx/kernels/cross_entropy.py) does this for all words of a vocabulary, with the panels spread over
threads. It keeps the exponentials for the gradient: one factor per row and panel turns them into the softmax."""
