"""Subtract the value at x - h from the value at x + h, and divide by their distance. Make h proportional to |x|."""

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
    yield "np.exp(x / 10)", 0.0
    yield "np.exp(x / 10)", 1e-3
    yield "np.exp(x / 10)", 1e-6
    for x in draw(seed, 6):
        yield "x**3", float(10 * x + (1 if x > 0 else -1))


def slope_with_step(module: Any, f: str, x: float) -> float:
    h = module.step(x)
    if not (isinstance(h, (float, int)) and h > 0):
        raise Rejected(f"expected step({x}) to return a number greater than 0; got {h!r}")
    return float(module.slope(FUNCTIONS[f][0], x, h))


def explain(yours, right, f, x, h):
    left, right = (FUNCTIONS[f][0](x + sign * h) for sign in (-1, 1))
    return f"To the left f is {left:.6g}, to the right {right:.6g}, and the two points are {2 * h:g} apart."


def suggest(yours, right, f, x):
    return f"Near x = {x:g} a step of about {6e-6 * max(abs(x), 1):.1g} is good. Print step({x:g}) and compare."


STAGES = [
    Stage("the slope is wrong", steps, lambda m, f, x, h: m.slope(FUNCTIONS[f][0], x, h),
          lambda f, x, h: (FUNCTIONS[f][0](x + h) - FUNCTIONS[f][0](x - h)) / (2 * h),
          lambda f, x, h: f"slope(lambda x: {f}, {x}, {h})", explain=explain),
    Stage("the slope is right, but with your step it loses too many digits", points, slope_with_step,
          lambda f, x: FUNCTIONS[f][1](x), lambda f, x: f"slope(lambda x: {f}, {x}, step({x}))", close=3e-9,
          explain=suggest, compared=lambda m, f, x: round(np.log10(m.step(x)))),  # constants differ a little
]  # fmt: skip
NAMES = {"size": "the size of x", "left": "the left point or slope", "right": "the right point or slope"}
AFTER = """\
How many digits? At x = 1 your slope of x^3 has a relative error of 1e-11: eleven of sixteen digits are right. The
one-sided slope had eight.

The gradient checker (autograd/testing/numerical.py) takes your slope at two steps, h and h/2. Their difference bounds
the error, and a gradient is reported as wrong only if it lies outside the bounds of both."""
