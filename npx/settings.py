"""The environment variables of a process, each with what it may be. All are looked at when `npx` is imported.

    NPX_THREADS=2      threads that walk over blocks of rows; 0, the default, is one for each core
    NPX_KERNELS=check  which versions of the kernels run, see registry.py
    NPX_TUNE=0         `npx.configure_process()` leaves the process alone
    NPX_CUBLASLT=1     products of a GPU by cuBLASLt, bias and ReLU within them (npx/cuda/cublas.py)

An empty one is one that is not set. NPX_GPU_MEMORY is read where a GPU is found (array.py).
"""

import os
from functools import cache
from typing import Any, NamedTuple

from npx.ranges import Range

KERNEL_MODES = ("fast", "reference", "check", "emulate", "emulate+check")
THREAD_ORDERS = ("forward", "reverse", "random")


class Setting(NamedTuple):
    """What a variable may be, what it is where it is not set, what to try."""

    range: Range
    default: str
    attempt: str


SETTINGS = {
    "NPX_THREADS": Setting(Range(int, "[0, 1024]"), "0", "2, or 0 for all cores"),
    "NPX_KERNELS": Setting(Range(str, choices=KERNEL_MODES), "fast", "fast"),
    "NPX_TUNE": Setting(Range(int, "[0, 1]"), "1", "0 to leave the process alone"),
    "NPX_CUBLASLT": Setting(Range(int, "[0, 1]"), "0", "0"),
    "NPX_EMULATOR_ORDER": Setting(Range(str, choices=THREAD_ORDERS), "forward", "forward"),
}


def setting(name: str) -> Any:
    """The value of a variable; ValueError, one line, where it is none that it may be."""
    return _read(name, os.environ.get(name, "").strip())


@cache
def _read(name: str, text: str) -> Any:
    declared = SETTINGS[name]
    try:
        return declared.range.read(text or declared.default)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; try {name}={declared.attempt}") from None


def check_settings() -> None:
    """ValueError for the first variable that cannot be."""
    for name in SETTINGS:
        setting(name)
