"""Value to the right minus value to the left, over the way between them; and a step that is a share of x."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from book.exercise import Rejected, Stage, draw

FUNCTIONS = {
    "x**2": (lambda x: x * x, lambda x: 2 * x),
    "x**3": (lambda x: x**3, lambda x: 3 * x * x),
    "np.exp(x / 10)": (lambda x: np.exp(x / 10), lambda x: np.exp(x / 10) / 10),
    "np.sin(x)": (np.sin, np.cos),
}


def steps(seed: int) -> Iterator[tuple[Any, ...]]:
    yield "x**2", 1.0, 0.5
    yield "x**2", -3.0, 0.25
    yield "x**3", 1.0, 0.5
    for i, (x, h) in enumerate(abs(draw(seed, 8, 2)) + 0.1):
        yield [*FUNCTIONS][i % 4], float(x), float(h)


def points(seed: int) -> Iterator[tuple[Any, ...]]:
    yield "x**3", 1.0
    yield "np.sin(x)", 0.0
    yield "x**2", 1000000.0
    yield "x**2", -1000000.0
    for x in draw(seed, 6):
        yield "x**3", float(10 * x + (1 if x > 0 else -1))


def with_own_step(module: Any, f: str, x: float) -> float:
    h = module.step(x)
    if not (isinstance(h, (float, int)) and h > 0):
        raise Rejected(f"expected step({x}) to be a number greater than 0; got {h!r}")
    return float(module.slope(FUNCTIONS[f][0], x, h))


STAGES = [
    Stage("the slope is wrong", steps, lambda m, f, x, h: m.slope(FUNCTIONS[f][0], x, h),
          lambda f, x, h: (FUNCTIONS[f][0](x + h) - FUNCTIONS[f][0](x - h)) / (2 * h),
          lambda f, x, h: f"slope(lambda x: {f}, {x}, {h})"),
    Stage("the slope is right, its step is not the best: too many digits are lost", points, with_own_step,
          lambda f, x: FUNCTIONS[f][1](x), lambda f, x: f"slope(lambda x: {f}, {x}, step({x}))", close=3e-9),
]  # fmt: skip
AFTER = """\
And the digits? At x = 1 your slope of x^3 is off by a share of 1e-11: eleven of sixteen are right. One side kept eight.

The kit (autograd/testing/numerical.py, `richardson`) takes your slope at two steps, h and h/2. What they disagree by is
its bound: it accuses a gradient only where both exclude it."""
