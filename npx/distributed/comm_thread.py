"""The one thread of a process that calls MPI: it carries what ranks give each other, and looks after another rank.

What is carried is a generator that starts requests of MPI's, and gives each to be waited for:

    def sizes():
        found = np.empty(comm.size, np.int64)
        yield comm.Iallgather(np.array([7]), found)     # goes on when the request is done
        return found

One thread needs no MPI for several threads, whose locks are where MPI libraries go wrong. It never waits inside MPI,
which would take a whole core: it looks at a request and sleeps, so that a rank which waits leaves its core to others,
and so that a sign of life goes out whatever the rank computes or waits for.
"""

import os
import select
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import numpy as np

from npx.distributed.heartbeat import Heartbeat

LOOK = 0.1  # seconds between two looks at the next rank
PAUSE = 2e-3  # seconds of sleep, at most, between two looks at a request

Steps = Generator[Any, None, Any]  # gives requests, returns a result


class Task:
    """Something that is carried."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.request = steps, None
        self.began: float | None = None  # by time.monotonic
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it is done, or comes to be within so many seconds; raises what was raised in it."""
        done = self.done.wait(seconds)  # which a signal's handler may interrupt
        if self.error is not None:
            raise self.error
        return done

    def moves(self) -> bool:
        """Goes on as far as it can without waiting; whether that was any way at all."""
        moved = False
        try:
            while self.request is None or self.request.Test():
                self.request, moved = next(self.steps), True
        except StopIteration as end:
            self.value = end.value
        except BaseException as error:  # raised where it is waited for
            self.error = error
        else:
            return moved
        self.done.set()
        return True


class CommThread:
    """The thread. `ended` is called in it, once, where the whole run is to end."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        self.lanes: dict[str, deque[Task]] = {"work": deque(), "end": deque()}  # each in its order, beside each other
        self.entered = 0  # how often this rank came to what all do together
        self.watch: Heartbeat | None = None
        self.ended, self._status = ended, -1
        self._stopping = False
        self._hears, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self.thread = threading.Thread(target=self._run, daemon=True, name="npx-ranks")
        self.thread.start()

    def carry(self, steps: Steps, lane: str = "work") -> Task:
        """Has something carried, after what was given before it."""
        task = Task(steps)
        self.lanes[lane].append(task)
        self.wake()
        return task

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it has been woken often enough
            os.write(self._wakes, b"!")

    def end(self, status: int) -> None:
        """Ends the whole run."""
        self._status = status
        self.wake()

    def stop(self) -> None:
        """Ends the thread, when all is done that it was given for the end."""
        self._stopping = True
        self.wake()
        self.thread.join()
        os.close(self._hears)
        os.close(self._wakes)

    @property
    def waiting(self) -> float | None:
        """Since when the others are waited for, by time.monotonic."""
        with suppress(IndexError):
            return self.lanes["work"][0].began
        return None

    def _run(self) -> None:
        try:
            with np.errstate(all="ignore"):  # of sums that are not finite is told where they are read
                self._carry()
        except BaseException:  # without this thread all ranks would wait for ever
            traceback.print_exc()
            self.ended(1)

    def _carry(self) -> None:
        moved = looked = time.monotonic()
        while not self._stopping or self.lanes["end"]:
            if self._status >= 0:
                self.ended(self._status)
                return
            moving = [self._moves(lane) for lane in self.lanes.values()]
            now = time.monotonic()
            moved = now if any(moving) else moved
            pause = min(PAUSE, (now - moved) / 10) if any(self.lanes.values()) else LOOK
            watched = self.watch.ends if self.watch and self.watch.judges else []
            ready, _, _ = select.select([self._hears, *watched], [], [], pause)
            if self._hears in ready:
                os.read(self._hears, 4096)
            now = time.monotonic()
            if self.watch and (now - looked >= LOOK or not {*ready}.isdisjoint(watched)):
                looked = now
                self.watch.look(now)

    def _moves(self, lane: deque[Task]) -> bool:
        moved = False
        while lane:
            task = lane[0]
            if task.began is None:
                task.began = time.monotonic()
                self.entered += lane is self.lanes["work"]
            if task.moves():
                moved = True
            if not task.done.is_set():
                break
            lane.popleft()
        return moved
