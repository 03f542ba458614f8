"""Calls derived from one kernel call: the same values in other memory layouts, other values, and more rows."""

from typing import Any, NamedTuple

import npx
from autograd.testing.problem import protected
from autograd.testing.rules import with_layout
from npx import Array, Key
from npx.dispatch import map_arrays

BROADCAST = "one number repeated", "one row repeated"  # these layouts have strides of 0 and change the values
np = npx.host


class KernelArguments(NamedTuple):
    """The positional arguments, keyword arguments and gradient options of a kernel call, as host arrays."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradient_options: dict[str, Any]


def differ(a: Array, b: Array) -> bool:
    """Return whether two arrays differ in any bit."""
    return npx.to_host(a).tobytes() != npx.to_host(b).tobytes()


def arrays_in(value: Any) -> list[Array]:
    """Return the arrays that a value contains, in order."""
    arrays: list[Array] = []

    def collect(x: Array) -> Array:
        arrays.append(x)
        return x

    map_arrays(collect, value)
    return arrays


def is_finite(value: Any) -> bool:
    """Return whether all numbers in a value are finite."""
    floats = (npx.to_host(x) for x in arrays_in(value) if x.dtype.kind not in "biu")
    return all(bool(np.isfinite(x.astype("float64")).all()) for x in floats)


def scaled(value: Any, factor: float) -> Any:
    """Return a value with all its arrays multiplied by `factor`."""
    return map_arrays(lambda x: (x * factor).astype(x.dtype), value)


def copied_to_device(value: Any, layout: str = "given") -> Any:
    """Copy the arrays in a value to the current device, in the given memory layout."""
    return map_arrays(lambda x: with_layout_or_broadcast(npx.from_host(npx.to_host(x).copy()), layout), value)


def with_layout_or_broadcast(x: Array, layout: str) -> Array:
    """Return x in the given memory layout. Only the layouts in `BROADCAST` change the values."""
    if layout in BROADCAST and x.ndim:
        return npx.broadcast_to(x[(slice(0, 1),) * (x.ndim if layout == BROADCAST[0] else 1)], x.shape)
    if layout in (*BROADCAST, "given"):
        return x
    return protected(x) if layout == "read-only" else with_layout(x, layout)


def with_other_values(values: KernelArguments) -> KernelArguments:
    """Return values of the same shapes: reverse the rows, halve the floats, and use the next random keys."""

    def change(x: Array) -> Array:
        reversed_rows = (x[::-1] if x.ndim else x).copy()
        return reversed_rows if x.dtype.kind in "biu" else (0.5 * reversed_rows).astype(x.dtype)

    return with_next_keys(map_arrays(change, values))


def with_next_keys(value: Any) -> Any:
    """Replace each random key in a value by the key of the next call."""
    if isinstance(value, Key):
        return value._replace(call=value.call + 1)
    if isinstance(value, dict):
        return {name: with_next_keys(v) for name, v in value.items()}
    if isinstance(value, tuple):
        parts = [with_next_keys(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def with_repeated_rows(values: KernelArguments, times: int) -> KernelArguments:
    """Repeat the rows of the first argument and of every array with the same number of rows.

    Floats are multiplied by factors that fall from 1 to 0.5, so that the repeated rows differ.
    """
    first = values.args[0]

    def change(x: Array) -> Array:
        if not first.ndim or not x.ndim or len(x) != len(first):
            return x
        repeated = np.concatenate([x] * times)
        if x.dtype.kind in "biu":
            return repeated
        factors = np.linspace(1, 0.5, len(repeated)).reshape(-1, *[1] * (x.ndim - 1))
        return (repeated * factors).astype(x.dtype)

    return map_arrays(change, values)
