"""Parameter initialization, in float32. Within `use_shapes_only()`, parameters have their shapes but take no memory.

Parameters are sampled, in order of construction, with the random keys of the enclosing `with npx.keyed(seed, 0):`.
"""

from contextlib import AbstractContextManager
from typing import Any

import npx
from npx.scoped import ScopedValue

SCHEMES = ("xavier", "uniform_unit_scaling")
_shapes_only = ScopedValue(False)
_scheme = ScopedValue("xavier")
_gain = ScopedValue(1.0)


def use_shapes_only() -> AbstractContextManager[Any]:
    """Return a context manager within which parameters are zeros that share one element; do not write to them."""
    return _shapes_only.override(True)


def use_scheme(name: str) -> AbstractContextManager[Any]:
    """Return a context manager within which `uniform` uses the scheme `name`, one of SCHEMES."""
    return _scheme.override(name)


def scale_gain(factor: float) -> AbstractContextManager[Any]:
    """Return a context manager within which `uniform` multiplies its gain by `factor`."""
    return _gain.override(factor)


def constant(shape: tuple[int, ...], value: float) -> npx.Array:
    """Return a float32 array filled with `value`."""
    if _shapes_only.get():
        return npx.broadcast_to(npx.zeros(()), shape)
    return npx.full(shape, value)


def normal(n_rows: int, width: int, deviation: float, zero_row: int | None = None) -> npx.Array:
    """Sample (n_rows, width) from a normal distribution with this standard deviation; `zero_row` becomes zeros."""
    if _shapes_only.get():
        return constant((n_rows, width), 0)
    table = npx.random.normal(npx.next_key(), (n_rows, width)) * deviation
    if zero_row is not None:
        table[zero_row] = 0
    return table


def uniform(n_in: int, *n_out: int, gain: float | tuple[float, ...] = 1.0) -> npx.Array:
    """Sample from U(-a, a); the scheme in use (`use_scheme`) determines a.

    "xavier": a = gain sqrt(6 / (n_in + n_out)) (Glorot and Bengio, 2010). "uniform_unit_scaling": a = gain
    sqrt(3 / n_in), which gives x W the variance of x (Sussillo and Abbott, 2014; TensorFlow's name). Returns
    (n_in, sum(n_out)). With several n_out, one matrix is sampled for each, with a separate value of a, and the matrices
    are concatenated. `gain` is one number, or one for each matrix.
    """
    if _shapes_only.get():
        return constant((n_in, sum(n_out)), 0)
    gains = gain if isinstance(gain, tuple) else (gain,) * len(n_out)
    parts = []
    for n, part_gain in zip(n_out, gains, strict=True):
        limit = _gain.get() * part_gain * (6 / (n_in + (n if _scheme.get() == "xavier" else n_in))) ** 0.5
        parts.append(npx.random.uniform(npx.next_key(), (n_in, n), low=-limit, high=limit))
    return npx.concatenate(parts, axis=1)
