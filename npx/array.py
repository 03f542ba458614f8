"""Which engine computes: NumPy on a CPU, CuPy on a GPU. The one place that asks.

An array says by its type which engine it belongs to (`array_module`); the current device says where new arrays are
made (`zeros`, `arange`, `asarray`, ...); `host` is NumPy itself, for arrays that stay on the host. Nothing above this
package imports CuPy or branches on the engine.

NPX_GPU_MEMORY limits the memory taken from a GPU: GiB (`20`) or a share of it (`80%`).
"""

import ctypes
import gc
import os
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of either engine: a CuPy array quacks alike
GradientTargets = tuple[Array | None, ...]  # arrays to add to, None where there is none
NO_TARGETS: GradientTargets = (None,) * 4  # for as many gradients as a kernel has
host = np
DEVICES = ("cpu", "cuda")
_device = "cpu"
_cupy: ModuleType | None = None  # imported by use_device("cuda"), so that a machine without it pays nothing
uploads = True  # whether host arrays may become arrays on a GPU: not while a CUDA graph is made (cuda/graphs.py)


def use_device(name: str) -> None:
    """Make new arrays on `name`: "cpu" (NumPy) or "cuda" (CuPy).

    Raises ValueError for another name, and RuntimeError, saying what is missing, where "cuda" cannot be had.
    """
    global _device, _cupy
    if name not in DEVICES:
        raise ValueError(f"use_device: expected one of {', '.join(DEVICES)}; got {name!r}")
    if name == "cuda" and _cupy is None:
        _cupy = cupy_with_a_gpu()
    _device = name


def cupy_with_a_gpu() -> ModuleType:
    """CuPy, its memory limited to NPX_GPU_MEMORY; RuntimeError says what was found and what to install."""
    try:
        import cupy
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        problem = "CuPy is not installed" if absent else f"CuPy does not load ({one_line(error)})"
    else:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
            problem = "" if count else "no GPU"
        except RuntimeError as error:  # CuPy's CUDARuntimeError: no driver, or one older than its CUDA
            problem = f"CuPy {cupy.__version__} finds no GPU ({one_line(error)})"
        if not problem:
            limit_memory(cupy)
            return cupy
    driver = driver_version()
    found = "no NVIDIA driver" if driver is None else "an NVIDIA driver for CUDA {}.{}".format(*driver)
    extra = "gpu12" if driver is not None and driver[0] < 13 else "gpu13"
    raise RuntimeError(
        f"device cuda: expected CuPy and an NVIDIA GPU; got {found}, and {problem}; "
        f"try pip install 'npx-transformer[{extra}]' on a machine with a GPU, or --device cpu"
    )


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA (major, minor) that the installed NVIDIA driver can run; None without a driver."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) or not version.value:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def device() -> str:
    """The current device: "cpu" or "cuda"."""
    return _device


def synchronize() -> None:
    """Wait until the current device has done what it was told; a CPU always has."""
    if _device == "cuda":
        _current().cuda.get_current_stream().synchronize()


def array_module(*arrays: Array | None) -> Any:
    """The module the arrays belong to: cupy if one of them is a CuPy array, else numpy."""
    if _cupy is not None and any(isinstance(a, _cupy.ndarray) for a in arrays):
        return _cupy
    return np


def _current() -> Any:
    return np if _device == "cpu" else _cupy


def asarray(x: Any, dtype: Any = None) -> Array:
    """`x` as an array; lists and numbers become arrays on the current device, arrays stay where they are."""
    if _cupy is not None and isinstance(x, _cupy.ndarray):
        return x if dtype is None else x.astype(dtype, copy=False)
    if not uploads:
        raise RuntimeError("CUDA graph: expected a step whose numbers are on the device; got one that uploads some")
    return _current().asarray(x, dtype=dtype)


def from_host(x: np.ndarray) -> Array:
    """A NumPy array as an array on the current device."""
    return asarray(x)


def to_host(x: Array) -> np.ndarray:
    """An array of either engine as a NumPy array (a copy only when it lay on a GPU)."""
    return x.get() if _cupy is not None and isinstance(x, _cupy.ndarray) else np.asarray(x)


def zeros(shape: Any, dtype: Any = np.float32) -> Array:
    """Zeros on the current device."""
    return _current().zeros(shape, dtype)


def ones(shape: Any, dtype: Any = np.float32) -> Array:
    """Ones on the current device."""
    return _current().ones(shape, dtype)


def empty(shape: Any, dtype: Any = np.float32) -> Array:
    """Uninitialised memory on the current device."""
    return _current().empty(shape, dtype)


def full(shape: Any, value: Any, dtype: Any = np.float32) -> Array:
    """`value` everywhere, on the current device."""
    return _current().full(shape, value, dtype)


def arange(*limits: Any, dtype: Any = None) -> Array:
    """`arange(stop)` or `arange(start, stop, step)`, integers unless a limit is none, on the current device."""
    return _current().arange(*limits, dtype=dtype)


def add_at(x: Array, index: Any, values: Array) -> None:
    """x[index] += values in place, where an element indexed several times receives every one of its values."""
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        x[index] += values  # basic indices name each element at most once
    else:
        array_module(x).add.at(x, index, values)


def added(values: GradientTargets, accumulate_into: GradientTargets) -> Any:
    """Each value, or the array of `accumulate_into` that it is added to, where there is one."""
    for value, place in zip(values, accumulate_into, strict=False):
        if place is not None:
            place += value
    return tuple(value if place is None else place for value, place in zip(values, accumulate_into, strict=False))


def use_tf32(on: bool) -> None:
    """Whether products of float32 matrices on a GPU round their factors to TF32; without effect on a CPU."""
    if _device == "cuda" and _cupy is not None:
        products = _cupy._core._routines_linalg
        kind = products.COMPUTE_TYPE_TF32 if on else products.COMPUTE_TYPE_DEFAULT
        products.set_compute_type(np.float32, kind)


# Memory of the GPU: CuPy keeps freed memory in a pool for reuse, and takes more from the GPU up to a limit


class MemoryUse(NamedTuple):
    """Bytes of the GPU's memory: in arrays, held by the pool (arrays and free blocks), free, and in all."""

    used: int
    held: int
    free: int
    total: int


def limit_memory(cupy: Any) -> None:
    """Let arrays take at most NPX_GPU_MEMORY of the current GPU: "20" GiB, "80%" of it, or "" for all.

    ValueError for another text.
    """
    if not (limit := os.environ.get("NPX_GPU_MEMORY", "")):
        return
    try:
        number, share = float(limit.removesuffix("%")), limit.endswith("%")
    except ValueError:
        number, share = 0.0, False
    if not (0 < number <= 100 if share else 0 < number < 1e6):
        raise ValueError(f"NPX_GPU_MEMORY: expected GiB (20) or a share of the GPU (80%); got {limit!r}")
    pool = cupy.get_default_memory_pool()
    pool.set_limit(**({"fraction": number / 100} if share else {"size": int(number * 2**30)}))


def memory_use() -> MemoryUse | None:
    """What the GPU's memory is used for; None on a CPU."""
    if _device == "cpu" or _cupy is None:
        return None
    pool = _cupy.get_default_memory_pool()
    return MemoryUse(pool.used_bytes(), pool.total_bytes(), *_cupy.cuda.runtime.memGetInfo())


def free_memory() -> None:
    """Give back what no array uses any more, before a second try with less."""
    gc.collect()
    if _cupy is not None:
        _cupy.get_default_memory_pool().free_all_blocks()
