"""What sees that another rank is dead, stopped or stuck."""

import os
import socket
from typing import Any

import numpy as np

BEAT = 0.5  # seconds between two signs of life
ENDING = np.array([-1], np.int64)  # in place of a sign of life: a rank that ends the run, and has said why


class Heartbeat:
    """Looks after the next rank, so that each is looked after by one.

    The next rank sends a sign of life every BEAT seconds: how often it came to what all ranks do together. Where none
    comes for `seconds`, or its process is gone from this machine, or this rank has waited for longer than `world.limit`
    in a place to which that rank has not come, the watch says so in one line and ends all ranks.
    """

    def __init__(self, world: Any, about: tuple[str, str, int], seconds: float, now: float) -> None:
        self.world, self.seconds = world, seconds
        self.of, host, pid = about  # the next rank: its name, machine and process
        self.pid = pid if host == socket.gethostname() else None
        self.ends = _end_of(pid) if self.pid is not None else []  # can be read when that process has ended
        self.target = (world.rank - 1) % world.size
        self.judges = True  # not any more where all ranks come to their end
        self.heard = self.looked = now
        self.told, self.entered = 0.0, 0
        self.sent: list[Any] = []

    def look(self, now: float) -> None:
        """Gives a sign of life, hears the other's, and ends the run where something is wrong. Called by the carrier."""
        if now - self.looked > 2 * BEAT:  # it was this process that stood still
            self.heard = now
        self.looked = now
        life = self.world.life
        if now - self.told >= BEAT:
            self.told = now
            self.sent = [request for request in self.sent if not request.Test()]
            self.sent.append(life.Isend(np.array([self.world.carrier.entered], np.int64), self.target))
        while life.Iprobe():
            number = np.empty(1, np.int64)
            life.Recv(number)
            if number == ENDING:
                self.judges = False
            else:
                self.heard, self.entered = now, int(number[0])
        if self.judges and (wrong := self._wrong(now - self.heard, now)):
            self.judges = False
            self.world.tell(wrong, self.of)
            self.world.end_all(1)

    def _wrong(self, silent: float, now: float) -> str:
        """What is wrong with the next rank, or ""."""
        carrier, limit = self.world.carrier, self.world.limit
        if self.pid is not None and _gone(self.pid):
            return "its process has ended, killed or out of memory; the run ends; try --resume"
        if silent > self.seconds:
            return f"no sign of life for {silent:.0f} s (train.rank_timeout); the run ends; try --resume"
        waiting = carrier.waiting
        late = waiting is not None and limit is not None and now - waiting > limit
        if late and silent < 2 * BEAT and self.entered < carrier.entered:
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
