"""Other calls derived from one of a kernel: the same values elsewhere in memory, other values, more of them."""

from typing import Any, NamedTuple

import npx
from autograd.testing.rules import protected, relaid
from npx import Array, Key
from npx.dispatch import mapped

REPEATED = "one number repeated", "one row repeated"  # layouts with strides of 0, of other values
np = npx.host


class Values(NamedTuple):
    """What to call a kernel with, on the host: arguments, by place and by name, and options of its gradient."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    gradient: dict[str, Any]


def differ(a: Array, b: Array) -> bool:
    """Whether two arrays differ in some bit."""
    return npx.to_host(a).tobytes() != npx.to_host(b).tobytes()


def arrays_in(value: Any) -> list[Array]:
    """The arrays in a value, in order."""
    found: list[Array] = []

    def collect(x: Array) -> Array:
        found.append(x)
        return x

    mapped(collect, value)
    return found


def finite(value: Any) -> bool:
    """Whether all numbers in a value are."""
    floats = (npx.to_host(x) for x in arrays_in(value) if x.dtype.kind not in "biu")
    return all(bool(np.isfinite(x.astype("float64")).all()) for x in floats)


def scale(value: Any, factor: float) -> Any:
    """The arrays in a value times a number."""
    return mapped(lambda x: (x * factor).astype(x.dtype), value)


def moved(value: Any, layout: str = "given") -> Any:
    """Copies, on the current device and in a memory layout, of the arrays in a value."""
    return mapped(lambda x: laid_out(npx.asarray(npx.from_host(npx.to_host(x)).copy()), layout), value)


def laid_out(x: Array, layout: str) -> Array:
    """An array in a memory layout, of the same values unless it is one of `REPEATED`."""
    if layout in REPEATED and x.ndim:
        return npx.broadcast_to(x[(slice(0, 1),) * (x.ndim if layout == REPEATED[0] else 1)], x.shape)
    if layout in (*REPEATED, "given"):
        return x
    return protected(x) if layout == "read-only" else relaid(x, layout)


def other(values: Values) -> Values:
    """Other values of the same shapes: rows in reversed order, numbers half as large, random keys that follow."""

    def change(x: Array) -> Array:
        turned = (x[::-1] if x.ndim else x).copy()
        return turned if x.dtype.kind in "biu" else (0.5 * turned).astype(x.dtype)

    return rekeyed(mapped(change, values))


def rekeyed(value: Any) -> Any:
    """A value with the next call's keys in place of its random ones."""
    if isinstance(value, Key):
        return value._replace(call=value.call + 1)
    if isinstance(value, dict):
        return {name: rekeyed(v) for name, v in value.items()}
    if isinstance(value, tuple):
        parts = [rekeyed(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def longer(values: Values, times: int) -> Values:
    """The rows of the first argument, and of every array with as many, `times` over, floats in varying sizes."""
    first = values.args[0]

    def change(x: Array) -> Array:
        if not first.ndim or not x.ndim or len(x) != len(first):
            return x
        many = np.concatenate([x] * times)
        if x.dtype.kind in "biu":
            return many
        sizes = np.linspace(1, 0.5, len(many)).reshape(-1, *[1] * (x.ndim - 1))
        return (many * sizes).astype(x.dtype)

    return mapped(change, values)
