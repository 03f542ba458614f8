"""Synchronize the ranks after each update: exchange times, log lines and requests to stop.

A rank waits for slower ranks and for the network, but the slowest rank waits only for the network. The shortest waiting
time of any rank is therefore the time that is lost to the network.
"""

import time

from npx.distributed.world import World
from train.learn.signals import Signals
from train.run.report import RunReport


class UpdateSync:
    """Measures the time of each update, from `begin` to `end`, and then synchronizes the ranks."""

    def __init__(self, world: World, signals: Signals, report: RunReport) -> None:
        self.world, self.signals, self.report = world, signals, report
        self.overhead = 0.0  # seconds spent waiting in the last exchange; counted with the next update

    def begin(self) -> None:
        """Start the measurement of an update."""
        self.start = time.perf_counter()
        self.waited_before = self.world.wait_seconds
        self.report.lines = []

    def end(self) -> tuple[float, float]:
        """Return the seconds that the slowest rank took and the seconds lost to the network.

        Rank 0 writes the log lines of all ranks. A signal that one rank has received stops all of them.
        """
        waited = self.world.wait_seconds
        seconds = time.perf_counter() - self.start + self.overhead
        wait_seconds = waited - self.waited_before + self.overhead
        reports = self.world.all_gather_object((seconds, wait_seconds, self.signals.received, self.report.lines))
        self.overhead = self.world.wait_seconds - waited
        seconds_of_ranks, waits_of_ranks, received, lines_of_ranks = zip(*reports, strict=True)
        self.signals.stop_requested |= any(received)
        for rank, lines in enumerate(lines_of_ranks):
            for line in lines:
                self.report.write_line(f"rank {rank}: {line}")
        return max(seconds_of_ranks), min(waits_of_ranks)
