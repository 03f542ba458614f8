"""Kernel dispatch: each kernel has a readable reference, and faster versions that are checked against it.

    @kernel
    def softmax(x): ...; return y, y            # the reference: NumPy or CuPy, any dtype, written for clarity

    @softmax.define_gradient
    def softmax_grad(g, y): ...                 # the gradient's reference: takes what `softmax` saved

    @softmax.fast("numpy", "float32")
    def softmax_blocked(x): ...                 # same arguments and y, but faster; may save other values

    @softmax_grad.fast("numpy", "float32")
    def softmax_grad_blocked(g, y): ...         # takes what `softmax_blocked` saved

    y, saved = npx.softmax(x)                   # runs the fast version for x's array type and dtype, or the reference
    gx = npx.softmax_grad(g, saved)             # runs the matching version of the gradient

A kernel with a gradient is therefore a pair of functions. `saved` belongs to the version that created it, is opaque to
all other code and may be overwritten by the gradient. A kernel without a gradient (`adam`) returns only the result of
its function, without `saved`.

NPX_KERNELS selects the versions, and `kernel_mode` does so for a block of code:

    fast            the registered versions (the default)
    reference       the references only
    check           both; raises KernelMismatch if their results, or the arrays they modify in place, differ
    emulate         the versions for CuPy, on NumPy arrays, with their CUDA kernels run by the emulator
    emulate+check   `emulate`, checked against the references
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from npx.backend import Array, array_module, check_floating, to_host
from npx.registry import Registry
from npx.scoped import ScopedValue
from npx.settings import KERNEL_MODES, read_setting

# An element e may differ by TOLERANCE * (|e| + m), where m is the largest magnitude in the array, or 1 if that is
# larger. In float64, whose tolerance is far above the rounding error, m is the largest magnitude in the row of e.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-11}

Output = tuple[Array, Any]  # the result of a version with a gradient: y and the saved values
KERNELS: Registry["Kernel"] = Registry("kernel")
_mode: ScopedValue[str] = ScopedValue(read_setting("NPX_KERNELS"))
# Arrays with more bytes are recomputed in the backward pass instead of saved. Saving arrays of up to 2 MiB makes a
# training step 8% faster for d_model = 128 or 256, and such a model is so small that the saved arrays need little
# memory.
REMATERIALIZE_ABOVE = 2 << 20
_rematerialize_above: ScopedValue[float] = ScopedValue(REMATERIALIZE_ABOVE)


@cache
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype; cached, because NumPy recomputes it on each access."""
    return str(dtype.name)


def is_emulating() -> bool:
    """Return whether the kernel mode runs CUDA kernels on NumPy arrays, in the emulator."""
    return _mode.get().startswith("emulate")


def should_rematerialize(x: Array) -> bool:
    """Return whether operations on arrays like x recompute cheap intermediates in the backward pass.

    On a CPU they do so for arrays of more than 2 MiB, or of more bytes than `rematerialize_above` sets. On a GPU, where
    kernel launches are the expensive part, they save everything.
    """
    return bool(x.nbytes > _rematerialize_above.get()) and not is_emulating() and type(x).__module__ == "numpy"


def rematerialize_above(n_bytes: float) -> AbstractContextManager[Any]:
    """Within the block, make operations recompute only arrays of more than `n_bytes` bytes in the backward pass."""
    return _rematerialize_above.override(n_bytes)


class KernelMismatch(AssertionError):
    """A fast version and its reference disagree; `rule` names the rule that is broken, if known."""

    rule = ""


