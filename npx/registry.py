"""The kernel registry: one formula, a readable reference, and faster versions held to it.

    @kernel
    def softmax(x): ...; return y, y            # the reference: any engine, any dtype, written to be read

    @softmax.gradient
    def softmax_grad(g, y): ...                 # of the gradient; takes what the reference saved

    @softmax.fast("numpy", "float32")
    def softmax_blocked(x): ...                 # same arguments, same y, less time; may save what it likes

    @softmax_grad.fast("numpy", "float32")
    def softmax_grad_blocked(g, y): ...         # takes what `softmax_blocked` saved

    y, saved = npx.softmax(x)                   # the version registered for x's engine and dtype, else the reference
    gx = npx.softmax_grad(g, saved)             # the gradient's version that goes with it

So a kernel with a gradient is a pair, and `saved` belongs to the version that made it: it is opaque to everybody else,
and may be consumed by its gradient. A kernel without one (`adam`) returns what its function returns.

`NPX_KERNELS=reference` runs references only; `NPX_KERNELS=check` runs both and raises `KernelMismatch` where they
differ, results and arrays written in place alike. `NPX_KERNELS=emulate` runs on NumPy arrays the version registered for
CuPy, its CUDA kernels in the emulator; `emulate+check` checks it so. `kernel_mode` does the same for a block of code.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, array_module, to_host
from npx.scoped import Scoped
from npx.settings import KERNEL_MODES as MODES
from npx.settings import setting

# Of the largest magnitude, or 1. In float64, where it is far above rounding errors: of the largest in a row.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-11}

Output = tuple[Array, Any]  # of a version with a gradient: y, and what it saves
KERNELS: dict[str, "Kernel"] = {}
_mode: Scoped[str] = Scoped(setting("NPX_KERNELS"))
_keeping = Scoped(False)


def emulating() -> bool:
    """Whether CUDA kernels run on NumPy arrays."""
    return _mode.get().startswith("emulate")


def should_rematerialize(x: Array) -> bool:
    """Whether an operation forms again on the way back what it can, from arrays like x, rather than keep it.

    So on a CPU; on a GPU, where launches are what is dear, everything is kept, and so it is within `saving_all`.
    """
    return not _keeping.get() and not emulating() and type(x).__module__ == "numpy"


def saving_all() -> AbstractContextManager[Any]:
    """Within the block operations keep all that they need on the way back: for one that begins at once."""
    return _keeping.set(True)


class KernelMismatch(AssertionError):
    """A fast version and its reference disagree; `rule` names the rule that is broken, where a check knows it."""

    rule = ""


class Saved(NamedTuple):
    """What a forward version keeps for its gradient, `values`, and the gradient's `version` that understands it.

    `values`: one value, or a tuple of what `version` takes one by one; None where no gradient was wanted. `reference`:
    what the reference keeps, in the registry's check mode.
    """

    version: Callable[..., Any]
    values: Any
    reference: "Saved | None" = None

    def gradient(self, g: Array, **options: Any) -> Any:
        """The gradient by this version alone."""
        return self.version(g, *(self.values if type(self.values) is tuple else (self.values,)), **options)

    def but(self, x: Array, form: Callable[[], Array]) -> "Callable[[], Saved]":
        """The same without the array x, which `form` forms again: a function that gives all that was saved."""
        hole = x[:0].copy()
        rest = mapped(lambda a: hole if a is x else a, self)

        def whole() -> Saved:
            formed = form()
            return mapped(lambda a: formed if a is hole else a, rest)

        return whole


class Versions:
    """A reference and the fast versions registered for an engine and a dtype."""

    def __init__(self, reference: Callable[..., Any]) -> None:
        self.name = reference.__name__
        self.reference = reference
        self.versions: dict[tuple[str, str], Callable[..., Any]] = {}
        self.__doc__ = reference.__doc__
        self.__wrapped__ = reference

    def fast(self, engine: str, *dtypes: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated function for arrays of `engine` ("numpy" or "cupy") and these dtypes."""

        def register(version: Callable[..., Any]) -> Callable[..., Any]:
            for dtype in dtypes:
                self.versions[engine, dtype] = version
            return version

        return register


class Kernel(Versions):
    """A function on plain arrays, alone or with its gradient."""

    grad: "Gradient | None" = None

    def gradient(self, reference: Callable[..., Any]) -> "Gradient":
        """Make the decorated function the reference of this kernel's gradient."""
        self.grad = Gradient(reference)
        return self.grad

    def key_for(self, x: Array) -> tuple[str, str]:
        """The engine and the dtype whose version runs for a first argument like `x`, if there is one."""
        return ("cupy" if emulating() else type(x).__module__), x.dtype.name

    def __call__(self, x: Array, /, *args: Any, **kwargs: Any) -> Any:
        mode = _mode.get()
        key = None if mode == "reference" else self.key_for(x)
        if key not in self.versions or not mode.endswith("check"):
            return self.run(key, x, *args, **kwargs)
        copies, named = copied((x, *args)), copied(kwargs)
        expected, result = self.run(None, *copies, **named), self.run(key, x, *args, **kwargs)
        if self.grad is None:
            compare(self.name, expected, result)
        else:
            compare(self.name, expected[0], result[0])
            result = result[0], result[1]._replace(reference=expected[1])
        compare(f"{self.name}, arguments afterwards", (copies, named), ((x, *args), kwargs))
        return result

    def run(self, key: tuple[str, str] | None, /, *args: Any, **kwargs: Any) -> Any:
        """The result, with a gradient (y, Saved), of the version of an engine and dtype, or else of the reference."""
        result = self.versions.get(key, self.reference)(*args, **kwargs)  # type: ignore[arg-type]
        if self.grad is None:
            return result
        y, values = result
        return y, Saved(self.grad.versions.get(key, self.grad.reference), values)  # type: ignore[arg-type]


