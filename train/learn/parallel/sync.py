"""What ranks agree on after each update: how long it took, how much of that was the network's, whether to stop.

A rank waits for slower ranks and for the network. The one that all others wait for waits for nothing but the network;
so the least that a rank has waited in an update is what the network took of it, beside which nobody computed.
"""

import time

from npx.distributed.world import World
from train.learn.signals import Signals
from train.run.report import Notes, RunReport


class UpdateSync:
    """Of one rank with the others, about updates, each of which is between `begin` and `end`."""

    def __init__(self, world: World, signals: Signals, notes: Notes, report: RunReport) -> None:
        self.world, self.signals, self.notes, self.report = world, signals, notes, report
        self.last = 0.0  # seconds that the last agreement took, all of it waiting: counted with the next update

    def begin(self) -> None:
        """Before an update."""
        self.began, self.waited = time.perf_counter(), self.world.wait_seconds

    def end(self) -> tuple[float, float]:
        """After it: the seconds it took the slowest rank, and those of the network; what ranks have noted is told.

        A signal that one rank has heard asks all to stop.
        """
        waited = self.world.wait_seconds
        took = time.perf_counter() - self.began + self.last, waited - self.waited + self.last
        told = self.world.gather((*took, self.signals.heard, self.notes.taken()))
        self.last = self.world.wait_seconds - waited
        seconds, waits, heard, notes = zip(*told, strict=True)
        self.signals.agree(any(heard))
        for rank, line in ((rank, line) for rank, lines in enumerate(notes) for line in lines):
            self.report.line(f"rank {rank}: {line}")
        return max(seconds), min(waits)
