"""Ctrl-C and SIGTERM: the first asks the loop to stop, the second stops it where it stands."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Signals:
    """Whether somebody has asked for the end."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """In the block the first SIGINT or SIGTERM sets `asked`, the second raises KeyboardInterrupt there."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals to the main thread alone
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _handle(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # Straight to the terminal: a buffered writer may be in the middle of a line when the signal comes.
        os.write(2, b"\nstopping after this step; once more stops at once\n")
