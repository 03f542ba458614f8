"""The kernels and matmuls that a block of code launches on a GPU: counts, bytes, floating-point operations and times.

    with recorded() as calls:
        step()
    for line in by_kernel(calls): ...

The bytes of a call are the bytes of its arrays, each read or written once, which is the minimum. With `timed`, an event
is recorded before and after each call; CuPy's own kernels run between the calls.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import npx
from npx.cuda import blas, launch
from npx.precision import dtype_named

IN_PLACE = {  # arguments that are both read and written
    "bias_relu": {"y"},
    "adam": {"p", "m", "v"},
    "accumulate": {"total"},
    "embedding_grad": {"total"},
}
WRITTEN_IF = {"relu_grad": ("masked", "y")}  # the kernel writes the first argument only if the second is not null
# Maps a kernel to (tables, rows): it accesses only as many rows of each table as the argument `rows` has.
GATHERED_ROWS = {
    "embedding": ({"table"}, "y"),
    "embedding_grad": ({"gtable", "total"}, "g"),
}
BUSY_MATMULS = 8192, 15  # size and number of the square matmuls that keep a device busy for about 20 ms


class Call(NamedTuple):
    """A kernel, or a matmul named "m x n x k NT" (NT: the layouts of its operands), and its events, or None."""

    name: str
    bytes: int
    flops: float
    events: tuple[Any, Any] | None

    @property
    def is_matmul(self) -> bool:
        return self.flops > 0

    def milliseconds(self) -> float:
        """Return the time between its events; the device must have finished."""
        import cupy

        return cupy.cuda.get_elapsed_time(*self.events) if self.events else 0.0


class Line(NamedTuple):
    """All calls with one name: count, bytes, floating-point operations and milliseconds."""

    name: str
    calls: int
    bytes: int
    flops: float
    ms: float

    def floor_ms(self, bytes_per_second: float, flops_per_second: float) -> float:
        """Return the minimum time for the bytes and operations at these rates."""
        return 1e3 * max(self.bytes / bytes_per_second, self.flops / flops_per_second)


@contextmanager
def recorded(timed: range | None = None) -> Iterator[list[Call]]:
    """Record the calls of the block, in order.

    Args:
        timed: the indices of the calls that get events. The device is kept busy before the first of them until all
            other calls are in its queue; otherwise waiting for the host would count as time between two events. The
            queue has 1,024 entries, and a timed call takes three of them.
    """
    calls: list[Call] = []
    function, gemm = launch._function, blas._gemm

    def record(name: str, nbytes: int, flops: float, run: Any) -> None:
        if timed is None or len(calls) not in timed:
            run()
            calls.append(Call(name, nbytes, flops, None))
            return
        import cupy

        if len(calls) == timed[0]:
            operand, out = (npx.zeros((BUSY_MATMULS[0], BUSY_MATMULS[0]), "float16") for _ in range(2))
            for _ in range(BUSY_MATMULS[1]):
                gemm(cupy, operand, operand, out, False, None, False)
        before, after = cupy.cuda.Event(), cupy.cuda.Event()
        before.record()
        run()
        after.record()
        calls.append(Call(name, nbytes, flops, (before, after)))

    def counting_function(source: str, kernel: str, *options: Any) -> Any:
        run = function(source, kernel, *options)

        def start(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            nbytes = kernel_bytes(source, kernel, args)
            record(kernel, nbytes, 0.0, lambda: run(grid, block, args, shared_mem=shared_mem))

        return start

    def counting_gemm(cupy: Any, a: Any, b: Any, out: Any, add: bool, *epilogue: Any) -> None:
        m, k = a.shape
        n = b.shape[1]
        nbytes = a.nbytes + b.nbytes + out.nbytes * (1 + add)
        record(product_name(a, b), nbytes, 2.0 * m * n * k, lambda: gemm(cupy, a, b, out, add, *epilogue))

    launch._function, blas._gemm = counting_function, counting_gemm
    try:
        yield calls
    finally:
        launch._function, blas._gemm = function, gemm


def product_name(a: Any, b: Any) -> str:
    """Return the sizes of a matmul and, for each operand, whether its rows (N) or its columns (T) are contiguous."""
    m, k = a.shape
    n = b.shape[1]
    kinds = ("T" if (blas.leading_dimension(x) or (False,))[0] else "N" for x in (a, b))
    return f"{m:,} x {n:,} x {k:,} {''.join(kinds)}"


@functools.cache
def parameters(source: str, kernel: str) -> tuple[tuple[str, bool], ...]:
    """Return the name of each parameter of a kernel, and whether it points to an output."""
    text = (launch.SOURCES / source).read_text()
    match = re.search(rf"\b{kernel}\(\s*([^)]*)\)\s*\{{", text)
    assert match, kernel
    declared = (part.split() for part in match[1].split(","))
    return tuple((words[-1], words[-2].endswith("*") and words[0] != "const") for words in declared)


def kernel_bytes(source: str, kernel: str, args: Any) -> int:
    """Return the bytes that a launch must transfer."""
    arrays = {
        name: (arg, 1 + (written and name in IN_PLACE.get(kernel, ())))
        for (name, written), arg in zip(parameters(source, kernel), args, strict=True)
        if hasattr(arg, "strides") and arg.ndim
    }
    sizes = {name: times * arg.nbytes for name, (arg, times) in arrays.items()}
    if kernel in WRITTEN_IF and WRITTEN_IF[kernel][1] not in sizes:
        del sizes[WRITTEN_IF[kernel][0]]
    if kernel in GATHERED_ROWS:
        tables, rows = GATHERED_ROWS[kernel]
        for name in tables & sizes.keys():
            table, times = arrays[name]
            sizes[name] = min(sizes[name], times * table.itemsize * arrays[rows][0].size)
    return sum(sizes.values())


def noise(rows: int, columns: int) -> Any:
    """Return a random bfloat16 matrix, because a GPU is faster on zeros."""
    values = npx.asarray(np.random.default_rng(0).normal(size=min(rows * columns, 1 << 20)).astype(np.float32))
    repeated = npx.tile(values, npx.ceil_div(rows * columns, values.size))[: rows * columns]
    return repeated.astype(dtype_named("bfloat16")).reshape(rows, columns)


def by_kernel(calls: list[Call]) -> list[Line]:
    """Return a line for each name, sorted by descending time, then bytes."""
    names = dict.fromkeys(call.name for call in calls)
    lines = []
    for name in names:
        named = [call for call in calls if call.name == name]
        ms = sum(call.milliseconds() for call in named)
        lines.append(Line(name, len(named), sum(c.bytes for c in named), sum(c.flops for c in named), ms))
    return sorted(lines, key=lambda line: (-line.ms, -line.bytes))
