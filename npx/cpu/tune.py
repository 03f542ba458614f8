"""Process settings for speed: freed memory stays in the process, and BLAS runs on the calling thread only.

A training step allocates the same large arrays again and again. By default glibc serves each of them with a fresh
`mmap` and returns it on `free`, so the first pass over every temporary array waits for the operating system to zero its
pages. For a layer norm over 4096 x 512 this takes longer than the arithmetic. Keeping freed memory inside the process
avoids this cost.

BLAS libraries have their own threads, which wait for each other by spinning. When another process runs on
the machine, a spinning thread may occupy the very core needed by the thread that it is waiting for: on a machine with
two cores and one other busy process, a training step took seven times as long. BLAS is therefore limited to one thread,
and each matmul is split across the threads of `row_blocks.py`, which sleep while they wait. In a process that has not
been configured, matmuls are not split.

Call `npx.configure_process()` once before training or a search, as the command line, the Trainer and the benchmarks
do. With NPX_TUNE=0, the call does nothing.
"""

import ctypes
import sys

import numpy  # noqa: F401  loads the BLAS library that the thread limit applies to
from threadpoolctl import threadpool_limits

from npx.settings import read_setting

# glibc's malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


_is_configured = False


def is_configured() -> bool:
    """Return whether `configure_process` has applied its settings."""
    return _is_configured


def configure_process() -> None:
    """Limit BLAS to one thread and keep freed memory, for the rest of the process."""
    global _is_configured
    if _is_configured or not read_setting("NPX_TUNE"):
        return
    _is_configured = True
    threadpool_limits(1, user_api="blas")
    if sys.platform.startswith("linux"):
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Make glibc reuse freed memory instead of returning it to the system after each large array."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc: musl has no mallopt
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_TOP_PAD, 64 << 20)
    mallopt(M_ARENA_MAX, 1)
