"""The processes of an MPI communicator as a world: what they tell each other, their sums, and their end."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from npx import array
from npx.ranks.watch import ENDING, Watch
from npx.ranks.world import World

TOGETHER = 3.0  # seconds within which ranks that end alike come to the end


class Processes(World):
    """The processes of an MPI communicator."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self.mpi, self.rank, self.size = MPI, comm.Get_rank(), comm.Get_size()
        # Of their own, so that no message of one is taken for that of another: things, arrays, the end, signs of life.
        self.things, self.arrays, self.end, self.life = (comm.Dup() for _ in range(4))
        self.limit: float | None = None
        self.entered = 0  # how often this rank came to what all do together
        self.waiting: float | None = None  # since when (time.monotonic) it has waited there
        self._watch: Watch | None = None
        self._queue: Any = None
        self._lock = threading.Lock()

    # ---- things

    def gather(self, thing: Any) -> list[Any]:
        mine = np.frombuffer(self.mpi.pickle.dumps(thing), np.uint8)
        sizes = np.empty(self.size, np.int64)
        with self._together():
            self._wait(self.things.Iallgather(np.array([mine.size], np.int64), sizes))
            ends = np.cumsum(sizes)
            whole = np.empty(int(ends[-1]), np.uint8)
            counts, starts = sizes.tolist(), (ends - sizes).tolist()
            self._wait(self.things.Iallgatherv(mine, [whole, counts, starts, self.mpi.BYTE]))
        return [self.mpi.pickle.loads(whole[a:b].tobytes()) for a, b in zip(starts, ends, strict=True)]

    def broadcast(self, thing: Any) -> Any:
        data = np.frombuffer(self.mpi.pickle.dumps(thing), np.uint8) if self.rank == 0 else None
        size = np.array([0 if data is None else data.size], np.int64)
        with self._together():
            self._wait(self.things.Ibcast(size, 0))
            there = np.empty(int(size[0]), np.uint8) if data is None else data.copy()
            self._wait(self.things.Ibcast(there, 0))
        return thing if self.rank == 0 else self.mpi.pickle.loads(there.tobytes())

    def barrier(self) -> None:
        with self._together():
            self._wait(self.things.Ibarrier())

    # ---- arrays

    def reduce_scatter(self, flat: array.Array) -> None:
        own = flat[self.part(flat.size)]
        others = self._exchanged(flat, own.size)
        own[...] = others[0]
        for part in others[1:]:
            own += part

    def _exchanged(self, flat: array.Array, own: int) -> array.Array:
        """Part `rank` of every rank's `flat`: (size, own)."""
        parts = [self.part(flat.size, r) for r in range(self.size)]
        found = np.empty((self.size, own), flat.dtype)
        width = flat.itemsize
        send = [(p.stop - p.start) * width for p in parts], [p.start * width for p in parts]
        get = [own * width] * self.size, [r * own * width for r in range(self.size)]
        byte = self.mpi.BYTE  # whatever the numbers are: nothing is computed on the way
        with self._together():
            self._wait(self.arrays.Ialltoallv([_bytes(flat), *send, byte], [_bytes(found), *get, byte]))
        self.sent += (flat.size - own) * width
        return found

    def all_gather(self, flat: array.Array) -> None:
        parts = [self.part(flat.size, r) for r in range(self.size)]
        width = flat.itemsize
        counts, starts = [(p.stop - p.start) * width for p in parts], [p.start * width for p in parts]
        own = _bytes(flat[parts[self.rank]]).copy()
        with self._together():
            self._wait(self.arrays.Iallgatherv(own, [_bytes(flat), counts, starts, self.mpi.BYTE]))
        self.sent += own.size * (self.size - 1)

    def start(self, work: Callable[[], None]) -> Callable[[], object]:
        if self._queue is None:
            from concurrent.futures import ThreadPoolExecutor

            self._queue = ThreadPoolExecutor(1, "npx-ranks")
        return self._queue.submit(work).result

    # ---- waiting

    @contextmanager
    def _together(self) -> Iterator[None]:
        with self._lock:
            self.entered += 1
            self.waiting = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self.waited += time.monotonic() - self.waiting
                self.waiting = None

    def _wait(self, request: Any, seconds: float = np.inf) -> bool:
        """Whether a request is done, or comes to be within so many seconds."""
        began, pause = time.monotonic(), 0.0
        while not request.Test():
            passed = time.monotonic() - began
            if passed > seconds:
                return False
            pause = 0.0 if passed < 1e-4 else min(5e-4, passed / 10)
            time.sleep(pause)
        return True

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
        if self._watch is None:
            self._watch = Watch(self, seconds)

    def expect(self, seconds: float | None) -> None:
        self.limit = seconds

    def alike(self) -> bool:
        return self._agreed(1, TOGETHER)

    def _agreed(self, status: int, seconds: float) -> bool:
        """Whether all ranks come to their end within a while, with the same status."""
        found = np.empty(self.size, np.int64)
        request = self.end.Iallgather(np.array([status], np.int64), found)
        return self._wait(request, seconds) and bool((found == status).all())

    def leave(self) -> None:
        """The end of this process: with the others, or else it ends them too."""
        if self._watch is not None:
            self._watch.stop()
        if not self._agreed(0, 60.0):
            self.tell("this rank has ended, and not all others have")
            self.abort(1)
        if self._queue is not None:
            self._queue.shutdown()

    def tell(self, text: str, rank: str = "") -> None:
        """One line on stderr: which rank, which step, what."""
        with suppress(OSError):
            os.write(2, f"npx-transformer: {rank or self.name}, step {self.step}: {text}\n".encode())

    def ending(self) -> None:
        """Has no other rank say why the run ends."""
        for rank in range(self.size):
            with suppress(Exception):
                self.life.Isend(ENDING, rank)

    def abort(self, status: int) -> None:
        with suppress(Exception):
            sys.stdout.flush()
        self.ending()
        threading.Timer(2.0, os._exit, (status,)).start()  # where MPI cannot any more
        self.mpi.COMM_WORLD.Abort(status)
        os._exit(status)


def _bytes(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1).view(np.uint8)
