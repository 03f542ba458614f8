"""Threads that take turns at each call: what they must not share shows at the first run, not at one in a thousand.

Two blocks small enough for a check are done before a second thread has woken up, so that a scratch array which both use
goes unnoticed. Here the first block of each thread waits for the others and hands over before every call and every
arithmetic operation of Python.
"""

import dis
import sys
from collections.abc import Callable
from threading import Condition
from types import FrameType
from typing import Any

# Instructions before which a thread hands over
STEPS = {code for name, code in dis.opmap.items() if name.startswith(("CALL", "BINARY_OP"))}
PATIENCE = 1.0  # seconds until a thread that is not handed its turn, for another waits for a lock, goes on without


class Turns:
    """A body of `parallel_ranges` for `threads` threads, each of which calls it for one range at least."""

    def __init__(self, body: Callable[[int, int], Any], threads: int) -> None:
        self.body, self.missing = body, threads
        self.order: list[int] = []  # where the ranges begin that take part; it is the first one's turn
        self.changed = Condition()

    def __call__(self, i: int, j: int) -> Any:
        if not self.enter(i):
            return self.body(i, j)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in STEPS:
                self.hand_over(i)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return self.body(i, j)
        finally:
            sys.settrace(before)
            with self.changed:
                self.order = [k for k in self.order if k != i]
                self.changed.notify_all()

    def enter(self, i: int) -> bool:
        """Wait until every thread has a range, and for the turn of this one; the last range has the first turn."""
        with self.changed:
            if not self.missing:
                return False
            self.missing -= 1
            self.order = sorted([*self.order, i], reverse=True)
            self.changed.notify_all()
            self.wait(i)
            return True

    def hand_over(self, i: int) -> None:
        """It is the next one's turn; wait for the next own one."""
        with self.changed:
            if self.order[:1] == [i]:
                self.order = [*self.order[1:], i]
                self.changed.notify_all()
                self.wait(i)

    def wait(self, i: int) -> None:
        """Until it is the turn of range i, or nobody takes turns any more."""
        if not self.changed.wait_for(lambda: not self.order or not self.missing and self.order[0] == i, PATIENCE):
            self.order, self.missing = [], 0
            self.changed.notify_all()
