"""Every kernel and product that a block of code asks of a GPU: how often, for how many bytes and operations, how long.

    with recorded() as calls:
        step()
    for line in by_kernel(calls): ...

Bytes are those of the arrays a kernel is given, each read or written once: what it cannot do with less. With `timed` an
event stands before and behind each; CuPy's own kernels lie between them.
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
from npx.precision import dtype

IN_PLACE = {  # read as well as written
    "bias_relu": {"y"},
    "adam": {"p", "m", "v"},
    "accumulate": {"total"},
    "embedding_grad": {"total"},
}
WITH = {"relu_grad": ("masked", "y")}  # the first is left alone where there is no second
GATHERED = {"embedding": ({"table"}, "y"), "embedding_grad": ({"gtable", "total"}, "g")}  # of as many rows as the other
BUSY = 8192, 15  # rows and number of the square products that keep a device busy for some 20 ms


class Call(NamedTuple):
    """A kernel, or a product "m x n x k, NT" (which operands are transposed), and its events, or None."""

    name: str
    bytes: int
    flops: float
    events: tuple[Any, Any] | None

    @property
    def is_product(self) -> bool:
        return self.flops > 0

    def milliseconds(self) -> float:
        """Between its events; the device has to be done."""
        import cupy

        return cupy.cuda.get_elapsed_time(*self.events) if self.events else 0.0


class Line(NamedTuple):
    """All calls of one name: their number, bytes, operations and milliseconds."""

    name: str
    calls: int
    bytes: int
    flops: float
    ms: float

    def floor_ms(self, bytes_per_second: float, flops_per_second: float) -> float:
        """What bytes and operations take at these rates."""
        return 1e3 * max(self.bytes / bytes_per_second, self.flops / flops_per_second)


@contextmanager
def recorded(timed: range | None = None) -> Iterator[list[Call]]:
    """The calls of the block, in order.

    timed: the numbers of those that get events. In front of the first of them the device is kept busy, so that it finds
    all others in its queue: else it would wait for the host, which would count as time between two events. The queue
    has 1,024 places, of which a timed call takes three.
    """
    calls: list[Call] = []
    function, gemm = launch._function, blas._gemm

    def called(name: str, nbytes: int, flops: float, run: Any) -> None:
        if timed is None or len(calls) not in timed:
            run()
            calls.append(Call(name, nbytes, flops, None))
            return
        import cupy

        if len(calls) == timed[0]:
            factor, product = (npx.zeros((BUSY[0], BUSY[0]), "float16") for _ in range(2))
            for _ in range(BUSY[1]):
                gemm(cupy, factor, factor, product, False, None, False)
        before, after = cupy.cuda.Event(), cupy.cuda.Event()
        before.record()
        run()
        after.record()
        calls.append(Call(name, nbytes, flops, (before, after)))

    def counting_function(source: str, kernel: str, *how: Any) -> Any:
        run = function(source, kernel, *how)

        def start(grid: Any, block: Any, args: Any, shared_mem: int = 0) -> None:
            nbytes = kernel_bytes(source, kernel, args)
            called(kernel, nbytes, 0.0, lambda: run(grid, block, args, shared_mem=shared_mem))

        return start

    def counting_gemm(cupy: Any, a: Any, b: Any, out: Any, add: bool, *epilogue: Any) -> None:
        (m, k), n = a.shape, b.shape[1]
        nbytes = a.nbytes + b.nbytes + out.nbytes * (1 + add)
        called(product_name(a, b), nbytes, 2.0 * m * n * k, lambda: gemm(cupy, a, b, out, add, *epilogue))

    launch._function, blas._gemm = counting_function, counting_gemm
    try:
        yield calls
    finally:
        launch._function, blas._gemm = function, gemm


def product_name(a: Any, b: Any) -> str:
    """Sizes and, for each factor, whether its rows (N) or its columns (T) are contiguous."""
    (m, k), n = a.shape, b.shape[1]
    kinds = ("T" if (blas.leading_dimension(x) or (False,))[0] else "N" for x in (a, b))
    return f"{m:,} x {n:,} x {k:,} {''.join(kinds)}"


@functools.cache
def parameters(source: str, kernel: str) -> tuple[tuple[str, bool], ...]:
    """Name of each parameter of a kernel, and whether it points to what is written."""
    text = (launch.SOURCES / source).read_text()
    found = re.search(rf"\b{kernel}\(\s*([^)]*)\)\s*\{{", text)
    assert found, kernel
    declared = (part.split() for part in found[1].split(","))
    return tuple((words[-1], words[-2].endswith("*") and words[0] != "const") for words in declared)


def kernel_bytes(source: str, kernel: str, args: Any) -> int:
    """Bytes that a launch has to move."""
    arrays = {
        name: (arg, 1 + (written and name in IN_PLACE.get(kernel, ())))
        for (name, written), arg in zip(parameters(source, kernel), args, strict=True)
        if hasattr(arg, "strides") and arg.ndim
    }
    sizes = {name: times * arg.nbytes for name, (arg, times) in arrays.items()}
    if kernel in WITH and WITH[kernel][1] not in sizes:
        del sizes[WITH[kernel][0]]
    if kernel in GATHERED:
        tables, rows = GATHERED[kernel]
        for name in tables & sizes.keys():
            table, times = arrays[name]
            sizes[name] = min(sizes[name], times * table.itemsize * arrays[rows][0].size)
    return sum(sizes.values())


def noise(rows: int, columns: int) -> Any:
    """A matrix of bfloat16 to compute with: a GPU is faster on zeros."""
    values = npx.asarray(np.random.default_rng(0).normal(size=min(rows * columns, 1 << 20)).astype(np.float32))
    repeated = npx.tile(values, -(-rows * columns // values.size))[: rows * columns]
    return repeated.astype(dtype("bfloat16")).reshape(rows, columns)


def by_kernel(calls: list[Call]) -> list[Line]:
    """A line for each name, the longest first, then the one with the most bytes."""
    names = dict.fromkeys(call.name for call in calls)
    lines = []
    for name in names:
        own = [call for call in calls if call.name == name]
        ms = sum(call.milliseconds() for call in own)
        lines.append(Line(name, len(own), sum(c.bytes for c in own), sum(c.flops for c in own), ms))
    return sorted(lines, key=lambda line: (-line.ms, -line.bytes))