class SavedValues(NamedTuple):
    """The values that a forward version saves for its gradient.

    Attributes:
        gradient: the version of the gradient that takes `values`.
        values: a tuple, passed to `gradient` as separate arguments, or a single value.
        reference_saved: what the reference saved; only in the check modes.
    """

    gradient: Callable[..., Any]
    values: Any
    reference_saved: "SavedValues | None" = None

    def backward(self, g: Array, **options: Any) -> Any:
        """Compute the gradients of the inputs from the gradient g of the output."""
        return self.gradient(g, *(self.values if type(self.values) is tuple else (self.values,)), **options)

    def without(self, x: Array, recompute: Callable[[], Array]) -> "Callable[[], SavedValues]":
        """Drop the array x, and return a function that restores all saved values by recomputing x."""
        placeholder = x[:0].copy()
        remaining = map_arrays(lambda a: placeholder if a is x else a, self)

        def restore() -> SavedValues:
            recomputed = recompute()
            return map_arrays(lambda a: recomputed if a is placeholder else a, remaining)

        return restore


class Dispatcher:
    """A reference, and its fast versions for certain array libraries and dtypes."""

    def __init__(self, reference: Callable[..., Any]) -> None:
        self.name = reference.__name__
        self.reference = reference
        self.versions: dict[tuple[str, str], Callable[..., Any]] = {}
        self.__doc__ = reference.__doc__
        self.__wrapped__ = reference

    def fast(self, array_library: str, *dtypes: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated function for arrays of `array_library` ("numpy" or "cupy") and these dtypes."""

        def register(version: Callable[..., Any]) -> Callable[..., Any]:
            for dtype in dtypes:
                self.versions[array_library, dtype] = version
            return version

        return register


class Kernel(Dispatcher):
    """A function on plain arrays, with or without a gradient."""

    grad: "GradientKernel | None" = None

    def define_gradient(self, reference: Callable[..., Any]) -> "GradientKernel":
        """Make the decorated function the reference of this kernel's gradient."""
        self.grad = GradientKernel(reference)
        return self.grad

    def __call__(self, x: Array, /, *args: Any, **kwargs: Any) -> Any:
        mode = _mode.get()
        # Versions are registered for the array library and the dtype of the first argument.
        key = None if mode == "reference" else ("cupy" if is_emulating() else type(x).__module__, dtype_name(x.dtype))
        if key not in self.versions:
            check_floating(self.name, x)
            return self.run(key, x, *args, **kwargs)
        if not mode.endswith("check"):
            return self.run(key, x, *args, **kwargs)
        args_copy = copy_arrays((x, *args))
        kwargs_copy = copy_arrays(kwargs)
        expected = self.run(None, *args_copy, **kwargs_copy)
        result = self.run(key, x, *args, **kwargs)
        if self.grad is None:
            compare(self.name, expected, result)
        else:
            compare(self.name, expected[0], result[0])
            result = result[0], result[1]._replace(reference_saved=expected[1])
        compare(f"{self.name}, arguments after the call", (args_copy, kwargs_copy), ((x, *args), kwargs))
        return result

    def run(self, key: tuple[str, str] | None, /, *args: Any, **kwargs: Any) -> Any:
        """Run the version registered for `key`, or the reference; a kernel with a gradient returns (y, SavedValues)."""
        result = self.versions.get(key, self.reference)(*args, **kwargs)  # type: ignore[arg-type]
        if self.grad is None:
            return result
        y, values = result
        return y, SavedValues(self.grad.versions.get(key, self.grad.reference), values)  # type: ignore[arg-type]


class GradientKernel(Dispatcher):
    """The gradient of a kernel: a function of the output's gradient and of what the kernel saved."""

    def __call__(self, g: Array, saved: SavedValues, **options: Any) -> Any:
        if saved.reference_saved is None:
            return saved.backward(g, **options)
        g_copy = g.copy()
        options_copy = copy_arrays(options)
        expected = saved.reference_saved.backward(g_copy, **options_copy)
        result = saved.backward(g, **options)
        compare(self.name, expected, result, g.dtype.name)
        compare(f"{self.name}, arguments after the call", (g_copy, options_copy), (g, options), g.dtype.name)
        return result


def map_arrays(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to every array in a value, including arrays in dicts and (named) tuples; return the result.

    A tuple in which nothing changes is returned as is, because rebuilding it would lose the attributes of a subclass
    such as `DeviceKey`.
    """
    if isinstance(value, dict):
        return {name: map_arrays(function, v) for name, v in value.items()}
    if isinstance(value, tuple):
        parts = [map_arrays(function, v) for v in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value) if hasattr(value, "dtype") and hasattr(value, "copy") else value


def copy_arrays(value: Any) -> Any:
    """Return a value in which every array is replaced by a copy."""
    return map_arrays(lambda x: x.copy(), value)


def compare(name: str, expected: Any, result: Any, computed_in: str = "float64") -> None:
    """Raise KernelMismatch unless two results (arrays, numbers, None, or tuples or dicts of these) agree.

    Args:
        computed_in: the dtype of the computation. The tolerance is that of this dtype or of the arrays' dtype,
            whichever is less precise, because 16-bit gradients may have been added to float32 arrays.
    """
    if (expected is None) != (result is None):
        kinds = type(expected).__name__, type(result).__name__
        raise KernelMismatch(f"{name}: expected {kinds[0]}, as from the reference; got {kinds[1]}")
    if isinstance(expected, tuple):
        if len(expected) != len(result):
            raise KernelMismatch(f"{name}: expected {len(expected)} results, as from the reference; got {len(result)}")
        for i, (e, r) in enumerate(zip(expected, result, strict=True)):
            compare(f"{name}[{i}]", e, r, computed_in)
    elif isinstance(expected, dict):
        for key, value in expected.items():
            compare(f"{name} {key}", value, result[key], computed_in)
    elif hasattr(expected, "dtype"):
        _compare_arrays(name, expected, result, computed_in)


def _compare_arrays(name: str, expected: Array, result: Array, computed_in: str) -> None:
    if expected.shape != result.shape or expected.dtype != result.dtype:
        raise KernelMismatch(
            f"{name}: expected {expected.shape} {expected.dtype}, as from the reference; "
            f"got {result.shape} {result.dtype}"
        )
    e = to_host(expected).astype(np.float64)
    r = to_host(result).astype(np.float64)
    if np.array_equal(e, r):
        return
    finite = np.isfinite(e)
    tolerance = TOLERANCE.get(expected.dtype.name, 0.0)
    tolerance = max(tolerance, TOLERANCE[computed_in]) if tolerance else 0.0
    magnitude = np.where(finite, np.abs(e), 0)
    by_row = expected.dtype == np.float64 and e.ndim
    scale = magnitude.max(axis=-1 if by_row else None, keepdims=True, initial=1.0)
    with np.errstate(invalid="ignore"):
        distance = np.abs(r - e)
    close = np.where(finite, distance <= tolerance * (scale + magnitude), (r == e) | (np.isnan(r) & np.isnan(e)))
    if not close.all():
        distance = np.where(close, -1, np.nan_to_num(distance, nan=np.inf))
        worst = np.unravel_index(np.argmax(distance), e.shape)
        raise KernelMismatch(
            f"{name}: expected {e[worst]}, as from the reference, at index {tuple(map(int, worst))}; "
            f"got {r[worst]} (shape {e.shape}, {expected.dtype}, {array_module(expected).__name__})"
        )


def kernel(reference: Callable[..., Any]) -> Kernel:
    """Make the decorated reference a kernel, registered in `KERNELS`. Raises ValueError if its name is taken."""
    return KERNELS.add(reference.__name__, Kernel(reference))


def kernel_mode(mode: str) -> AbstractContextManager[str]:
    """Run the block in a mode of NPX_KERNELS: "fast", "reference", "check", "emulate" or "emulate+check".

    Raises ValueError for any other mode.
    """
    if mode not in KERNEL_MODES:
        raise ValueError(f"kernel_mode: expected one of {', '.join(KERNEL_MODES)}; got {mode!r}")
    return _mode.override(mode)
