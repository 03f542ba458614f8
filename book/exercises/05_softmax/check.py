"""Each output depends on every input of its row: dy_i/dx_j is y_i (1 - y_i) for j = i, and -y_i y_j otherwise."""

import numpy as np

import npx
from book.exercise import draw, gradient_check, operation


def right(x):
    y, saved = npx.softmax.reference(x)
    return y, lambda g: (npx.softmax_grad.reference(g, saved),)


def edges(seed):
    yield (np.array([0.5, -0.5]),)
    yield (np.array([1000.0, 999.0]),)
    yield (np.array([1000.0, 0.0]),)
    yield (np.array([-1000.0, 1000.0]),)
    yield (np.array([1000.0, -1000.0]),)
    yield (np.array([-1000.0, -999.0]),)
    yield (np.array([-1000.0, 0.0]),)
    yield (np.array([[0.0, 1.0], [2.0, 0.0]]),)
    yield (np.array([[0.0, 0.0], [-1000.0, -1001.0]]),)


def drawn(seed):
    for shape in ((2,), (3,), (2, 2), (2, 3), (3, 1), (2, 2, 3)):
        yield (draw(seed, *shape),)


def explain(yours, expected, *_):
    total = float(np.asarray(yours[0]).sum(axis=-1).flat[0])
    if abs(total) > 1e-9:
        return (
            f"Adding a number to a whole row changes nothing, so a row's gradient sums to 0. Yours sums to {total:.3g}."
        )
    return (
        "The sum over the row is right: 0. Compare y_0 with y_1: the output that reacts more has the larger gradient."
    )


STAGES = operation("softmax", right, edges, drawn, explain=explain)
GRADIENT_CHECK = gradient_check("softmax", draw(1, 2, 3))
NAMES = {
    "e": "the exponentials",
    "y": "the output",
    "mean": "the sum of g y",
    "shifted": "the exponentials",
    "jacobian": "dy_i/dx_j",
    "g_log": "g y",
    "log_y": "the logarithm of y",
    "peak": "the row's maximum",
    "own": "the effect of an input on its own output",
    "others": "its effect on the other outputs",
}
AFTER = """\
The real one (npx/kernels/softmax.py, `softmax`) also takes a mask and returns zeros for a row that is masked
completely. A second version works in place, on a block of rows at a time, while they are in the cache."""
