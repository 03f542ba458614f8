"""The array library: NumPy on a CPU, CuPy on a GPU.

`array_module` returns the library that an array belongs to. New arrays (`zeros`, `arange`, `asarray`, ...) are created
on the current device; `host` is NumPy itself, for arrays that stay on the host. No package above npx imports CuPy.

NPX_GPU_MEMORY is a limit on the GPU memory in use, given in GiB (`20`) or as a percentage (`80%`).
"""

import ctypes
import gc
import os
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npx.messages import one_line, pip_install

Array = NDArray[Any]  # also stands for CuPy arrays, which have the same interface
Accumulators = tuple[Array | None, ...]  # one entry per gradient: the array to add it to, or None
NO_ACCUMULATORS: Accumulators = (None,) * 4  # no kernel computes more than four gradients
host = np
DEVICES = ("cpu", "cuda")
UPLOAD_ERROR = "CUDA graph: expected all data of the step to be on the device already; got an upload from the host"
CUDA_DEVICE = 2  # kDLCUDA of DLPack
_device = "cpu"
_cupy: ModuleType | None = None  # imported only by use_device("cuda")
uploads_allowed = True  # host arrays may be copied to a GPU; False while a CUDA graph is captured (cuda/graphs.py)


def use_device(name: str) -> None:
    """Set the device on which new arrays are created: "cpu" (NumPy) or "cuda" (CuPy).

    Raises ValueError for any other name. If "cuda" is unavailable, raises a RuntimeError that names what is missing.
    """
    global _device, _cupy
    if name not in DEVICES:
        raise ValueError(f"use_device: expected one of {', '.join(DEVICES)}; got {name!r}")
    if name == "cuda" and _cupy is None:
        _cupy = cupy_with_a_gpu()
    _device = name


def cupy_with_a_gpu() -> ModuleType:
    """Import CuPy and limit its memory to NPX_GPU_MEMORY.

    If CuPy or a GPU is missing, raises a RuntimeError that says what is installed and what to install.
    """
    try:
        import cupy
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        problem = "CuPy is not installed" if is_missing else f"CuPy cannot be imported ({one_line(error)})"
    else:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
            problem = "" if count else "no GPU"
        except RuntimeError as error:  # CuPy's CUDARuntimeError: no driver, or one too old for CuPy's CUDA version
            problem = f"CuPy {cupy.__version__} finds no GPU ({one_line(error)})"
        if not problem:
            limit_memory(cupy)
            return cupy
    driver = driver_version()
    installed = "no NVIDIA driver" if driver is None else "an NVIDIA driver for CUDA {}.{}".format(*driver)
    extra = "gpu12" if driver is not None and driver[0] < 13 else "gpu13"
    raise RuntimeError(
        f"device cuda: expected CuPy and an NVIDIA GPU; got {installed}, and {problem}; "
        f"try {pip_install(extra)} on a machine with a GPU, or --device cpu"
    )


def driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA version (major, minor) that the NVIDIA driver supports, or None if there is no driver."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) or not version.value:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def device() -> str:
    """Return the current device: "cpu" or "cuda"."""
    return _device


def synchronize() -> None:
    """Wait until the current device has finished all work; does nothing on a CPU."""
    if _device == "cuda":
        _current().cuda.get_current_stream().synchronize()


def check_floating(name: str, x: Array) -> None:
    """Raise ValueError unless x, the input of the function `name`, has a floating-point dtype."""
    if x.dtype.kind in "iub":
        raise ValueError(f"{name}: expected a floating-point dtype; got {x.dtype}; try .astype('float32')")


def array_module(*arrays: Array | None) -> Any:
    """Return the module for computing with the arrays: cupy if any of them is a CuPy array, else numpy."""
    if _cupy is not None and any(isinstance(a, _cupy.ndarray) for a in arrays):
        return _cupy
    return np


def _current() -> Any:
    return np if _device == "cpu" else _cupy


def asarray(x: Any, dtype: Any = None) -> Array:
    """Convert `x` to an array. CuPy arrays stay on their GPU; anything else becomes an array on the current device.

    Raises RuntimeError if the data would have to be uploaded while a CUDA graph is being captured.
    """
    if _cupy is None and dtype is None and type(x) is np.ndarray:  # the common case, which must be cheap
        return x
    if _cupy is not None and isinstance(x, _cupy.ndarray):
        return x if dtype is None else x.astype(dtype, copy=False)
    if not uploads_allowed:
        raise RuntimeError(UPLOAD_ERROR)
    return _current().asarray(x, dtype=dtype)


def from_host(x: np.ndarray) -> Array:
    """Copy a NumPy array to the current device; on a CPU, return the array itself.

    This function is the same as `asarray`; its name marks the places where data is uploaded to a GPU.
    """
    return asarray(x)


