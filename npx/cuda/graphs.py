"""CUDA graphs: what a function asks of a GPU is noted once, and asked again by one call.

    graph = Graph(function, inputs)     # inputs: host arrays, which reach the function as arrays on the device
    result = graph(others)              # of the same shapes and dtypes: all kernels and products, asked for at once

Python runs once and nothing is computed while it does; from then on the GPU repeats the same kernels with the same
arguments. So the function may not wait for a number, nor bring one from the host but through its inputs, and all arrays
that were there before and that it reads or writes have to stay where they are. Run it before without a graph: kernels
are compiled then, tables uploaded, and libraries have made their choices.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from npx import array
from npx.array import Array, array_module, free_memory, from_host
from npx.cuda import blas

ALIGNMENT = 256  # bytes, as of every allocation


@functools.cache
def pool(cupy: Any) -> Any:
    """Where arrays of graphs lie, and nothing else: a graph writes to them whenever it runs, alive or not.

    All graphs share it, as they run one after another. Where memory is short, CuPy's pool gives back what no array
    holds; graphs still write there, so all of it is kept. NPX_GPU_MEMORY limits it together with all other arrays.
    """
    others, kept, held = cupy.get_default_memory_pool(), [], 0
    limit = others.get_limit()  # 0: none

    def malloc(size: int) -> Any:
        nonlocal held
        if limit and others.total_bytes() + held + size > limit:
            raise MemoryError(f"{size} bytes for a graph beside {others.total_bytes() + held} of {limit}")
        kept.append(cupy.cuda.Memory(size))
        held += size
        if limit:
            others.set_limit(size=limit - held)
        return cupy.cuda.MemoryPointer(kept[-1], 0)

    return cupy.cuda.MemoryPool(malloc)


@functools.cache
def stream_of_all(cupy: Any) -> Any:
    """The stream that graphs are captured on: a pool gives no stream what was another's."""
    return cupy.cuda.Stream(non_blocking=True)


class Graph:
    """A function's kernels as a CUDA graph.

    Calls return what the function returned, the same arrays each time, whose numbers last until another graph runs.
    Products are no longer asked of CuPy's cuBLAS from the first one on. Raises RuntimeError (CuPy's errors are such) or
    MemoryError where the function cannot be captured; nothing of it has been computed then.
    """

    def __init__(self, function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> None:
        starts = np.cumsum([0, *(-(-x.nbytes // ALIGNMENT) * ALIGNMENT for x in inputs)])
        self.host = np.zeros(int(starts[-1]), np.uint8)
        self.buffer = from_host(self.host)
        self._host_views, views = ([_view(whole, i, x) for i, x in zip(starts, inputs, strict=False)]
                                   for whole in (self.host, self.buffer))  # fmt: skip
        self._fill(inputs)
        cupy = array_module(self.buffer)
        blas.use_own_handle(cupy)
        stream = stream_of_all(cupy)
        free_memory()  # what no array holds may be the graph's
        with stream, cupy.cuda.using_allocator(pool(cupy).malloc), _nothing_from_the_host(cupy):
            stream.begin_capture()
            try:
                self.result = function(*views)
            except BaseException:
                with suppress(RuntimeError):  # which says again that the capture failed
                    stream.end_capture()
                raise
            self.graph = stream.end_capture()

    def __call__(self, inputs: Sequence[np.ndarray]) -> Any:
        self._fill(inputs)
        self.graph.launch()
        return self.result

    def _fill(self, inputs: Sequence[np.ndarray]) -> None:
        """One upload for all of them."""
        for view, x in zip(self._host_views, inputs, strict=True):
            view[...] = x
        self.buffer[...] = from_host(self.host)


def _view(whole: Array, start: int, like: np.ndarray) -> Array:
    return whole[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


@contextmanager
def _nothing_from_the_host(cupy: Any) -> Iterator[None]:
    """Uploads are refused, CuPy's own too (a list as an index): a graph would read memory of the host that is gone."""

    def refused(size: int) -> Any:
        raise RuntimeError("CUDA graph: expected a step whose numbers are on the device; got one that uploads some")

    array.uploads = False
    cupy.cuda.set_pinned_memory_allocator(refused)
    try:
        yield
    finally:
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
        array.uploads = True
