"""Progress reports on standard error.

On a terminal, or in a notebook with ipywidgets, lines are updated in place; elsewhere, plain lines are written.

    with Display() as display, display.work("translating", "sentences", total=3000) as work:
        work.advance(32)  # translating 32/3,000 sentences  11/s  0:04:29 left
    display.write(f"translated {work.result()}")  # translated 3,000 sentences in 273.1 s, 11 per second

The first plain line is written after FIRST_LINE seconds. After that, the time between lines is a tenth of the elapsed
time, but at least FIRST_LINE seconds, so hours of work produce a few dozen lines.
"""

import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import Any

FIRST_LINE = 10.0  # seconds
GROWTH = 0.1
MIN_WIDTH_FOR_BARS = 90  # in characters; a narrower terminal shows no progress bars
BAR_WIDTH = 24
INDENT = "  "  # begins the continuation lines of a wrapped line


class Work:
    """A job whose progress and speed are measured.

    Args:
        name: a description of the job.
        unit: what is counted, in the plural, such as "sentences"; with "", only the time is shown.
        total: the number of items, or None if it is unknown.
        done: the number of items that a resumed job has already completed.

    Attributes:
        details: text to show instead of the speed.
        n_logged: the number of items in the caller's last log line; no plain line is written for the same number.
    """

    def __init__(self, name: str, unit: str = "", total: int | None = None, done: int = 0) -> None:
        self.name, self.unit, self.total = name, unit, total
        self.n_before = done  # items that are not part of the measured speed
        self.start = time.perf_counter()
        self.details = ""
        self.n_logged: int | None = None
        self.done = done
        self.end: float | None = None

    @property
    def done(self) -> int:
        """The number of completed items. Setting this number also records the time, for `time_left`."""
        return self._done

    @done.setter
    def done(self, count: int) -> None:
        self._done = count
        self._counted_at = time.perf_counter()

    def advance(self, count: int = 1) -> None:
        """Add `count` completed items."""
        self.done += count

    def set_done(self, count: int) -> None:
        """Set the number of completed items."""
        self.done = count

    @property
    def seconds(self) -> float:
        """The elapsed time."""
        return (self.end or time.perf_counter()) - self.start

    @property
    def rate(self) -> float:
        """Items per second since the start."""
        return (self.done - self.n_before) / max(self.seconds, 1e-9)

    def time_left(self) -> str:
        """Return the estimated time left, such as "1:02:03 left", or "" if it is unknown.

        The estimate is updated when an item is completed; between updates it counts down.
        """
        if self.total is None or self.done == self.n_before < self.total:
            return ""
        rate = (self.done - self.n_before) / max(self._counted_at - self.start, 1e-9)
        waited = (self.end or time.perf_counter()) - self._counted_at
        return f"{format_duration(max(0, (self.total - self.done) / max(rate, 1e-9) - waited))} left"

    def describe(self) -> str:
        """Return the current state as one line."""
        count = f"{self.done:,}" if self.total is None else f"{min(self.done, self.total):,}/{self.total:,}"
        work = f"{self.name} {count} {self.unit}".rstrip() if self.unit or self.total is not None else self.name
        speed = self.details or (f"{format_rate(self.rate)}/s" if self.done > self.n_before else "")
        left = "" if self.done == self.total else self.time_left()
        return "  ".join(filter(None, (work, speed, left or format_duration(self.seconds))))

    def result(self) -> str:
        """Return the final number of items and the speed: "3,000 sentences in 273.1 s, 11 per second"."""
        unit = self.unit.removesuffix("s") if self.done == 1 else self.unit
        return f"{self.done:,} {unit} in {self.seconds:,.1f} s, {format_rate(self.rate)} per second"


class Display:
    """Displays the progress of jobs while they run. Only one display can be open on a terminal at a time.

    Args:
        enabled: whether to show anything.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.works = list[Work]()
        self.is_live = False
        if enabled:  # importing rich is slow
            from rich.console import Console

            self.console = Console(stderr=True)
            is_terminal = self.console.is_terminal and not self.console.is_dumb_terminal
            self.is_live = is_terminal or self.console.is_jupyter and find_spec("ipywidgets") is not None

    def __enter__(self) -> "Display":
        self._stack = ExitStack()
        if self.is_live:
            from rich.live import Live

            self._stack.enter_context(
                Live(get_renderable=self._render, console=self.console, transient=True, redirect_stdout=False)
            )
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    @contextmanager
    def work(self, name: str, unit: str = "", total: int | None = None, done: int = 0) -> Iterator[Work]:
        """Show the progress of a job (see `Work`) during this block."""
        work = Work(name, unit, total, done)
        finished = threading.Event()
        self.works.append(work)
        if self.enabled and not self.is_live:
            threading.Thread(target=self._write_regularly, args=(work, finished), daemon=True).start()
        try:
            yield work
        finally:
            work.end = time.perf_counter()
            finished.set()
            self.works.remove(work)

    def write(self, text: str, n_optional: int = 0) -> None:
        """Write a line above the displayed jobs.

        Fields are separated by two spaces. If the line is longer than the terminal is wide, it is wrapped, and its last
        `n_optional` fields are omitted, because the displayed job shows them too.
        """
        if not self.enabled:
            return
        with suppress(OSError):  # the terminal or pipe is closed
            if self.is_live:
                lines = wrap(text, self.console.width, n_optional)
                self.console.print(lines, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)

    def _write_regularly(self, work: Work, finished: threading.Event) -> None:
        while not finished.wait(max(FIRST_LINE, GROWTH * work.seconds)):
            # of nested jobs, only the innermost one prints lines
            if self.works[-1:] == [work] and work.done != work.n_logged:
                self.write(work.describe())

    def _render(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        lines = Table.grid(padding=(0, 1, 0, 0))
        is_wide = self.console.width >= MIN_WIDTH_FOR_BARS
        for work in list(self.works):
            bar = ProgressBar(work.total, work.done, BAR_WIDTH, pulse=work.total is None)
            text = Text(work.describe(), no_wrap=True, overflow="ellipsis")
            lines.add_row(*([bar] if is_wide else []), text)
        return lines


def wrap(text: str, width: int, n_optional: int = 0) -> str:
    """Wrap a line to `width` characters. Lines break between fields and, in a field that is too long, between words.

    Fields are separated by two spaces. A line that is too long loses its last `n_optional` fields. A word longer than
    `width`, such as a path, is not broken.
    """
    fields = text.split("  ")
    if len(text) <= width:
        return text
    lines: list[str] = []
    for field in fields[: len(fields) - n_optional]:
        if lines and len(f"{lines[-1]}  {field}") <= width:
            lines[-1] += f"  {field}"
        else:
            lines += textwrap.wrap(
                field, width, initial_indent=INDENT if lines else "", subsequent_indent=INDENT,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return "\n".join(lines)


def format_duration(seconds: float) -> str:
    """Return a number of seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_metric(score: float) -> str:
    """Return a score or perplexity with two decimals, or with three significant digits if it is a million or more."""
    return ">1e+300" if score > 1e300 else f"{score:{'.2f' if score < 1e6 else '.3g'}}"


def format_rate(rate: float) -> str:
    """Return a rate with at least two significant digits."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
