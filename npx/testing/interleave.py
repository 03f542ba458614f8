"""Interleave threads, so that accidentally shared data causes a failure in every run, not in one run in a thousand.

Blocks that are small enough for a test would all finish before a second thread wakes up, so a scratch array that two of
them share would go unnoticed. Here the first block of each thread waits for the others, and every thread hands over to
the next before each Python call and arithmetic operation.
"""

import dis
import sys
from collections.abc import Callable
from threading import Condition
from types import FrameType
from typing import Any

# A thread yields its turn before each of these bytecode instructions.
HANDOVERS = {code for name, code in dis.opmap.items() if name.startswith(("CALL", "BINARY_OP"))}
TIMEOUT = 1.0  # seconds to wait for a turn before interleaving ends: the thread with the turn may be waiting for a lock


class Turns:
    """A wrapper of the body of `parallel_for`: the first range of each thread runs interleaved with the others.

    Each of the `threads` threads must call the wrapper for at least one range.
    """

    def __init__(self, body: Callable[[int, int], Any], threads: int) -> None:
        self.body = body
        self.n_missing = threads  # threads that have no range yet
        self.order: list[int] = []  # the starts of the interleaved ranges; it is the turn of the first one
        self.changed = Condition()

    def __call__(self, i: int, j: int) -> Any:
        if not self.enter(i):
            return self.body(i, j)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in HANDOVERS:
                self.hand_over(i)
            return trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            return self.body(i, j)
        finally:
            sys.settrace(previous)
            with self.changed:
                self.order = [k for k in self.order if k != i]
                self.changed.notify_all()

    def enter(self, i: int) -> bool:
        """Wait until every thread has a range, then until it is the turn of range i.

        Returns False, without waiting, if every thread already has a range. The last range has the first turn.
        """
        with self.changed:
            if not self.n_missing:
                return False
            self.n_missing -= 1
            self.order = sorted([*self.order, i], reverse=True)
            self.changed.notify_all()
            self.wait(i)
            return True

    def hand_over(self, i: int) -> None:
        """Give the turn to the next range and wait for the next turn of range i."""
        with self.changed:
            if self.order[:1] == [i]:
                self.order = [*self.order[1:], i]
                self.changed.notify_all()
                self.wait(i)

    def wait(self, i: int) -> None:
        """Wait until it is the turn of range i or interleaving has ended; after TIMEOUT seconds, end interleaving."""
        if not self.changed.wait_for(lambda: not self.order or not self.n_missing and self.order[0] == i, TIMEOUT):
            self.order = []
            self.n_missing = 0
            self.changed.notify_all()
