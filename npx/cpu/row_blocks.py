"""Row blocks: cache-sized blocks of rows, computed on all cores.

NumPy evaluates a formula in several passes over memory, on one core. If all passes run over one block of rows before
the next block starts, and a block fits in the second-level cache, only the first pass reads from memory. NumPy releases
the GIL during a pass, so several threads can compute different blocks. Block sizes are fixed, and sums over rows are
computed per block and added in the order of the blocks, so no result depends on the number of threads.

Once the process is configured (`tune.py`), matmuls are split into panels in the same way; otherwise each matmul is a
single call to BLAS, which then uses its own threads.

Some bugs appear only when an array has several blocks. For example, the last rows are not computed, or each block
overwrites the sum of the previous ones. To find such bugs without large test arrays, pass every block size through
`overridable_size`, in your own kernels too. In a test, `small_blocks` then shrinks all blocks:

    step = npx.cpu.row_blocks.overridable_size(1024)  # 1024, unless a test sets a smaller size
    parts = npx.cpu.row_blocks.parallel_for(body, len(x), step)

    with npx.small_blocks(rows=2, threads=3):
        y = my_kernel(x)                              # blocks of 2 rows on 3 threads
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from npx.backend import array_module, ceil_div, check_floating, has_16_bits
from npx.cpu.tune import is_configured
from npx.cpu.workers import make_offers
from npx.scoped import ScopedValue
from npx.settings import read_setting

# Bytes of one operand in a block. Small blocks stay in cache; large blocks cause fewer hand-offs to threads.
BLOCK_BYTES = 1 << 19
INLINE_BYTES = 1 << 19  # below this size, waking a thread costs more time than it saves
INLINE_FLOPS = 4_000_000  # a matmul with fewer operations runs on one thread, for the same reason
SMALL_FLOPS = 256_000_000  # below this size (1 to 3 ms on one thread), a matmul runs faster in two parts than in four
PANEL_FLOPS = 16_000_000  # minimum operations per panel, except in a matmul split into two panels
PANEL_ROWS = 64, 2048  # minimum and maximum rows (or columns) of a matmul that one thread computes at a time

_in_worker = ScopedValue(False)  # whether this thread is computing ranges
_forced_rows: int | None = None  # set by small_blocks, for all threads of the process
_forced_threads: int | None = None


def overridable_size(size: int) -> int:
    """Return `size` (rows, columns or classes per block), or the smaller size that `small_blocks` sets."""
    return size if _forced_rows is None else _forced_rows


@contextmanager
def small_blocks(rows: int | None = 1, threads: int = 2) -> Iterator[None]:
    """Set every block size to `rows` (None: unchanged) and use `threads` threads within the `with` block.

    Use this only in tests: it affects every thread of the process. Even the smallest arrays are split among the
    threads, and the first ranges of the threads are interleaved (npx/testing/interleave.py).
    """
    global _forced_rows, _forced_threads
    if min(1 if rows is None else rows, threads) < 1:
        raise ValueError(f"small_blocks: expected at least 1 row and 1 thread; got {rows} and {threads}")
    before = _forced_rows, _forced_threads
    _forced_rows, _forced_threads = rows, threads
    try:
        yield
    finally:
        _forced_rows, _forced_threads = before


def thread_count() -> int:
    """Return the number of threads that compute blocks: NPX_THREADS, or the number of cores available."""
    if _forced_threads is not None:
        return _forced_threads
    if threads := read_setting("NPX_THREADS"):
        return threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_blocks(body: Callable[[int, int], Any], rows: int, row_bytes: int) -> list[Any]:
    """Call body(start, stop) for blocks of range(rows) on all cores; return the results in the order of the blocks.

    Args:
        row_bytes: bytes of one row of the largest operand.
    """
    return parallel_for(body, rows, block_rows(rows, row_bytes), inline=rows * row_bytes < INLINE_BYTES)


def block_rows(rows: int, row_bytes: int) -> int:
    """Return the number of rows in a block of at most about BLOCK_BYTES.

    Work that is large enough for several threads is split into an even number of equal blocks, if it has enough rows.
    With three blocks, for example, one of two threads would compute two.
    """
    total = rows * row_bytes
    pairs = ceil_div(total, 2 * BLOCK_BYTES) if total >= INLINE_BYTES else 0
    return overridable_size(max(1, ceil_div(rows, max(1, 2 * pairs))))


def elementwise(formula: Callable[..., Any], *arrays: Any, outputs: int = 1, in_place: bool = False) -> Any:
    """Compute formula(*arrays) on all cores, for an elementwise formula and arrays of the same shape.

    On a CPU the formula receives blocks of rows, in several threads; on a GPU it receives the complete arrays. 16-bit
    floats are passed as float32, whose range holds their squares and products. The result has the dtype of the first
    array; a formula with several `outputs` returns them as a tuple. Raises ValueError if the shapes differ or if the
    first array has no floating-point dtype.

    Args:
        in_place: whether the formula takes an additional array for each output and writes the output there instead of
            returning it, which saves a pass over each output.
    """
    x = arrays[0]
    check_floating("elementwise", x)
    if mismatches := [a.shape for a in arrays if a.shape != x.shape]:
        raise ValueError(f"elementwise: expected all arrays to have shape {x.shape}; got {mismatches[0]}")

    def values(blocks: Iterable[Any], results: list[Any]) -> Any:
        blocks = [_promote_16_bit(block) for block in blocks]
        if not in_place:
            return formula(*blocks) if outputs > 1 else (formula(*blocks),)
        if not results or results[0].dtype != blocks[0].dtype:
            results = [array_module(x).empty_like(blocks[0]) for _ in range(outputs)]
        formula(*blocks, *results)
        return results

    if not isinstance(x, np.ndarray) or x.ndim == 0:
        results = [value.astype(x.dtype, copy=False) for value in values(arrays, [])]
    else:
        shape = (math.prod(x.shape[:-1]), x.shape[-1]) if x.ndim > 1 else (len(x), 1)
        flat = [a.reshape(shape) for a in arrays]
        results = [np.empty(shape, x.dtype) for _ in range(outputs)]

        def body(i: int, j: int) -> None:
            blocks = [y[i:j] for y in results]
            for y, value in zip(blocks, values([a[i:j] for a in flat], blocks), strict=True):
                if y is not value:
                    y[...] = value

        # In-place formulas need less memory, so blocks may be larger: fewer, longer NumPy calls wait less for the GIL.
        map_blocks(body, shape[0], results[0][:1].nbytes // (2 if in_place else 1))
        results = [y.reshape(x.shape) for y in results]
    return tuple(results) if outputs > 1 else results[0]


def _promote_16_bit(x: Any) -> Any:
    """Convert float16 and bfloat16 to float32; return any other array itself."""
    return x.astype(np.float32) if has_16_bits(x.dtype) else x


def parallel_for(body: Callable[[int, int], Any], n: int, step: int, inline: bool = False) -> list[Any]:
    """Compute `[body(i, min(i + step, n)) for i in range(0, n, step)]`, on all cores unless `inline`.

    A nested call runs in the calling worker's thread, because waiting for the other workers could deadlock. If a body
    raises, no further range starts, and the error is raised here once all running ranges have ended.
    """
    starts = range(0, n, step)
    may_split = len(starts) > 1 and not (inline and _forced_threads is None) and not _in_worker.get()
    workers = min(thread_count(), len(starts)) if may_split else 1
    if workers <= 1:
        return [body(i, min(i + step, n)) for i in starts]

    # Each free thread takes the next range, so a core slowed by another process delays at most one range.
    results: list[Any] = [None] * len(starts)
    remaining = iter(enumerate(starts))  # shared by the threads: the GIL makes each `next` atomic
    if _forced_threads is None:
        run = body
    else:
        from npx.testing.interleave import Turns

        run = Turns(body, workers)

    def work() -> None:
        try:
            with _in_worker.override(True):
                for number, i in remaining:
                    results[number] = run(i, min(i + step, n))
        finally:
            for _ in remaining:  # after a failure, exhaust the iterator so that no other thread starts another range
                pass

    offers = make_offers(work, workers - 1)
    try:
        work()
    finally:
        errors = [error for offer in offers if (error := offer.join())]
    if errors:
        raise errors[0]
    return results


def row_sums(x: np.ndarray) -> np.ndarray:
    """Return the sums (R,) of the rows of x (R, D), computed with a matmul, which is faster than `x.sum`.

    Some BLAS kernels compute with uninitialized padding, which can raise "invalid"; it does not affect their results.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return x @ np.ones(x.shape[1], x.dtype)