def to_host(x: Array) -> np.ndarray:
    """Return an array of either library as a NumPy array; only an array on a GPU is copied."""
    return x.get() if _cupy is not None and isinstance(x, _cupy.ndarray) else np.asarray(x)


def from_dlpack(x: Any) -> Array:
    """Return an array that shares memory with another library's array, on the same device.

    Errors of the other library propagate. Raises ValueError for a GPU array unless `use_device("cuda")` was called.
    """
    device_type = int(x.__dlpack_device__()[0])
    if device_type != CUDA_DEVICE:
        return np.from_dlpack(x)
    if _cupy is None:
        raise ValueError(
            'from_dlpack: expected an array on the CPU; got an array on a GPU; try npx.use_device("cuda") first'
        )
    return _cupy.from_dlpack(x)


def read_only(x: Array) -> Array:
    """Return a view that is read-only if the library supports it: NumPy does, CuPy does not."""
    view = x.view()
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def zeros(shape: Any, dtype: Any = np.float32) -> Array:
    """Return zeros, by default float32, on the current device."""
    return _current().zeros(shape, dtype)


def ones(shape: Any, dtype: Any = np.float32) -> Array:
    """Return ones, by default float32, on the current device."""
    return _current().ones(shape, dtype)


def empty(shape: Any, dtype: Any = np.float32) -> Array:
    """Return an uninitialized array, by default float32, on the current device."""
    return _current().empty(shape, dtype)


def full(shape: Any, value: Any, dtype: Any = np.float32) -> Array:
    """Return an array filled with `value`, by default float32, on the current device."""
    return _current().full(shape, value, dtype)


def arange(*limits: Any, dtype: Any = None) -> Array:
    """Return `arange(stop)` or `arange(start, stop, step)` on the current device; integer limits give integers."""
    return _current().arange(*limits, dtype=dtype)


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def add_at(x: Array, index: Any, values: Array) -> None:
    """Add `values` to x[index] in place. Unlike `x[index] += values`, this adds each value of a repeated index."""
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        x[index] += values  # basic indexing selects each element at most once
    else:
        array_module(x).add.at(x, index, values)


def has_16_bits(dtype: Any) -> bool:
    """Return whether `dtype` is float16 or bfloat16."""
    return dtype.itemsize == 2 and dtype.kind not in "iu"


def accumulate(values: tuple[Array | None, ...], accumulate_into: Accumulators) -> Any:
    """Add each value to its sum in place, and return the sums. Where the sum is None, return the value."""
    for value, total in zip(values, accumulate_into, strict=False):
        if total is not None:
            total += value
    return tuple(value if total is None else total for value, total in zip(values, accumulate_into, strict=False))


def use_tf32(enabled: bool) -> None:
    """Set whether float32 matmuls on a GPU round their operands to TF32; this has no effect on a CPU."""
    if _device == "cuda" and _cupy is not None:
        linalg = _cupy._core._routines_linalg
        compute_type = linalg.COMPUTE_TYPE_TF32 if enabled else linalg.COMPUTE_TYPE_DEFAULT
        linalg.set_compute_type(np.float32, compute_type)


# GPU memory. CuPy keeps freed memory in a pool for reuse and allocates more from the GPU up to a limit.


class MemoryUse(NamedTuple):
    """GPU memory in bytes: used by arrays, held by CuPy's pool (arrays and free blocks), free on the GPU, and total."""

    used: int
    held: int
    free: int
    total: int


def limit_memory(cupy: Any) -> None:
    """Limit the memory pool of the current GPU to NPX_GPU_MEMORY.

    "20" means 20 GiB, "80%" means 80% of the GPU's memory, and "" means no limit. Raises ValueError for other text.
    """
    if not (limit := os.environ.get("NPX_GPU_MEMORY", "")):
        return
    is_percentage = limit.endswith("%")
    try:
        number = float(limit.removesuffix("%"))
    except ValueError:
        number = 0.0
    if not (0 < number <= 100 if is_percentage else 0 < number < 1e6):
        raise ValueError(f"NPX_GPU_MEMORY: expected a size in GiB (20) or a percentage of the GPU (80%); got {limit!r}")
    pool = cupy.get_default_memory_pool()
    pool.set_limit(**({"fraction": number / 100} if is_percentage else {"size": int(number * 2**30)}))


def memory_use() -> MemoryUse | None:
    """Return the current use of GPU memory, or None on a CPU."""
    if _device == "cpu" or _cupy is None:
        return None
    pool = _cupy.get_default_memory_pool()
    return MemoryUse(pool.used_bytes(), pool.total_bytes(), *_cupy.cuda.runtime.memGetInfo())


def free_memory() -> None:
    """Collect garbage and return unused GPU memory to the driver, so that a failed allocation can be retried."""
    gc.collect()
    if _cupy is not None:
        _cupy.get_default_memory_pool().free_all_blocks()