class Gradient(Versions):
    """The gradient of a kernel: takes that of its output and what the kernel saved."""

    def __call__(self, g: Array, saved: Saved, **options: Any) -> Any:
        if saved.reference is None:
            return saved.gradient(g, **options)
        copies, named = g.copy(), copied(options)
        expected, result = saved.reference.gradient(copies, **named), saved.gradient(g, **options)
        compare(self.name, expected, result, g.dtype.name)
        compare(f"{self.name}, arguments afterwards", (copies, named), (g, options), g.dtype.name)
        return result


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A value with `function` applied to each array in it, through tuples, named ones too, and dicts.

    A tuple in which nothing changed is given back itself: of a subclass with more to it (`LaterKey`) none is made anew.
    """
    if isinstance(value, dict):
        return {name: mapped(function, v) for name, v in value.items()}
    if isinstance(value, tuple):
        parts = [mapped(function, v) for v in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value) if hasattr(value, "dtype") and hasattr(value, "copy") else value


def copied(value: Any) -> Any:
    """A value with copies of the arrays in it."""
    return mapped(lambda x: x.copy(), value)


def compare(name: str, expected: Any, result: Any, computed_in: str = "float64") -> None:
    """Raise KernelMismatch unless two results (arrays, numbers, None, tuples or dicts of them) agree.

    computed_in: a dtype whose rounding is allowed for, too, where numbers were added to arrays of a wider one.
    """
    if (expected is None) != (result is None):
        kinds = type(expected).__name__, type(result).__name__
        raise KernelMismatch(f"{name}: reference gives {kinds[0]}, the fast version {kinds[1]}")
    if isinstance(expected, tuple):
        if len(expected) != len(result):
            raise KernelMismatch(f"{name}: reference gives {len(expected)} results, the fast version {len(result)}")
        for i, (e, r) in enumerate(zip(expected, result, strict=True)):
            compare(f"{name}[{i}]", e, r, computed_in)
    elif isinstance(expected, dict):
        for key, value in expected.items():
            compare(f"{name} {key}", value, result[key], computed_in)
    elif hasattr(expected, "dtype"):
        if expected.shape != result.shape or expected.dtype != result.dtype:
            raise KernelMismatch(
                f"{name}: reference gives {expected.shape} {expected.dtype}, "
                f"the fast version {result.shape} {result.dtype}"
            )
        e, r = to_host(expected).astype(np.float64), to_host(result).astype(np.float64)
        if np.array_equal(e, r):
            return
        tolerance, finite = TOLERANCE.get(expected.dtype.name, 0.0), np.isfinite(e)
        tolerance = max(tolerance, TOLERANCE[computed_in]) if tolerance else 0.0
        size = np.where(finite, np.abs(e), 0)
        of_a_row = expected.dtype == np.float64 and e.ndim
        scale = size.max(axis=-1 if of_a_row else None, keepdims=True, initial=1.0)
        with np.errstate(invalid="ignore"):
            distance = np.abs(r - e)
        right = np.where(finite, distance <= tolerance * (scale + size), (r == e) | (np.isnan(r) & np.isnan(e)))
        if not right.all():
            distance = np.where(right, -1, np.nan_to_num(distance, nan=np.inf))
            worst = np.unravel_index(np.argmax(distance), e.shape)
            raise KernelMismatch(
                f"{name}: reference {e[worst]!r}, fast version {r[worst]!r} at {tuple(map(int, worst))} "
                f"of {e.shape}, {expected.dtype}, {array_module(expected).__name__}"
            )


def kernel(reference: Callable[..., Any]) -> Kernel:
    """Make the decorated reference a kernel and enter it in `KERNELS`; its gradient is not entered by itself."""
    if reference.__name__ in KERNELS:
        raise ValueError(f"kernel: expected a new name; got {reference.__name__!r}, which is registered already")
    KERNELS[reference.__name__] = Kernel(reference)
    return KERNELS[reference.__name__]


def kernel_mode(mode: str) -> AbstractContextManager[str]:
    """Run the block with "fast" versions, with "reference" ones only, with "check" of one against the other, or with
    CUDA kernels in the emulator ("emulate", "emulate+check")."""
    if mode not in MODES:
        raise ValueError(f"kernel_mode: expected one of {', '.join(MODES)}; got {mode!r}")
    return _mode.set(mode)