def panel_size(n: int, panels: int = 4) -> int:
    """Return how many of the n rows (or columns) of a matmul a thread computes at a time.

    In a configured process, the result is n / panels, limited to the range PANEL_ROWS; otherwise, it is n.
    """
    smallest, largest = PANEL_ROWS
    return overridable_size(min(max(ceil_div(n, panels), smallest), largest) if is_configured() else max(1, n))


def panel_count(flops: int) -> int:
    """Return the number of panels of a matmul: one if it is small enough for one thread, otherwise two to four.

    More panels would cost time, because BLAS repacks the unsplit operand for each panel. The number depends only on the
    size of the matmul, not on the number of threads.
    """
    return 1 if flops < INLINE_FLOPS else min(max(2, flops // PANEL_FLOPS), 4)


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Compute the product a @ b of two matrices on all cores."""
    y = np.empty((a.shape[0], b.shape[1]), a.dtype) if out is None else out
    parallel_matmuls((a, b, y, False))
    return y


def parallel_matmuls(*matmuls: tuple[np.ndarray, np.ndarray, np.ndarray, bool]) -> None:
    """Compute several independent matmuls (a, b, out, add) on all cores: out = a @ b, or out += a @ b if `add`.

    Each result is split along its rows or its columns, whichever are more numerous: into `panel_count` parts, or into
    halves if there are several small matmuls.
    """
    parts = []
    for a, b, out, add in matmuls:
        m, n = out.shape
        are_halves = len(matmuls) > 1 and 2 * out.size * a.shape[1] < SMALL_FLOPS
        step = panel_size(max(m, n), 2 if are_halves else panel_count(2 * out.size * a.shape[1]))
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

    flops = sum(2 * out.size * a.shape[1] for a, _, out, _ in matmuls)
    parallel_for(body, len(parts), 1, inline=flops < INLINE_FLOPS)
