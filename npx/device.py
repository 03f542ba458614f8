"""Which engine computes: NumPy on a CPU, CuPy on a GPU. The one place that asks. Next: `random.py`.

An array says by its type which engine it belongs to (`array_module`); the current device says where new arrays are
made (`zeros`, `asarray`, ...). Nothing above this package imports CuPy or branches on the engine.
"""

from types import ModuleType
from typing import Any

import numpy as np

DEVICES = ("cpu", "cuda")
_device = "cpu"
_cupy: ModuleType | None = None  # imported by use_device("cuda"), so that a machine without it pays nothing


def use_device(name: str) -> None:
    """Make new arrays on `name`: "cpu" (NumPy) or "cuda" (CuPy).

    Raises ValueError for another name, and RuntimeError, saying what is missing, where "cuda" cannot be had.
    """
    global _device, _cupy
    if name not in DEVICES:
        raise ValueError(f"use_device: expected one of {', '.join(DEVICES)}; got {name!r}")
    if name == "cuda":
        try:
            import cupy
        except ImportError as error:
            raise RuntimeError(
                "device cuda: expected CuPy; it is not installed; try pip install 'npx-transformer[gpu13]' "
                "(CUDA 13) or 'npx-transformer[gpu12]' (CUDA 12), or --device cpu"
            ) from error
        if not cupy.cuda.is_available():
            raise RuntimeError("device cuda: expected an NVIDIA GPU and its driver; CuPy found none; try --device cpu")
        _cupy = cupy
    _device = name


def device() -> str:
    """The current device: "cpu" or "cuda"."""
    return _device


def synchronize() -> None:
    """Wait until the current device has done what it was told; a CPU always has."""
    if _device == "cuda":
        _current().cuda.get_current_stream().synchronize()


def array_module(*arrays: Any) -> Any:
    """The module the arrays belong to: cupy if one of them is a CuPy array, else numpy."""
    if _cupy is not None and any(isinstance(a, _cupy.ndarray) for a in arrays):
        return _cupy
    return np


def _current() -> Any:
    return np if _device == "cpu" else _cupy


def asarray(x: Any, dtype: Any = None) -> Any:
    """`x` as an array; lists and numbers become arrays on the current device, arrays stay where they are."""
    if _cupy is not None and isinstance(x, _cupy.ndarray):
        return x if dtype is None else x.astype(dtype, copy=False)
    return _current().asarray(x, dtype=dtype)


def from_host(x: np.ndarray) -> Any:
    """A NumPy array as an array on the current device."""
    return _current().asarray(x)


def to_host(x: Any) -> np.ndarray:
    """An array of either engine as a NumPy array (a copy only when it lay on a GPU)."""
    return x.get() if _cupy is not None and isinstance(x, _cupy.ndarray) else np.asarray(x)


def zeros(shape: Any, dtype: Any = np.float32) -> Any:
    """Zeros on the current device."""
    return _current().zeros(shape, dtype)


def ones(shape: Any, dtype: Any = np.float32) -> Any:
    """Ones on the current device."""
    return _current().ones(shape, dtype)


def empty(shape: Any, dtype: Any = np.float32) -> Any:
    """Uninitialised memory on the current device."""
    return _current().empty(shape, dtype)


def full(shape: Any, value: Any, dtype: Any = np.float32) -> Any:
    """`value` everywhere, on the current device."""
    return _current().full(shape, value, dtype)


def add_at(x: Any, index: Any, values: Any) -> None:
    """x[index] += values in place, where an element indexed several times receives every one of its values."""
    parts = index if isinstance(index, tuple) else (index,)
    if all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts):
        x[index] += values  # basic indices name each element at most once
    else:
        array_module(x).add.at(x, index, values)
