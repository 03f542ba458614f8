"""The kernel registry: one formula, a readable reference, and faster versions held to it. Next: `parallel.py`.

    @kernel
    def softmax(x): ...                         # the reference: any engine, any dtype, written to be read

    @softmax.fast("numpy", "float32")
    def softmax_blocked(x): ...                 # same arguments, same results, less time

    npx.softmax(x)                              # the version registered for x's engine and dtype, else the reference

`NPX_KERNELS=reference` runs references only; `NPX_KERNELS=check` runs both and raises `KernelMismatch` where they
differ, results and arrays written in place alike. `NPX_KERNELS=emulate` runs on NumPy arrays the version registered for
CuPy, its CUDA kernels in the emulator; `emulate+check` checks it so. `kernel_mode` does the same for a block of code.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from npx.cuda import Kept
from npx.device import array_module, to_host

MODES = ("fast", "reference", "check", "emulate", "emulate+check")
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-11}  # of the largest magnitude

KERNELS: dict[str, "Kernel"] = {}
_mode = os.environ.get("NPX_KERNELS", "fast")
if _mode not in MODES:
    raise ValueError(f"NPX_KERNELS: expected one of {', '.join(MODES)}; got {_mode!r}")


def emulating() -> bool:
    """Whether CUDA kernels run on NumPy arrays."""
    return _mode.startswith("emulate")


class KernelMismatch(AssertionError):
    """A fast version and its reference disagree."""


class Kernel:
    """A function on plain arrays: a reference and the fast versions registered for an engine and a dtype."""

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

    def version_for(self, x: Any) -> Callable[..., Any]:
        """The function that runs for a first argument like `x`."""
        engine = "cupy" if emulating() else type(x).__module__
        return self.versions.get((engine, x.dtype.name), self.reference)

    def __call__(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _mode == "reference" or not self.versions:
            return self.reference(x, *args, **kwargs)
        version = self.version_for(x)
        if _mode.endswith("check") and version is not self.reference:
            return self._checked(version, (x, *args), kwargs)
        return version(x, *args, **kwargs)

    def _checked(self, version: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        copies, named = _copies(args), {name: _copies(value) for name, value in kwargs.items()}
        expected = self.reference(*copies, **named)
        result = version(*args, **kwargs)
        compare(self.name, expected, result)
        compare(f"{self.name}, arguments afterwards", (*copies, *named.values()), (*args, *kwargs.values()))
        return result


def _copies(value: Any) -> Any:
    if isinstance(value, Kept):
        return _copies(value.reference)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_copies(v) for v in value)
    return value.copy() if hasattr(value, "dtype") and hasattr(value, "copy") else value


def compare(name: str, expected: Any, result: Any) -> None:
    """Raise KernelMismatch unless two results (arrays, numbers, None, or nested tuples of them) agree.

    A `Kept` stands for any array and receives the reference's.
    """
    if isinstance(result, Kept):
        result.reference = expected
        return
    if (expected is None) != (result is None):
        kinds = type(expected).__name__, type(result).__name__
        raise KernelMismatch(f"{name}: reference gives {kinds[0]}, the fast version {kinds[1]}")
    if isinstance(expected, tuple):
        for i, (e, r) in enumerate(zip(expected, result, strict=True)):
            compare(f"{name}[{i}]", e, r)
    elif hasattr(expected, "dtype"):
        if expected.shape != result.shape or expected.dtype != result.dtype:
            raise KernelMismatch(
                f"{name}: reference gives {expected.shape} {expected.dtype}, "
                f"the fast version {result.shape} {result.dtype}"
            )
        e, r = to_host(expected).astype(np.float64), to_host(result).astype(np.float64)
        scale = np.abs(e, where=np.isfinite(e), out=np.zeros_like(e)).max(initial=1.0)
        tolerance = TOLERANCE.get(expected.dtype.name, 0.0)
        if not np.allclose(r, e, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            wrong = ~np.isclose(r, e, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
            with np.errstate(invalid="ignore"):
                distance = np.where(wrong, np.nan_to_num(np.abs(e - r), nan=np.inf), -1)
            worst = np.unravel_index(np.argmax(distance), e.shape)
            raise KernelMismatch(
                f"{name}: reference {e[worst]!r}, fast version {r[worst]!r} at {tuple(map(int, worst))} "
                f"of {e.shape}, {expected.dtype}, {array_module(expected).__name__}"
            )


def kernel(reference: Callable[..., Any]) -> Kernel:
    """Make the decorated reference a kernel and enter it in `KERNELS`."""
    if reference.__name__ in KERNELS:
        raise ValueError(f"kernel: expected a new name; got {reference.__name__!r}, which is registered already")
    KERNELS[reference.__name__] = Kernel(reference)
    return KERNELS[reference.__name__]


@contextmanager
def kernel_mode(mode: str) -> Iterator[None]:
    """Run the block with "fast" versions, with "reference" ones only, with "check" of one against the other, or with
    CUDA kernels in the emulator ("emulate", "emulate+check")."""
    global _mode
    if mode not in MODES:
        raise ValueError(f"kernel_mode: expected one of {', '.join(MODES)}; got {mode!r}")
    before, _mode = _mode, mode
    try:
        yield
    finally:
        _mode = before
