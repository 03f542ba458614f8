"""Rematerialization: an operation's output is recomputed in backward instead of being saved by later operations.

An operation whose output is cheap to recompute attaches a function that recomputes it to its vjp
(`attach_recompute_fn`). `Tensor.recompute_fn` returns this function, which later operations can save instead of the
output. Checkpointing (checkpointing.py) does the same for a complete layer.
"""

from collections.abc import Callable
from typing import TypeVar

from autograd.engine import VJP
from npx import Array

T = TypeVar("T")
RecomputeFn = Callable[[], Array]


def attach_recompute_fn(vjp: VJP, recompute_fn: RecomputeFn) -> VJP:
    """Attach to a vjp a function that recomputes the operation's output from arrays that the vjp saves anyway."""
    vjp.recompute_fn = recompute_fn  # type: ignore[attr-defined]
    return vjp


def constant_fn(value: T) -> Callable[[], T]:
    """Return a function that returns `value`."""
    return lambda: value


def compute_once(compute: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls `compute` only on its first call and returns the same value on every call."""
    results: list[T] = []

    def computed() -> T:
        if not results:
            results.append(compute())
        return results[0]

    return computed
