"""Streams, memory pools and CUDA graphs of the stand-in for CuPy: what is captured is noted, and runs when launched.

Refused is what a capture refuses: to wait, CuPy's cuBLAS, a library without its workspace; and what it lets pass and
computes wrong: an upload, whose host memory is gone later, and an array that is not of the graph's own pool. A launch
finds out whether an array from before the capture is gone, and leaves no number from launch to launch in the pool.
"""

import functools
import gc
import weakref
from contextlib import contextmanager

import numpy as np

NULL_ALLOCATOR = object()
CAPTURING = "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing"


class State:
    """What is current. `launches`: of graphs."""

    def __init__(self):
        self.streams, self.allocator, self.recording = [Stream(null=True)], NULL_ALLOCATOR, None
        self.graphs, self.launches, self.capturing = weakref.WeakSet(), 0, None
        self.pinned = pinned  # what gives memory of the host for uploads within CuPy


class Stream:
    def __init__(self, null=False, non_blocking=False):
        assert null or non_blocking, "a capture in one that waits for the null stream"
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
        assert STATE.capturing in (None, self), "a pool gives no stream what was another's: graphs that share nothing"
        STATE.capturing = self
        STATE.recording = Graph()

    def end_capture(self):
        graph, STATE.recording = STATE.recording, None
        if graph.broken:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        STATE.graphs.add(graph)
        return graph


class MemoryPool:
    """`allocator`: gives memory where the pool has none; when that refuses, all that is free goes back to the GPU."""

    def __init__(self, allocator=None):
        self.allocator = allocator

    def malloc(self, size):
        raise AssertionError("the stand-in's arrays are NumPy's")


class Memory:
    """Memory of the GPU, which has it until this is gone."""

    def __init__(self, size):
        self.size = size


def pinned(size):
    assert STATE.recording is None, "an upload in a graph, from memory that will be gone"


@contextmanager
def using_allocator(allocator):
    before, STATE.allocator = STATE.allocator, allocator
    try:
        yield
    finally:
        STATE.allocator = before


class Graph:
    """Noted work. `own`: arrays made within; `before`: weak references to those that were there and are used."""

    def __init__(self):
        self.work, self.own, self.before, self.broken = [], [], {}, False
        arrays = (x.held for x in gc.get_objects() if type(x).__name__ == "ndarray" and hasattr(type(x), "held"))
        self.known = [weakref.ref(owner(x)) for x in arrays]

    def made(self, array):
        """An array that the captured work makes, its numbers still unknown."""
        assert STATE.allocator is not NULL_ALLOCATOR, "an array of a graph outside of its pool"
        self.own.append(owner(array))
        poison(array)

    def pinned(self, value):
        """Arrays as what a kernel is given: addresses, which keep nothing alive."""
        if isinstance(value, np.ndarray):
            whole = owner(value)
            if any(whole is x for x in self.own):
                return value
            self.before[id(whole)] = weakref.ref(whole), (whole.shape, whole.dtype)
            return aliased(value)
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.pinned, value))
        return {k: self.pinned(v) for k, v in value.items()} if isinstance(value, dict) else value

    def address(self, pointer):
        """The same for a bare address."""
        for whole in (*self.own, *(x for ref in self.known if (x := ref()) is not None)):
            start = whole.ctypes.data
            if start <= pointer < start + max(whole.nbytes, 1):
                self.pinned(whole)
                return
        raise AssertionError("a product of memory that no array has")

    def launch(self, stream=None):
        gone = [what for ref, what in self.before.values() if ref() is None]
        assert STATE.recording is None and not gone, f"a graph reads or writes memory that was given back: {gone}"
        STATE.launches += 1
        for graph in STATE.graphs:  # they share a pool
            for array in graph.own:
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
    """A wait: an error, and the end of a capture."""
    if STATE.recording:
        STATE.recording.broken = True
        raise RuntimeError(CAPTURING)


def launched(function, *args):
    """Do or note what writes to arrays it is given."""
    if STATE.recording is None:
        return function(*args)
    return STATE.recording.work.append(functools.partial(function, *STATE.recording.pinned(args)))


def computed(function, args, kwargs, writes=False):
    """NumPy's function on NumPy's arrays, or a note of it; `writes`: to one of them, and nothing else is asked for."""
    graph = STATE.recording
    if graph is None:
        return function(*args, **kwargs)
    pinned = functools.partial(function, *graph.pinned(args), **graph.pinned(kwargs))
    if writes:
        graph.work.append(pinned)
        return None
    with np.errstate(all="ignore"):
        found = function(*args, **kwargs)  # its shape is right, its numbers are not
    if isinstance(found, tuple) or any(np.may_share_memory(found, x) for x in flat((args, kwargs))):
        return found
    found = np.array(found)
    graph.made(found)
    if function is not np.empty:
        graph.work.append(lambda: np.copyto(found, pinned()))
    return found


def flat(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from flat(part)


STATE = State()
