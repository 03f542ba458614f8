"""The parts of a derivation: lines, which are functions, their random inputs, and the definition of a derivative."""

from collections.abc import Callable
from typing import Any

import numpy as np

DERIVATIONS: dict[str, list[Callable[..., Any]]] = {}
DRAWN: dict[str, Callable[[Any], tuple[Any, ...]]] = {}


def line(title: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the next line of a derivation."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        DERIVATIONS.setdefault(title, []).append(function)
        return function

    return enter


def drawn(title: str) -> Callable[[Callable[[Any], tuple[Any, ...]]], Callable[..., Any]]:
    """Register a function that draws the arguments for the lines of a derivation."""

    def enter(function: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Any]:
        DRAWN[title] = function
        return function

    return enter


def slopes(f, g, *inputs):
    """Return the derivative of sum(g * f(*inputs)) for each entry of each input."""
    gradients = []
    for k, x in enumerate(inputs):
        gradient = np.zeros(x.shape)
        for index in np.ndindex(x.shape):
            perturbed = x.astype(complex)
            perturbed[index] += 1e-30j
            gradient[index] = np.sum(g * f(*inputs[:k], perturbed, *inputs[k + 1 :])).imag / 1e-30
        gradients.append(gradient)
    return gradients[0] if len(gradients) == 1 else tuple(gradients)
