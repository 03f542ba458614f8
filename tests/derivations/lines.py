"""What a derivation is made of: lines that are functions, what they are called with, and the definition of a slope."""

from collections.abc import Callable
from typing import Any

import numpy as np

DERIVATIONS: dict[str, list[Callable[..., Any]]] = {}
DRAWN: dict[str, Callable[[Any], tuple[Any, ...]]] = {}


def line(title: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function as the next line of a derivation."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        DERIVATIONS.setdefault(title, []).append(function)
        return function

    return enter


def drawn(title: str) -> Callable[[Callable[[Any], tuple[Any, ...]]], Callable[..., Any]]:
    """Enter a function that draws what the lines of a derivation are called with."""

    def enter(function: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
        DRAWN[title] = function
        return function

    return enter


def slopes(f, g, *inputs):
    """By how much sum(g * f(*inputs)) moves for each entry of each input."""
    found = []
    for k, x in enumerate(inputs):
        slope = np.zeros(x.shape)
        for place in np.ndindex(x.shape):
            moved = x.astype(complex)
            moved[place] += 1e-30j
            slope[place] = np.sum(g * f(*inputs[:k], moved, *inputs[k + 1 :])).imag / 1e-30
        found.append(slope)
    return found[0] if len(found) == 1 else tuple(found)
