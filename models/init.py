"""The first values of parameters, float32; within `shapes_only()` arrays of the same shapes that take no memory.

Random values come from the keys of the surrounding `with npx.keyed(seed, 0):`, in the order of construction.
"""

from contextlib import AbstractContextManager
from typing import Any

import npx
from npx.scoped import Scoped

_shapes_only = Scoped(False)


def shapes_only() -> AbstractContextManager[Any]:
    """Within the block parameters are made without their numbers: zeros that share one place, not to be written."""
    return _shapes_only.set(True)


def full(value: float, *shape: int) -> npx.Array:
    """`value` everywhere."""
    if _shapes_only.get():
        return npx.broadcast_to(npx.zeros(()), shape)
    return npx.full(shape, value)


def normal(rows: int, width: int, deviation: float, zero_row: int | None = None) -> npx.Array:
    """N(0, deviation), (rows, width), but for a row of zeros."""
    if _shapes_only.get():
        return full(0, rows, width)
    table = npx.random.normal(npx.next_key(), (rows, width)) * deviation
    if zero_row is not None:
        table[zero_row] = 0
    return table


def xavier_uniform(n_in: int, *n_out: int, gain: float = 1.0) -> npx.Array:
    """U(-a, a) with a = gain sqrt(6 / (n_in + n_out)) (Glorot and Bengio, 2010).

    Several n_out: merged matrices, each with its own a. Returns (n_in, sum(n_out)).
    """
    if _shapes_only.get():
        return full(0, n_in, sum(n_out))
    parts = []
    for n in n_out:
        limit = gain * (6 / (n_in + n)) ** 0.5
        parts.append(npx.random.uniform(npx.next_key(), (n_in, n), low=-limit, high=limit))
    return npx.concatenate(parts, axis=1)
