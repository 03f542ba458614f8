"""The laws of sums between GPUs, on a strict stand-in for NCCL and CUDA's streams, a thread a rank.

The stand-in refuses what would hang or be undefined on GPUs: a message outside of a group, one whose size is not what
the other expects, one on another stream than the links' own, memory used before what fills it is waited for.
"""

import ctypes
import itertools
import threading
from queue import Queue
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from npx.distributed.nccl import NcclCollectives
from npx.distributed.world import World
from tests.fakes.strict_cupy import device
from tests.helpers.distributed_jobs import summed


class Cuda:
    """Streams and events of one rank, and the log of what was asked of them."""

    def __init__(self):
        self.log, cuda = [], self

        class Stream:
            def __init__(self, non_blocking=False):
                assert non_blocking  # or it would wait for the stream that backward runs on
                self.ptr = 0x5EA

            def __enter__(self):
                cuda.current.append(self)

            def __exit__(self, *_):
                cuda.current.pop()

            def wait_event(self, event):
                assert event.of is not None, "an event that was not recorded yet"
                cuda.log.append(("waits", self.ptr, event.of))

        class Event:
            of, done = None, True  # here all is done at once

            def __init__(self, disable_timing=False):
                self.timed = not disable_timing

            def record(self, stream):
                self.of, self.at = stream.ptr, len(cuda.log)
                cuda.log.append(("records", stream.ptr))

        self.Stream, self.Event = Stream, Event
        main = object.__new__(Stream)
        main.ptr = 0
        self.current = [main]

    def get_current_stream(self):
        return self.current[-1]

    def get_elapsed_time(self, start, end):
        """Milliseconds, of which the stand-in has one between two entries of the log."""
        assert start.timed and end.timed and start.done and end.done and start.of is not None is not end.of
        return float(end.at - start.at)


class Nccl:
    """`cupy.cuda.nccl` for one rank: bytes through queues, at the end of a group."""

    NCCL_UINT8 = 1

    def __init__(self, queues, cuda):
        self.queues, self.cuda, self.group = queues, cuda, None

    def NcclCommunicator(self, size, unique, rank):
        assert unique == "drawn"
        self.rank, self.size = rank, size
        return self

    def groupStart(self):
        assert self.group is None and self.cuda.get_current_stream().ptr == 0x5EA
        self.group = []

    def send(self, pointer, count, kind, peer, stream):
        self._message(self.group, kind, peer, stream)
        self.group.append(("send", pointer, count, peer))

    def recv(self, pointer, count, kind, peer, stream):
        self._message(self.group, kind, peer, stream)
        self.group.append(("recv", pointer, count, peer))

    def _message(self, group, kind, peer, stream):
        assert group is not None, "a message alone waits for one that the other has not begun to take"
        assert kind == self.NCCL_UINT8 and peer != self.rank and 0 <= peer < self.size and stream == 0x5EA

    def groupEnd(self):
        self.cuda.log.append(("group", len(self.group)))
        for what, pointer, count, peer in self.group:
            if what == "send":
                self.queues[self.rank, peer].put(ctypes.string_at(pointer, count))
        for what, pointer, count, peer in self.group:
            if what == "recv":
                data = self.queues[peer, self.rank].get(timeout=60)
                assert len(data) == count, "NCCL would hang, or write past the end"
                ctypes.memmove(pointer, data, count)
        self.group = None


def together(size, work):
    """What `work(links, world)` gives on each of so many ranks, with its Cuda."""
    queues = {(a, b): Queue() for a in range(size) for b in range(size)}
    found, failed = [None] * size, []

    def one(rank):
        world, cuda = World(), Cuda()
        world.rank, world.size = rank, size
        try:
            links = NcclCollectives(SimpleNamespace(cuda=cuda), Nccl(queues, cuda), "drawn", world)
            found[rank] = work(links, world), cuda.log, world.bytes_sent
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return found


@pytest.mark.parametrize("size", [2, 3, 4])
@given(st.integers(1, 40), st.sampled_from(["float32", "float64"]), st.sampled_from([None, "bf16"]))
def test_gpus_add_in_the_order_of_ranks_and_send_as_little_as_can_be(size, count, dtype, narrow):
    wire_dtype = None if narrow is None else npx.precision_named(narrow).compute_dtype
    parts = [np.random.default_rng(r).standard_normal(count).astype(dtype) for r in range(size)]
    expected = summed(parts if wire_dtype is None else [part.astype(wire_dtype) for part in parts], dtype)

    def all_of(links, world):
        flat = npx.asarray(parts[world.rank])
        links.all_reduce(flat, wire_dtype)()
        return npx.to_host(flat)

    def in_two(links, world):
        flat = npx.asarray(parts[world.rank])
        links.reduce_scatter(flat, wire_dtype)()
        own = npx.to_host(flat)[world.shard_slice(count)]
        links.all_gather(flat, wire_dtype)()
        return own, npx.to_host(flat)

    with device():
        whole, apart = together(size, all_of), together(size, in_two)
    ends = expected if wire_dtype is None else expected.astype(wire_dtype).astype(dtype)
    for rank, ((one, log, _), ((own, other), _, _)) in enumerate(zip(whole, apart, strict=True)):
        assert one.tobytes() == other.tobytes() == ends.tobytes()
        assert own.tobytes() == expected[count * rank // size : count * (rank + 1) // size].tobytes()
        # Two groups on the links' stream, which first waits for backward's; that one notes when it comes to wait, and
        # waits at the end alone.
        assert [entry[0] for entry in log] == ["records", "waits", "group", "group", "records", "records", "waits"]
        assert log[1] == ("waits", 0x5EA, 0) and log[-1] == ("waits", 0, 0x5EA)
        assert all(entry[1] <= 2 * (size - 1) for entry in log if entry[0] == "group")
    assert sum(sent for _, _, sent in whole) == 2 * (size - 1) * count * (wire_dtype or np.dtype(dtype)).itemsize


def test_the_host_waits_for_no_sum():
    with device() as cupy:
        together(2, lambda links, world: links.all_reduce(npx.ones(10))() and None)
        assert not cupy.waits


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.booleans(), st.booleans()), max_size=6))
def test_what_a_stream_waited_is_counted_once_where_it_has_ended(waits):
    """Where the sum had ended before the stream came to it there was no wait."""
    timed = SimpleNamespace(cuda=SimpleNamespace(Stream=lambda **_: None, get_elapsed_time=lambda a, b: b.at - a.at))
    links = NcclCollectives(timed, Nccl({}, None), "drawn", World())
    links._waits = [(SimpleNamespace(at=a, done=i), SimpleNamespace(at=b, done=j)) for a, b, i, j in waits]
    ended = [max(0.0, b - a) for a, b, i, j in itertools.takewhile(lambda wait: wait[2] and wait[3], waits)]
    assert links.wait_seconds() == links.wait_seconds() == pytest.approx(sum(ended) / 1000)
    for came, end in links._waits:
        came.done = end.done = True
    assert links.wait_seconds() == pytest.approx(sum(max(0.0, b - a) for a, b, _, _ in waits) / 1000)
