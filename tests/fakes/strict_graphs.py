"""Fake streams, memory pools and CUDA graphs: captured work is recorded and runs when the graph is launched.

The fake rejects operations that a real capture rejects (waiting, CuPy's cuBLAS, cuBLAS without its own workspace). It
also rejects operations that a real capture accepts but that would give wrong results later (uploads, whose host memory
is freed, and arrays outside the graph's pool). A launch checks that all arrays from before the capture still exist, and
overwrites the pool so that no value survives a launch.
"""

import functools
import gc
import weakref
from contextlib import contextmanager

import numpy as np

NULL_ALLOCATOR = object()
CAPTURING = "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"


class State:
    """The current streams, allocator and capture. `launches` counts graph launches."""

    def __init__(self):
        self.streams = [Stream(null=True)]
        self.allocator = NULL_ALLOCATOR
        self.recording = None  # the graph that is being captured
        self.graphs = weakref.WeakSet()
        self.launches = 0
        self.capturing = None  # the stream of all captures
        self.pinned = pinned  # the allocator of host memory for uploads within CuPy


class Stream:
    def __init__(self, null=False, non_blocking=False):
        assert null or non_blocking, "a capture on a stream that waits for the null stream"
        self.ptr = 0 if null else id(self)

    def __enter__(self):
        STATE.streams.append(self)
        return self

    def __exit__(self, *_):
        STATE.streams.pop()

    def synchronize(self):
        forbidden()

    def begin_capture(self):
        assert self.ptr and STATE.streams[-1] is self and STATE.recording is None
        assert STATE.capturing in (None, self), "graphs captured on different streams cannot share a pool"
        STATE.capturing = self
        STATE.recording = Graph()

    def end_capture(self):
        graph = STATE.recording
        STATE.recording = None
        if graph.broken:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        STATE.graphs.add(graph)
        return graph


class MemoryPool:
    """A memory pool that gets its memory from `allocator`."""

    def __init__(self, allocator=None):
        self.allocator = allocator

    def malloc(self, size):
        raise AssertionError("the fake's arrays are NumPy's")


class Memory:
    """A block of GPU memory."""

    def __init__(self, size):
        self.size = size


def pinned(size):
    assert STATE.recording is None, "an upload during the capture of a graph, from memory that will be freed"


@contextmanager
def using_allocator(allocator):
    previous, STATE.allocator = STATE.allocator, allocator
    try:
        yield
    finally:
        STATE.allocator = previous


class Graph:
    """Recorded work.

    Attributes:
        created: arrays that the work creates.
        existing: weak references to all arrays that exist when the capture begins.
        used: weak references to the existing arrays that it uses.
    """

    def __init__(self):
        self.work = []
        self.created = []
        self.used = {}
        self.broken = False
        arrays = (x.held for x in gc.get_objects() if type(x).__name__ == "ndarray" and hasattr(type(x), "held"))
        self.existing = [weakref.ref(owner(x)) for x in arrays]

    def record_new(self, array):
        """Register an array that the captured work creates, and overwrite its values."""
        assert STATE.allocator is not NULL_ALLOCATOR, "an array of a graph outside its pool"
        self.created.append(owner(array))
        poison(array)

    def alias_arrays(self, value):
        """Replace arrays with aliases that, like addresses, do not keep them alive."""
        if isinstance(value, np.ndarray):
            base = owner(value)
            if any(base is x for x in self.created):
                return value
            self.used[id(base)] = weakref.ref(base), (base.shape, base.dtype)
            return aliased(value)
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.alias_arrays, value))
        return {k: self.alias_arrays(v) for k, v in value.items()} if isinstance(value, dict) else value

    def address(self, pointer):
        """Do the same as `alias_arrays` for a plain address."""
        for array in (*self.created, *(x for ref in self.existing if (x := ref()) is not None)):
            start = array.ctypes.data
            if start <= pointer < start + max(array.nbytes, 1):
                self.alias_arrays(array)
                return
        raise AssertionError("a matmul on memory outside all arrays")

    def launch(self, stream=None):
        freed = [array for ref, array in self.used.values() if ref() is None]
        assert STATE.recording is None and not freed, f"a graph uses memory that was freed: {freed}"
        STATE.launches += 1
        for graph in STATE.graphs:  # all graphs share a pool
            for array in graph.created:
                poison(array)
        for work in self.work:
            work()


def owner(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def aliased(x):
    import ctypes

    if not x.size:
        return x.copy()
    nbytes = sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)) + x.itemsize
    memory = (ctypes.c_char * nbytes).from_address(x.ctypes.data)
    return np.ndarray(x.shape, x.dtype, memory, strides=x.strides)


def poison(array):
    array.fill(np.nan if array.dtype.kind not in "biu" else 90)


def forbidden():
    """Raise an error for a wait during a capture, because a wait invalidates the capture."""
    if STATE.recording:
        STATE.recording.broken = True
        raise RuntimeError(CAPTURING)


def launched(function, *args):
    """Run a function that writes to its arguments, or record it during a capture."""
    if STATE.recording is None:
        return function(*args)
    return STATE.recording.work.append(functools.partial(function, *STATE.recording.alias_arrays(args)))


def computed(function, args, kwargs, writes=False):
    """Run a NumPy function, or record it during a capture; with `writes` it only writes to its arguments."""
    graph = STATE.recording
    if graph is None:
        return function(*args, **kwargs)
    call = functools.partial(function, *graph.alias_arrays(args), **graph.alias_arrays(kwargs))
    if writes:
        graph.work.append(call)
        return None
    with np.errstate(all="ignore"):
        result = function(*args, **kwargs)  # the right shape, but meaningless values
    if isinstance(result, tuple) or any(np.may_share_memory(result, x) for x in flat((args, kwargs))):
        return result
    result = np.array(result)
    graph.record_new(result)
    if function is not np.empty:
        graph.work.append(lambda: np.copyto(result, call()))
    return result


def flat(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from flat(part)


STATE = State()
