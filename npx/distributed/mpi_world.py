"""A World of MPI processes: collectives on values and arrays, timeouts and shutdown."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from npx import backend
from npx.distributed.comm_thread import CommThread, Steps
from npx.distributed.heartbeat import ABORTING, Heartbeat
from npx.distributed.launcher_cleanup import end_launcher
from npx.distributed.world import Wait, World
from npx.settings import read_setting

FAILURE_WINDOW = 3.0  # seconds that `all_ranks_failed` waits for the other ranks
PACKET = 1024  # bytes in the first message of a value; a value that fits needs no second message


class MpiWorld(World):
    """The processes of an MPI communicator. From its creation until `close`, only the CommThread calls MPI."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self.mpi = MPI
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        # Separate communicators, so that collectives, shutdown and heartbeats never receive each other's messages.
        self.comm, self.shutdown_comm, self.heartbeat_comm = (comm.Dup() for _ in range(3))
        self._wait_seconds = 0.0
        self.comm_thread = CommThread(self.end_all)

    def _start(self, steps: Steps) -> Callable[[], Any]:
        """Submit a task and return a function that waits for its result."""
        task = self.comm_thread.submit(steps)

        def wait() -> Any:
            start = time.perf_counter()
            try:
                task.wait()
            finally:
                self._wait_seconds += time.perf_counter() - start
            return task.value

        return wait

    @property
    def wait_seconds(self) -> float:
        return self._wait_seconds

    # ---- values

    def all_gather_object(self, value: Any) -> list[Any]:
        pickles = self._start(self._gather_bytes(self.mpi.pickle.dumps(value)))()
        return [self.mpi.pickle.loads(data) for data in pickles]

    def _gather_bytes(self, data: bytes) -> Steps:
        packets = np.empty((self.size, PACKET), np.uint8)
        yield self.comm.Iallgather(_packet(data), packets)
        heads = packets[:, 8:]
        sizes = packets[:, :8].copy().view(np.int64)[:, 0]
        tail_sizes = np.maximum(sizes - heads.shape[1], 0)
        tails = np.empty(tail_sizes.sum(), np.uint8)
        ends = np.cumsum(tail_sizes)
        if tails.size:
            counts = tail_sizes.tolist()
            starts = (ends - tail_sizes).tolist()
            tail = np.frombuffer(data, np.uint8)[heads.shape[1] :]
            yield self.comm.Iallgatherv(tail, [tails, counts, starts, self.mpi.BYTE])
        return [
            heads[r, : sizes[r]].tobytes() + tails[ends[r] - tail_sizes[r] : ends[r]].tobytes()
            for r in range(self.size)
        ]

    def broadcast_object(self, value: Any) -> Any:
        received = self.all_gather_object(value if self.rank == 0 else None)[0]
        return received if self.rank else value

    def _barrier(self) -> Steps:
        yield self.comm.Ibarrier()

    # ---- arrays

    def reduce_scatter(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        return self._start(self._reduce_scatter(flat, wire_dtype))

    def all_gather(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        return self._start(self._all_gather(flat, wire_dtype))

    def all_reduce(self, flat: backend.Array, wire_dtype: Any = None) -> Wait:
        return self._start(self._all_reduce(flat, wire_dtype))

    def _all_reduce(self, flat: backend.Array, wire_dtype: Any) -> Steps:
        yield from self._reduce_scatter(flat, wire_dtype)
        yield from self._all_gather(flat, wire_dtype)

    def _reduce_scatter(self, flat: backend.Array, wire_dtype: Any) -> Steps:
        sent = flat if wire_dtype is None else flat.astype(wire_dtype)
        shard = flat[self.shard_slice(flat.size)]
        received = np.empty((self.size, shard.size), sent.dtype)  # row r: the values of rank r for this shard
        shard_bytes = shard.size * sent.itemsize
        receive_layout = [shard_bytes] * self.size, [r * shard_bytes for r in range(self.size)]
        byte = self.mpi.BYTE  # MPI only transfers bytes and never adds, so any dtype works
        yield self.comm.Ialltoallv(
            [_bytes(sent), *self._shard_layout(sent), byte], [_bytes(received), *receive_layout, byte]
        )
        self.bytes_sent += (flat.size - shard.size) * sent.itemsize
        shard[...] = received[0]
        for part in received[1:]:
            shard += part.astype(shard.dtype, copy=False)

    def _all_gather(self, flat: backend.Array, wire_dtype: Any) -> Steps:
        buffer = flat if wire_dtype is None else flat.astype(wire_dtype)
        counts, starts = self._shard_layout(buffer)
        yield self.comm.Iallgatherv(self.mpi.IN_PLACE, [_bytes(buffer), counts, starts, self.mpi.BYTE])
        self.bytes_sent += counts[self.rank] * (self.size - 1)
        if wire_dtype is not None:
            flat[...] = buffer

    def _shard_layout(self, flat: backend.Array) -> tuple[list[int], list[int]]:
        """Return the size and the start of each rank's shard of a flat array, in bytes."""
        shards = [self.shard_slice(flat.size, r) for r in range(self.size)]
        sizes = [(shard.stop - shard.start) * flat.itemsize for shard in shards]
        return sizes, [shard.start * flat.itemsize for shard in shards]

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        collective_timeout = self.collective_timeout
        self.collective_timeout = None  # rank 0 may take any amount of time
        error: BaseException | None = None
        if self.rank:
            error = self.broadcast_object(None)
            if error is not None:
                raise error
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if self.rank == 0:
                self.broadcast_object(self._picklable(error))
            self.collective_timeout = collective_timeout

    def _picklable(self, error: BaseException | None) -> BaseException | None:
        """Return the error, or a RuntimeError with its text if it cannot be pickled."""
        try:
            self.mpi.pickle.loads(self.mpi.pickle.dumps(error))
            return error
        except Exception:
            return RuntimeError(f"rank 0: {type(error).__name__}: {error}")

    # ---- failures and shutdown

    def start_heartbeat(self, seconds: float) -> None:
        if self.comm_thread.heartbeat is None:
            peers = self.all_gather_object((self.name, socket.gethostname(), os.getpid()))
            peer = peers[(self.rank + 1) % self.size]
            self.comm_thread.heartbeat = Heartbeat(self, peer, seconds, time.monotonic())

    def all_ranks_failed(self) -> bool:
        return self._same_status(1, FAILURE_WINDOW)

    def _same_status(self, status: int, seconds: float) -> bool:
        """Return whether all ranks report, within `seconds`, that they shut down with this status."""
        task = self.comm_thread.submit(self._gather_status(status), "shutdown")
        return task.wait(seconds) and bool((task.value == status).all())

    def _gather_status(self, status: int) -> Steps:
        statuses = np.empty(self.size, np.int64)
        yield self.shutdown_comm.Iallgather(np.array([status], np.int64), statuses)
        return statuses

    def close(self) -> None:
        """Shut down together with the other ranks; abort all ranks if some have not finished after 60 seconds."""
        if self.comm_thread.heartbeat is not None:
            self.comm_thread.heartbeat.enabled = False  # from here on, a peer that has finished may exit
        if not self._same_status(0, 60.0):
            self.log("this rank has finished, but others have not after 60 seconds; aborting all ranks")
            self.abort(1)
        self.comm_thread.stop()

    def log(self, text: str, rank: str = "") -> None:
        """Write one line to stderr, with the rank and the training step."""
        with suppress(OSError):
            os.write(2, f"npx-transformer: {rank or self.name}, step {self.step}: {text}\n".encode())

    def abort(self, status: int) -> None:
        with suppress(Exception):
            sys.stdout.flush()
        self.comm_thread.abort(status)
        time.sleep(2.0)
        os._exit(status)  # in case MPI hangs

    def end_all(self, status: int) -> None:
        """End all ranks. The CommThread calls this method."""
        if read_setting("NPX_KILL_LAUNCHER"):
            end_launcher()
        threading.Timer(2.0, os._exit, (status,)).start()  # in case MPI hangs
        for rank in range(self.size):  # keeps the other ranks from reporting the abort as a failure
            with suppress(Exception):
                self.heartbeat_comm.Isend(ABORTING, rank)
        self.mpi.COMM_WORLD.Abort(status)
        os._exit(status)


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def _packet(data: bytes) -> np.ndarray:
    """Return an array (PACKET,) of uint8 with the length of the data and as many of its bytes as fit."""
    packet = np.zeros(PACKET, np.uint8)
    head = data[: PACKET - 8]
    packet[:8] = np.frombuffer(len(data).to_bytes(8, sys.byteorder), np.uint8)
    packet[8 : 8 + len(head)] = np.frombuffer(head, np.uint8)
    return packet
