"""A thread that sees that another rank is dead, stopped or stuck, and ends all of them."""

import os
import select
import socket
import threading
import time
from typing import Any

import numpy as np

BEAT = 0.5  # seconds between two signs of life
LOOK = 0.1  # seconds between two looks at the process of the next rank, where it is on this machine
ENDING = np.array([-1], np.int64)  # in place of a sign of life: a rank that ends the run, and has said why


class Watch:
    """A thread that looks after the next rank, so that each is looked after by one.

    The next rank sends a sign of life every BEAT seconds: how often it came to what all ranks do together. Where none
    comes for `seconds`, or its process is gone from this machine, or this rank has waited for longer than `world.limit`
    in a place to which that rank has not come, the watch says so in one line and ends all ranks.
    """

    def __init__(self, world: Any, seconds: float) -> None:
        self.world, self.seconds, self.stopped = world, seconds, threading.Event()
        about = world.gather((world.name, socket.gethostname(), os.getpid()))
        next_rank = (world.rank + 1) % world.size
        self.of, host, pid = about[next_rank]
        self.pid = pid if host == socket.gethostname() else None
        self.end = _end_of(pid) if self.pid is not None else []
        self.target = (world.rank - 1) % world.size
        self.thread = threading.Thread(target=self._look, daemon=True, name="npx-watch")
        self.thread.start()

    def stop(self) -> None:
        """Ends it, after the next rank's last sign of life may have come."""
        self.stopped.set()
        self.thread.join()

    def _look(self) -> None:
        heard = looked = time.monotonic()
        told, entered = 0.0, 0
        sent: list[Any] = []
        while not self.stopped.is_set():
            # mpirun, which sees a dead rank too, kills the others within a third of a second: so this is told at once.
            select.select(self.end, [], [], LOOK)
            now = time.monotonic()
            if now - looked > 2 * BEAT:  # it was this process that stood still
                heard = now
            looked = now
            if now - told >= BEAT:
                told = now
                sent = [request for request in sent if not request.Test()]
                sent.append(self.world.life.Isend(np.array([self.world.entered], np.int64), self.target))
            while self.world.life.Iprobe():
                number = np.empty(1, np.int64)
                self.world.life.Recv(number)
                if number == ENDING:
                    return
                heard, entered = now, int(number[0])
            if wrong := self._wrong(now - heard, entered, now):
                self.world.ending()
                self.world.tell(wrong, self.of)
                self.world.abort(1)

    def _wrong(self, silent: float, entered: int, now: float) -> str:
        """What is wrong with the next rank, or ""."""
        world = self.world
        with world._lock:
            waiting, here, limit = world.waiting, world.entered, world.limit
        if self.pid is not None and _gone(self.pid):
            return "its process has ended, killed or out of memory; the run ends; try --resume"
        if silent > self.seconds:
            return f"no sign of life for {silent:.0f} s (train.rank_timeout); the run ends; try --resume"
        late = waiting is not None and limit is not None and now - waiting > limit
        if late and silent < 2 * BEAT and entered < here:
            return f"waited for it for {now - (waiting or now):.0f} s (train.rank_timeout); the run ends; try --resume"
        return ""


def _end_of(pid: int) -> list[int]:
    """A descriptor that can be read when a process ends; none where the system has no such thing."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []


def _gone(pid: int) -> bool:
    """Whether there is no process of this number, or only what is left of one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except FileNotFoundError:
        return os.path.isdir("/proc/self")
    except (OSError, IndexError):
        return False
