"""Row blocks: how a fast NumPy version stays in cache and uses every core.

NumPy runs a formula as a row of passes over memory, on one core. Walking over blocks of rows that fit the
second-level cache makes all passes but the first one cheap, and since NumPy lets go of the interpreter lock inside
each pass, two threads can walk over different blocks. Blocks have a fixed size, so no result depends on the number
of threads: sums over rows are formed per block and added up in the order of the blocks.

Matrix products are split into panels in the same way, in a process that is tuned (`configure_process.py`); in any
other BLAS, which
has threads of its own there, gets them whole.

A mistake that begins with the second block (a tail that is lost, sums begun anew) would need arrays too large for a
test. So every block size passes through `block`, in a kernel of your own too, and `small_blocks` lets a check shrink
them all:

    step = npx.cpu.row_blocks.block(1024)              # 1024, or what a check says
    parts = npx.cpu.row_blocks.parallel_ranges(body, len(x), step)

    with npx.small_blocks(rows=2, threads=3):
        y = my_kernel(x)                     # blocks of 2 rows on 3 threads
"""

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from typing import Any

import numpy as np

from npx.cpu.tune import is_configured
from npx.scoped import Scoped
from npx.settings import setting

# Of one operand: smaller ones stay in cache better, larger ones hand over the interpreter less often.
BLOCK_BYTES = 1 << 19
INLINE_BYTES = 1 << 19  # below this, waking a thread costs more than it saves
INLINE_FLOPS = 4_000_000  # the same for a matrix product
PANEL_ROWS = 64, 2048  # at least and at most, of the part of a matrix product that one thread computes at a time

_walking = Scoped(False)  # whether this thread walks over blocks
_forced_rows: int | None = None  # by small_blocks, for all threads of the process
_forced_threads: int | None = None


def block(size: int) -> int:
    """The size of a block that would have `size` rows (or columns, classes, ...): `size`, unless a check shrinks it."""
    return size if _forced_rows is None else _forced_rows


@contextmanager
def small_blocks(rows: int | None = 1, threads: int = 2) -> Iterator[None]:
    """Within, every block size is `rows` (None: what it is elsewhere), and `threads` threads walk over blocks.

    However small the arrays are, no range runs `inline`, and the first ranges of all threads take turns (turns.py). For
    checks: it holds in every thread of the process.
    """
    global _forced_rows, _forced_threads
    if min(1 if rows is None else rows, threads) < 1:
        raise ValueError(f"small_blocks: expected rows and threads of at least 1; got {rows} and {threads}")
    before = _forced_rows, _forced_threads
    _forced_rows, _forced_threads = rows, threads
    try:
        yield
    finally:
        _forced_rows, _forced_threads = before


def cores() -> int:
    """How many threads walk over blocks: NPX_THREADS, else the cores that this process may use."""
    if _forced_threads is not None:
        return _forced_threads
    if chosen := setting("NPX_THREADS"):
        return chosen
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool(workers: int, pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="npx")


def map_blocks(body: Callable[[int, int], Any], rows: int, row_bytes: int) -> list[Any]:
    """`[body(start, stop), ...]` over blocks of the range(rows), run on all cores, results in the order of blocks.

    `row_bytes`: bytes of one row of the largest operand.
    """
    step = block(max(1, BLOCK_BYTES // max(1, row_bytes)))
    return parallel_ranges(body, rows, step, inline=rows * row_bytes < INLINE_BYTES)


def elementwise(formula: Callable[..., Any], *arrays: Any) -> Any:
    """formula(*arrays) of arrays of one shape, on all cores, where each value depends on those at its place alone.

    A CPU's arrays are given to it in blocks of rows, from any thread, a GPU's whole; numbers of 16 bits as float32,
    whose range holds squares and products of them. The result has the dtype of the first. ValueError for other shapes.
    """
    x = arrays[0]
    if others := [a.shape for a in arrays if a.shape != x.shape]:
        raise ValueError(f"elementwise: expected arrays of shape {x.shape} throughout; got one of {others[0]}")
    if not isinstance(x, np.ndarray) or x.ndim == 0:
        return formula(*map(_in_float32, arrays)).astype(x.dtype, copy=False)
    shape = (math.prod(x.shape[:-1]), x.shape[-1]) if x.ndim > 1 else (len(x), 1)
    flat = [a.reshape(shape) for a in arrays]
    y = np.empty(shape, x.dtype)

    def body(i: int, j: int) -> None:
        y[i:j] = formula(*(_in_float32(a[i:j]) for a in flat))

    map_blocks(body, len(y), y[:1].nbytes)
    return y.reshape(x.shape)


def _in_float32(x: Any) -> Any:
    """float16 and bfloat16 as float32, any other array itself."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def parallel_ranges(body: Callable[[int, int], Any], n: int, step: int, inline: bool = False) -> list[Any]:
    """`[body(i, min(i + step, n)) for i in range(0, n, step)]`, run on all cores unless `inline`.

    What a body maps in turn runs in its own thread: all others may be waiting for what that one waits for. Where one
    raises, no further range begins, and none runs any more when the error arrives.
    """
    starts = range(0, n, step)
    workers = min(cores(), len(starts))
    if workers <= 1 or (inline and _forced_threads is None) or _walking.get():
        return [body(i, min(i + step, n)) for i in starts]

    # Whoever is free takes the next range, so a core that another process slows down holds up one range at most.
    results: list[Any] = [None] * len(starts)
    left = iter(enumerate(starts))  # shared: the interpreter lock makes each `next` whole
    if _forced_threads is None:
        run = body
    else:
        from npx.testing.interleave import Turns

        run = Turns(body, workers)

    def walk() -> None:
        try:
            with _walking.set(True):
                for number, i in left:
                    results[number] = run(i, min(i + step, n))
        finally:
            for _ in left:  # there are some only where one has failed
                pass

    waiting = [_pool(workers - 1, os.getpid()).submit(copy_context().run, walk) for _ in range(workers - 1)]
    try:
        walk()
    finally:
        errors = [error for future in waiting if (error := future.exception())]  # waits for each
    if errors:
        raise errors[0]
    return results


def panel(n: int) -> int:
    """How many of n rows (or columns) of a matrix product one thread computes at a time: a quarter, within bounds.

    All of them in a process that is not tuned.
    """
    least, most = PANEL_ROWS
    return block(min(max(-(-n // 4), least), most) if is_configured() else max(1, n))


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """a @ b for matrices, on all cores."""
    y = np.empty((a.shape[0], b.shape[1]), a.dtype) if out is None else out
    products((a, b, y, False))
    return y


def products(*wanted: tuple[np.ndarray, np.ndarray, np.ndarray, bool]) -> None:
    """out = a @ b, or out += a @ b, for each (a, b, out, add), which do not depend on each other, on all cores.

    The work is cut into panels of the rows or columns of a result, whichever are more.
    """
    parts = []
    for a, b, out, add in wanted:
        m, n = out.shape
        step = panel(max(m, n))
        if m >= n:
            parts += [(a[i : i + step], b, out[i : i + step], add) for i in range(0, m, step)]
        else:
            parts += [(a, b[:, i : i + step], out[:, i : i + step], add) for i in range(0, n, step)]

    def body(i: int, j: int) -> None:
        left, right, result, add = parts[i]
        if add:
            result += np.matmul(left, right)
        else:
            np.matmul(left, right, out=result)

    flops = sum(2 * out.size * a.shape[1] for a, _, out, _ in wanted)
    parallel_ranges(body, len(parts), 1, inline=flops < INLINE_FLOPS)
