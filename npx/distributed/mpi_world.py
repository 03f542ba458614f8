"""The processes of an MPI communicator as a world: what they tell each other, their sums, and their end."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from npx import array
from npx.distributed.comm_thread import CommThread, Steps
from npx.distributed.heartbeat import ENDING, Heartbeat
from npx.distributed.launcher_cleanup import end_starter
from npx.distributed.world import Wait, World

TOGETHER = 3.0  # seconds within which ranks that end alike come to the end
CARD = 1024  # bytes: what is not larger goes to the others in one message


class MpiWorld(World):
    """The processes of an MPI communicator. After this was made its carrier alone calls MPI, until `leave`."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self.mpi, self.rank, self.size = MPI, comm.Get_rank(), comm.Get_size()
        # Of their own, so that no message of one is taken for that of another: what all do, the end, signs of life.
        self.comm, self.end, self.life = (comm.Dup() for _ in range(3))
        self.limit: float | None = None
        self._waited = 0.0
        self.carrier = CommThread(self.end_all)

    def _carried(self, steps: Steps) -> Callable[[], Any]:
        """Has something carried; what it returns waits for the result."""
        task = self.carrier.carry(steps)

        def wait() -> Any:
            began = time.perf_counter()
            try:
                task.wait()
            finally:
                self._waited += time.perf_counter() - began
            return task.value

        return wait

    @property
    def waited(self) -> float:
        return self._waited

    def _done(self, steps: Steps) -> Any:
        return self._carried(steps)()

    # ---- things

    def gather(self, thing: Any) -> list[Any]:
        return [self.mpi.pickle.loads(data) for data in self._done(self._gathered(self.mpi.pickle.dumps(thing)))]

    def _gathered(self, data: bytes) -> Steps:
        cards = np.empty((self.size, CARD), np.uint8)
        yield self.comm.Iallgather(_card(data), cards)
        found, sizes = cards[:, 8:], cards[:, :8].copy().view(np.int64)[:, 0]
        rest = np.maximum(sizes - found.shape[1], 0)
        more = np.empty(rest.sum(), np.uint8)
        ends = np.cumsum(rest)
        if more.size:
            counts, starts = rest.tolist(), (ends - rest).tolist()
            own = np.frombuffer(data, np.uint8)[found.shape[1] :]
            yield self.comm.Iallgatherv(own, [more, counts, starts, self.mpi.BYTE])
        return [found[r, : sizes[r]].tobytes() + more[ends[r] - rest[r] : ends[r]].tobytes() for r in range(self.size)]

    def broadcast(self, thing: Any) -> Any:
        data = self.mpi.pickle.dumps(thing) if self.rank == 0 else b""
        found = self._done(self._broadcast(data))
        return thing if self.rank == 0 else self.mpi.pickle.loads(found)

    def _broadcast(self, data: bytes) -> Steps:
        card = _card(data)
        yield self.comm.Ibcast(card, 0)
        rest = int(card[:8].view(np.int64)[0]) - (CARD - 8)
        if rest <= 0:
            return card[8:].tobytes()[: rest or None]
        more = np.empty(rest, np.uint8) if self.rank else np.frombuffer(data, np.uint8)[CARD - 8 :].copy()
        yield self.comm.Ibcast(more, 0)
        return card[8:].tobytes() + more.tobytes()

    def barrier(self) -> None:
        self._done(self._barrier())

    def _barrier(self) -> Steps:
        yield self.comm.Ibarrier()

    # ---- arrays

    def reduce_scatter(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        return self._carried(self._reduced(flat, wire_dtype))

    def all_gather(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        return self._carried(self._spread(flat, wire_dtype))

    def all_reduce(self, flat: array.Array, wire_dtype: Any = None) -> Wait:
        return self._carried(self._summed(flat, wire_dtype))

    def _summed(self, flat: array.Array, wire_dtype: Any) -> Steps:
        yield from self._reduced(flat, wire_dtype)
        yield from self._spread(flat, wire_dtype)

    def _reduced(self, flat: array.Array, wire_dtype: Any) -> Steps:
        given = flat if wire_dtype is None else flat.astype(wire_dtype)
        parts, width = [self.shard_slice(flat.size, r) for r in range(self.size)], given.itemsize
        own = flat[parts[self.rank]]
        found = np.empty((self.size, own.size), given.dtype)  # part `rank` of every rank's array
        send = [(p.stop - p.start) * width for p in parts], [p.start * width for p in parts]
        get = [own.size * width] * self.size, [r * own.size * width for r in range(self.size)]
        byte = self.mpi.BYTE  # whatever the numbers are: nothing is computed on the way
        yield self.comm.Ialltoallv([_bytes(given), *send, byte], [_bytes(found), *get, byte])
        self.sent += (flat.size - own.size) * width
        own[...] = found[0]
        for part in found[1:]:
            own += part.astype(own.dtype, copy=False)

    def _spread(self, flat: array.Array, wire_dtype: Any) -> Steps:
        given = flat if wire_dtype is None else flat.astype(wire_dtype)
        parts, width = [self.shard_slice(flat.size, r) for r in range(self.size)], given.itemsize
        counts, starts = [(p.stop - p.start) * width for p in parts], [p.start * width for p in parts]
        yield self.comm.Iallgatherv(self.mpi.IN_PLACE, [_bytes(given), counts, starts, self.mpi.BYTE])
        self.sent += counts[self.rank] * (self.size - 1)
        if wire_dtype is not None:
            flat[...] = given

    @contextmanager
    def first(self) -> Iterator[None]:
        limit, self.limit = self.limit, None  # however long rank 0 takes for it
        error: BaseException | None = None
        if self.rank:
            error = self.broadcast(None)
            if error is not None:
                raise error
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if self.rank == 0:
                self.broadcast(self._sendable(error))
            self.limit = limit

    def _sendable(self, error: BaseException | None) -> BaseException | None:
        """An error that other ranks can raise too."""
        try:
            self.mpi.pickle.loads(self.mpi.pickle.dumps(error))
            return error
        except Exception:
            return RuntimeError(f"rank 0: {type(error).__name__}: {error}")

    # ---- what goes wrong

    def watch(self, seconds: float) -> None:
        if self.carrier.watch is None:
            about = self.gather((self.name, socket.gethostname(), os.getpid()))
            self.carrier.watch = Heartbeat(self, about[(self.rank + 1) % self.size], seconds, time.monotonic())

    def expect(self, seconds: float | None) -> None:
        self.limit = seconds

    def alike(self) -> bool:
        return self._agreed(1, TOGETHER)

    def _agreed(self, status: int, seconds: float) -> bool:
        """Whether all ranks come to their end within a while, with the same status."""
        task = self.carrier.carry(self._statuses(status), "end")
        return task.wait(seconds) and bool((task.value == status).all())

    def _statuses(self, status: int) -> Steps:
        found = np.empty(self.size, np.int64)
        yield self.end.Iallgather(np.array([status], np.int64), found)
        return found

    def leave(self) -> None:
        """The end of this process: with the others, or else it ends them too."""
        if self.carrier.watch is not None:
            self.carrier.watch.judges = False  # a rank that is done may go
        if not self._agreed(0, 60.0):
            self.tell("this rank has ended, and not all others have")
            self.abort(1)
        self.carrier.stop()

    def tell(self, text: str, rank: str = "") -> None:
        """One line on stderr: which rank, which step, what."""
        with suppress(OSError):
            os.write(2, f"npx-transformer: {rank or self.name}, step {self.step}: {text}\n".encode())

    def abort(self, status: int) -> None:
        with suppress(Exception):
            sys.stdout.flush()
        self.carrier.end(status)
        time.sleep(2.0)
        os._exit(status)  # where MPI cannot any more

    def end_all(self, status: int) -> None:
        """Ends all ranks; called by the carrier."""
        end_starter()
        threading.Timer(2.0, os._exit, (status,)).start()  # where MPI cannot any more
        for rank in range(self.size):  # has no other rank say why the run ends
            with suppress(Exception):
                self.life.Isend(ENDING, rank)
        self.mpi.COMM_WORLD.Abort(status)
        os._exit(status)


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)


def _card(data: bytes) -> np.ndarray:
    """The number of bytes, and as many of them as there is room for: (CARD,)."""
    card, first = np.zeros(CARD, np.uint8), data[: CARD - 8]
    card[:8] = np.frombuffer(len(data).to_bytes(8, sys.byteorder), np.uint8)
    card[8 : 8 + len(first)] = np.frombuffer(first, np.uint8)
    return card
