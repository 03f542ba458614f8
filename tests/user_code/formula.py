"""A function with a hand-written gradient, with a right and a wrong backward pass: `formula` registers one.

Each is written once over the namespace `xp` of NumPy, PyTorch or JAX, whose names agree. `forward` returns
(out, cache); `right(g, cache)` and `wrong(g, cache)` return the gradients of the inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Formula:
    """A function by name: `build(xp)` returns forward, right and wrong; `shapes` of the inputs, "ids" for integers."""

    name: str
    shapes: tuple[Any, ...]
    build: Callable[[Any], tuple[Any, Any, Any]]

    def inputs(self, seed: int) -> list[Any]:
        """Return plain inputs: standard normal numbers, with other lengths for seeds above 0."""
        rng = np.random.default_rng(seed)
        longer = {n: n if not seed or n in (2, 8) else n + int(rng.integers(0, 3)) for n in range(1, 9)}
        longer[6] += longer[6] % 2  # pairs of steps, halves of features
        made = []
        for shape in self.shapes:
            if isinstance(shape, int):  # integers below 4, one per row
                made.append(rng.integers(0, 4, size=longer[shape]))
            else:
                made.append(rng.normal(size=tuple(longer[n] for n in shape)))
        return made


FORMULAS: list[Formula] = []


def formula(*shapes: Any) -> Callable[[Any], Any]:
    def register(build: Any) -> Any:
        FORMULAS.append(Formula(build.__name__, shapes, build))
        return build

    return register


def total(x: Any) -> Any:
    return x.sum(axis=-1, keepdims=True)


def mean(x: Any) -> Any:
    return total(x) / x.shape[-1]


def sigmoid(xp: Any, x: Any) -> Any:
    return xp.where(x >= 0, 1 / (1 + xp.exp(-xp.abs(x))), 1 - 1 / (1 + xp.exp(-xp.abs(x))))


def softmaxed(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.amax(x, axis=-1, keepdims=True))
    return e / total(e)
