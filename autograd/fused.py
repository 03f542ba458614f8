"""Code shared by the fused operations: the registry of their compositions, and outputs that backward recomputes."""

from collections.abc import Callable
from typing import TypeVar

from autograd.engine import VJP, Tensor
from npx import Array

COMPOSITIONS: dict[str, Callable[..., Tensor]] = {}  # operation -> the equivalent composition


def composition(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Register `composed_NAME` as the composition of the operation NAME."""
    COMPOSITIONS[function.__name__.removeprefix("composed_")] = function
    return function


# Rematerialization: outputs that are recomputed in backward instead of saved

T = TypeVar("T")
Recompute = Callable[[], Array]


def recomputable(vjp: VJP, recompute: Recompute) -> VJP:
    """Attach to a vjp a function that recomputes the operation's output from arrays that the vjp saves anyway."""
    vjp.recompute = recompute  # type: ignore[attr-defined]
    return vjp


def constant(value: T) -> Callable[[], T]:
    """Return a function that returns `value`."""
    return lambda: value


def memoize(compute: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `compute` on its first call and returns that value on every call."""
    results: list[T] = []

    def memoized() -> T:
        if not results:
            results.append(compute())
        return results[0]

    return memoized
