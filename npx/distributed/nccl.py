"""Collectives between GPUs through NCCL, with one GPU per rank.

As in `mpi_world.py`, the library only transfers data. Every rank sends part r of its array to each other rank r and
adds the parts that it receives in rank order, so the bits of a sum do not depend on NCCL's choice of algorithm. Parts
may have any size, and dtypes that NCCL does not support are sent as bytes. Everything runs on a separate stream,
concurrently with the backward pass, and the host never waits for it.
"""

from typing import Any

from npx import backend
from npx.distributed.world import Wait, World


class NcclCollectives:
    """Collective operations on this rank's GPU. `unique_id` is the NCCL ID that rank 0 has created."""

    def __init__(self, cupy: Any, nccl: Any, unique_id: Any, world: World) -> None:
        self.cupy, self.nccl, self.world = cupy, nccl, world
        self.communicator = nccl.NcclCommunicator(world.size, unique_id, world.rank)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._waits: list[tuple[Any, Any]] = []  # events: the start of a wait, and the end of the collective
        self._wait_seconds = 0.0

    def reduce_scatter(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        return self._start(lambda: self._reduce_scatter(flat, wire_dtype))

    def all_gather(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        return self._start(lambda: self._all_gather(flat, wire_dtype))

    def all_reduce(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        def work() -> None:
            self._reduce_scatter(flat, wire_dtype)
            self._all_gather(flat, wire_dtype)

        return self._start(work)

    def _start(self, work: Any) -> Wait:
        """Run `work` on the stream of this object, after all work submitted to the current stream so far.

        When called, the returned function makes the current stream wait for `work`.
        """
        cuda = self.cupy.cuda
        ready = cuda.Event(disable_timing=True)
        done = cuda.Event()
        ready.record(cuda.get_current_stream())
        self.stream.wait_event(ready)
        with self.stream:  # CuPy's kernels and allocations use this stream too
            work()
        done.record(self.stream)
        return lambda: self._wait(done)

    def _wait(self, done: Any) -> None:
        stream = self.cupy.cuda.get_current_stream()
        wait_began = self.cupy.cuda.Event()
        wait_began.record(stream)
        stream.wait_event(done)
        self._waits.append((wait_began, done))

    def wait_seconds(self) -> float:
        """Return the seconds that streams have waited for collectives, counting only completed waits."""
        while self._waits and all(event.done for event in self._waits[0]):
            milliseconds = self.cupy.cuda.get_elapsed_time(*self._waits.pop(0))
            self._wait_seconds += max(0.0, milliseconds) / 1000
        return self._wait_seconds

    def _reduce_scatter(self, flat: backend.Array, wire_dtype: Any) -> None:
        world = self.world
        shard = flat[world.shard_slice(flat.size)]
        sent = flat if wire_dtype is None else flat.astype(wire_dtype)
        received = backend.empty((world.size, shard.size), sent.dtype)  # row r: the values of rank r for this shard
        received[world.rank] = sent[world.shard_slice(flat.size)]
        self._exchange([sent[world.shard_slice(flat.size, r)] for r in range(world.size)], list(received))
        shard[...] = received[0].astype(shard.dtype)
        for part in list(received)[1:]:
            shard += part.astype(shard.dtype)

    def _all_gather(self, flat: backend.Array, wire_dtype: Any) -> None:
        world = self.world
        buffer = flat if wire_dtype is None else flat.astype(wire_dtype)
        shards = [buffer[world.shard_slice(flat.size, r)] for r in range(world.size)]
        self._exchange([shards[world.rank]] * world.size, shards)
        if wire_dtype is not None:
            flat[...] = buffer.astype(flat.dtype)

    def _exchange(self, send: list[Any], receive: list[Any]) -> None:
        """Send `send[r]` to every other rank r, and receive `receive[r]` from it."""
        byte = self.nccl.NCCL_UINT8
        stream = self.stream.ptr
        self.nccl.groupStart()  # without a group, each send would wait for its receiver
        for peer in (r for r in range(self.world.size) if r != self.world.rank):
            if send[peer].nbytes:
                self.communicator.send(send[peer].data.ptr, send[peer].nbytes, byte, peer, stream)
                self.world.bytes_sent += send[peer].nbytes
            if receive[peer].nbytes:
                self.communicator.recv(receive[peer].data.ptr, receive[peer].nbytes, byte, peer, stream)
        self.nccl.groupEnd()
