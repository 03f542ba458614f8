"""Collectives between GPUs, on strict fakes of NCCL and CUDA's streams with one thread per rank.

The fakes reject what would hang or be undefined on GPUs: a message outside a group, a size that the receiver does not
expect, a message on a stream other than that of the collectives, and use of memory before waiting for its transfer.
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
from tests.helpers.distributed_jobs import sum_in_rank_order


class Cuda:
    """Streams and events of one rank, and a log of their use."""

    def __init__(self):
        self.log = []
        cuda = self

        class Stream:
            def __init__(self, non_blocking=False):
                assert non_blocking  # otherwise it would wait for the stream of the backward pass
                self.ptr = 0x5EA

            def __enter__(self):
                cuda.current.append(self)

            def __exit__(self, *_):
                cuda.current.pop()

            def wait_event(self, event):
                assert event.stream is not None, "the event has not been recorded"
                cuda.log.append(("waits", self.ptr, event.stream))

        class Event:
            stream = None  # the address of the stream that recorded it
            done = True  # the fake completes all work at once

            def __init__(self, disable_timing=False):
                self.timed = not disable_timing

            def record(self, stream):
                self.stream = stream.ptr
                self.at = len(cuda.log)
                cuda.log.append(("records", stream.ptr))

        self.Stream, self.Event = Stream, Event
        main = object.__new__(Stream)
        main.ptr = 0
        self.current = [main]

    def get_current_stream(self):
        return self.current[-1]

    def get_elapsed_time(self, start, end):
        """Return milliseconds: one per entry of the log."""
        assert start.timed and end.timed and start.done and end.done
        assert start.stream is not None and end.stream is not None
        return float(end.at - start.at)


class Nccl:
    """A fake of `cupy.cuda.nccl` for one rank, which transfers bytes through queues at the end of a group."""

    NCCL_UINT8 = 1

    def __init__(self, queues, cuda):
        self.queues = queues
        self.cuda = cuda
        self.group = None  # the messages of the open group

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
        assert group is not None, "a message outside a group would wait for its receiver"
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


def run_ranks(size, work):
    """Run `work(collectives, world)` on each rank and return its results, logs and bytes sent."""
    queues = {(a, b): Queue() for a in range(size) for b in range(size)}
    results = [None] * size
    errors = []

    def run_rank(rank):
        cuda = Cuda()
        world = World()
        world.rank, world.size = rank, size
        try:
            collectives = NcclCollectives(SimpleNamespace(cuda=cuda), Nccl(queues, cuda), "drawn", world)
            results[rank] = work(collectives, world), cuda.log, world.bytes_sent
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("size", [2, 3, 4])
@given(st.integers(1, 40), st.sampled_from(["float32", "float64"]), st.sampled_from([None, "bf16"]))
def test_gpus_add_in_rank_order_and_send_the_minimum(size, count, dtype, narrow):
    wire_dtype = None if narrow is None else npx.precision_named(narrow).compute_dtype
    parts = [np.random.default_rng(r).standard_normal(count).astype(dtype) for r in range(size)]
    expected = sum_in_rank_order(parts if wire_dtype is None else [part.astype(wire_dtype) for part in parts], dtype)

    def all_reduced(collectives, world):
        flat = npx.asarray(parts[world.rank])
        collectives.all_reduce(flat, wire_dtype)()
        return npx.to_host(flat)

    def in_two_phases(collectives, world):
        flat = npx.asarray(parts[world.rank])
        collectives.reduce_scatter(flat, wire_dtype)()
        shard = npx.to_host(flat)[world.shard_slice(count)]
        collectives.all_gather(flat, wire_dtype)()
        return shard, npx.to_host(flat)

    with device():
        one_phase, two_phases = run_ranks(size, all_reduced), run_ranks(size, in_two_phases)
    gathered = expected if wire_dtype is None else expected.astype(wire_dtype).astype(dtype)
    for rank, ((one, log, _), ((shard, two), _, _)) in enumerate(zip(one_phase, two_phases, strict=True)):
        assert one.tobytes() == two.tobytes() == gathered.tobytes()
        assert shard.tobytes() == expected[count * rank // size : count * (rank + 1) // size].tobytes()
        # The collectives' stream waits for the backward stream and runs two groups. The backward stream records when it
        # begins to wait, and waits only at the end.
        assert [entry[0] for entry in log] == ["records", "waits", "group", "group", "records", "records", "waits"]
        assert log[1] == ("waits", 0x5EA, 0) and log[-1] == ("waits", 0, 0x5EA)
        assert all(entry[1] <= 2 * (size - 1) for entry in log if entry[0] == "group")
    assert sum(sent for _, _, sent in one_phase) == 2 * (size - 1) * count * (wire_dtype or np.dtype(dtype)).itemsize


def test_the_host_never_waits():
    with device() as cupy:
        run_ranks(2, lambda collectives, world: collectives.all_reduce(npx.ones(10))() and None)
        assert not cupy.waits


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.booleans(), st.booleans()), max_size=6))
def test_completed_waits_are_counted_once(waits):
    """A collective that ended before the stream reached it causes no wait."""
    timed = SimpleNamespace(cuda=SimpleNamespace(Stream=lambda **_: None, get_elapsed_time=lambda a, b: b.at - a.at))
    collectives = NcclCollectives(timed, Nccl({}, None), "drawn", World())
    collectives._waits = [(SimpleNamespace(at=a, done=i), SimpleNamespace(at=b, done=j)) for a, b, i, j in waits]
    ended = [max(0.0, b - a) for a, b, i, j in itertools.takewhile(lambda wait: wait[2] and wait[3], waits)]
    assert collectives.wait_seconds() == collectives.wait_seconds() == pytest.approx(sum(ended) / 1000)
    for began, end in collectives._waits:
        began.done = end.done = True
    assert collectives.wait_seconds() == pytest.approx(sum(max(0.0, b - a) for a, b, _, _ in waits) / 1000)
