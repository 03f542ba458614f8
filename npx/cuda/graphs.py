"""CUDA graphs: record the GPU work of a function once and repeat it with a single call.

    graph = CudaGraph(function, inputs)     # inputs: host arrays, which the function receives as device arrays
    result = graph(new_inputs)          # same shapes and dtypes; launches all kernels and matmuls at once

The Python function runs only once, while the graph is captured, and the GPU computes nothing during the capture. Each
call to the graph then repeats the same kernels with the same arguments. The function must therefore not wait for a
value, and it may read host data only through its inputs. All existing arrays that the function reads or writes must
keep their addresses. Call the function once without a graph first: this compiles kernels, uploads tables and
initializes libraries.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from npx import backend
from npx.backend import Array, array_module, ceil_div, free_memory, from_host
from npx.cuda import blas

ALIGNMENT = 256  # bytes, as for every CUDA allocation
GIB = 2**30


@functools.cache
def pool(cupy: Any) -> Any:
    """Return the memory pool for arrays created by graphs. It never frees memory.

    A graph writes to the memory of its arrays even after they are deleted, so this pool, unlike CuPy's default pool,
    must not return such blocks to the driver when memory is short. All graphs share the pool, because they run one
    after another. NPX_GPU_MEMORY limits the total of both pools.
    """
    default_pool = cupy.get_default_memory_pool()
    blocks: list[Any] = []
    n_bytes = 0
    limit = default_pool.get_limit()  # 0 means no limit

    def malloc(size: int) -> Any:
        nonlocal n_bytes
        free = limit - default_pool.total_bytes() - n_bytes
        if limit and size > free:
            raise MemoryError(
                f"CUDA graph: expected {size / GIB:.3f} GiB of free GPU memory; got {free / GIB:.3f} GiB; "
                "try a larger NPX_GPU_MEMORY"
            )
        blocks.append(cupy.cuda.Memory(size))
        n_bytes += size
        if limit:
            default_pool.set_limit(size=limit - n_bytes)
        return cupy.cuda.MemoryPointer(blocks[-1], 0)

    return cupy.cuda.MemoryPool(malloc)


@functools.cache
def capture_stream(cupy: Any) -> Any:
    """Return the stream that all captures share, because memory pools do not reuse memory across streams."""
    return cupy.cuda.Stream(non_blocking=True)


class CudaGraph:
    """A CUDA graph of the kernels that a function launches.

    Every call returns the arrays that the function returned during the capture. Their values are valid until another
    graph runs. Creating the first graph switches all matmuls to a cuBLAS handle that can be captured.

    Raises RuntimeError (the base of CuPy's errors) or MemoryError if the function cannot be captured; then nothing has
    been computed.
    """

    def __init__(self, function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> None:
        starts = np.cumsum([0, *(ceil_div(x.nbytes, ALIGNMENT) * ALIGNMENT for x in inputs)])
        self.host_buffer = np.zeros(int(starts[-1]), np.uint8)
        self.buffer = from_host(self.host_buffer)
        self._host_views = _views(self.host_buffer, starts, inputs)
        views = _views(self.buffer, starts, inputs)
        self._fill(inputs)
        cupy = array_module(self.buffer)
        blas.use_graph_handle(cupy)
        stream = capture_stream(cupy)
        free_memory()  # to leave more memory for the graph
        with stream, cupy.cuda.using_allocator(pool(cupy).malloc), _uploads_forbidden(cupy):
            stream.begin_capture()
            try:
                self.result = function(*views)
            except BaseException:
                with suppress(RuntimeError):  # CuPy reports the failed capture a second time here
                    stream.end_capture()
                raise
            self.graph = stream.end_capture()

    def __call__(self, inputs: Sequence[np.ndarray]) -> Any:
        self._fill(inputs)
        self.graph.launch()
        return self.result

    def _fill(self, inputs: Sequence[np.ndarray]) -> None:
        """Upload all inputs at once."""
        for view, x in zip(self._host_views, inputs, strict=True):
            view[...] = x
        self.buffer[...] = from_host(self.host_buffer)


def _views(buffer: Array, starts: Any, inputs: Sequence[np.ndarray]) -> list[Array]:
    """Return, for each input, a view of the buffer from the input's start, with the input's shape and dtype."""
    parts = [buffer[start : start + x.nbytes] for start, x in zip(starts, inputs, strict=False)]
    return [part.view(x.dtype).reshape(x.shape) for part, x in zip(parts, inputs, strict=True)]


@contextmanager
def _uploads_forbidden(cupy: Any) -> Iterator[None]:
    """Reject uploads, even implicit ones (a list used as an index): a graph would later read freed host memory."""

    def reject(size: int) -> Any:
        raise RuntimeError(backend.UPLOAD_ERROR)

    backend.uploads_allowed = False
    cupy.cuda.set_pinned_memory_allocator(reject)
    try:
        yield
    finally:
        cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
        backend.uploads_allowed = True
