"""A progress line on the terminal for checks that take longer than `DELAY` seconds."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY = 2.0  # seconds before the line appears
INTERVAL = 0.2  # seconds between updates


class ProgressLine:
    """The progress of the check that is running.

    Args:
        show: called with the text of the line; an empty text clears it.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self.calls = 0
        self.start = self.last = time.monotonic()

    def step(self, name: str) -> None:
        """Count a call to the function, and update the line at most every `INTERVAL` seconds."""
        self.calls += 1
        now = time.monotonic()
        if now - self.start >= DELAY and now - self.last >= INTERVAL:
            self.last = now
            self.show(f"{name}: {self.calls:,} calls, {now - self.start:.0f} s")


lines: list[ProgressLine] = []  # the lines of the running checks; only the last one is updated


def show_on_terminal(text: str) -> None:
    """Replace the current line of the terminal."""
    sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
    sys.stderr.flush()


@contextmanager
def progress_line(show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Show a progress line while the block runs: by calling `show`, or else on stderr if it is a terminal.

    Blocks inside a block that shows a line use the same line.
    """
    if lines or not (show or sys.stderr.isatty()):
        yield
        return
    line = ProgressLine(show or show_on_terminal)
    lines.append(line)
    try:
        yield
    finally:
        lines.remove(line)
        if line.last > line.start:
            line.show("")


def step(name: str) -> None:
    """Count a call to the function that is being checked.

    Args:
        name: describes the check and the derived input.
    """
    if lines:
        lines[-1].step(name)
