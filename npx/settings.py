"""The environment variables and their valid values. Importing `npx` checks the variables.

    NPX_THREADS=2        number of threads that compute row blocks; 0, the default, means one per core
    NPX_KERNELS=check    which versions of the kernels run (npx/dispatch.py)
    NPX_TUNE=0           makes `npx.configure_process()` do nothing
    NPX_CUBLASLT=1       runs matmuls on a GPU with cuBLASLt, which fuses bias and ReLU (npx/cuda/cublas.py)
    NPX_KILL_LAUNCHER=1  after an abort, also ends an mpirun that hangs (npx/distributed/launcher_cleanup.py)

An empty variable counts as unset. NPX_GPU_MEMORY is read when a GPU is first used (npx/backend.py).
"""

import os
from functools import cache
from typing import Any, NamedTuple

from npx.ranges import Range

KERNEL_MODES = ("fast", "reference", "check", "emulate", "emulate+check")
THREAD_ORDERS = ("forward", "reverse", "random")


class Setting(NamedTuple):
    """The valid values of a variable, its default, and the value that error messages suggest."""

    range: Range
    default: str
    advice: str


SETTINGS = {
    "NPX_THREADS": Setting(Range(int, "[0, 1024]"), "0", "2, or 0 for all cores"),
    "NPX_KERNELS": Setting(Range(str, choices=KERNEL_MODES), "fast", "fast"),
    "NPX_TUNE": Setting(Range(int, "[0, 1]"), "1", "0 to leave the process unchanged"),
    "NPX_CUBLASLT": Setting(Range(int, "[0, 1]"), "0", "0"),
    "NPX_KILL_LAUNCHER": Setting(Range(int, "[0, 1]"), "0", "0"),
    "NPX_EMULATOR_ORDER": Setting(Range(str, choices=THREAD_ORDERS), "forward", "forward"),
}


def read_setting(name: str) -> Any:
    """Return the value of a variable. Raises ValueError, with a one-line message, for an invalid value."""
    return _read(name, os.environ.get(name, "").strip())


@cache
def _read(name: str, text: str) -> Any:
    declared = SETTINGS[name]
    try:
        return declared.range.parse(text or declared.default)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; try {name}={declared.advice}") from None


def check_settings() -> None:
    """Raise ValueError for the first variable with an invalid value."""
    for name in SETTINGS:
        read_setting(name)
