"""Settings of a process for speed: freed memory is kept for reuse, and BLAS computes on the thread that asks.

A training step allocates the same large arrays again and again. By default glibc serves each of them with a fresh
`mmap` and gives it back on `free`, so every pass over a temporary first pays the kernel for zeroed pages: on a layer
norm over 4096 x 512 more time than the arithmetic. Keeping freed memory inside the process removes that.

BLAS libraries bring threads of their own, which wait for each other by spinning. As soon as anything else runs on the
machine, a spinning thread holds the core that the thread it waits for needs: on two cores with one busy neighbour a
training step was seen to take seven times as long. So BLAS itself is kept to one thread, and each product is split over
the threads of `rows.py`, which sleep while they wait. In a process that is not tuned, products go to BLAS whole.

Whoever runs a training or a search calls `npx.configure_process()` once: the command line, the Trainer and the
benchmarks do.
`NPX_TUNE=0` leaves the process alone.
"""

import ctypes
import sys

import numpy  # noqa: F401  the limit below reaches the libraries that are loaded
from threadpoolctl import threadpool_limits

from npx.settings import setting

# glibc's malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


_tuned = False


def is_configured() -> bool:
    """Whether the settings were made."""
    return _tuned


def configure_process() -> None:
    """Make both settings, for the rest of the process."""
    global _tuned
    if _tuned or not setting("NPX_TUNE"):
        return
    _tuned = True
    threadpool_limits(1, user_api="blas")
    if sys.platform.startswith("linux"):
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the system after each large array."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc (musl has no mallopt)
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 << 20)
    mallopt(M_ARENA_MAX, 1)
