"""What a training tells while it runs: a file for programs, a file for people, a progress bar."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from train.files import WriteError, appended, disk_errors, write_text
from train.run.folder import RunFolder
from train.run.state import RunState


class RunReport:
    """What a run tells: metrics.jsonl for programs, log.txt for people, a progress bar (plain lines off a terminal)."""

    def __init__(self, run: RunFolder, max_steps: int, progress: bool = True) -> None:
        self.run, self.max_steps, self.progress = run, max_steps, progress
        console = Console(stderr=True)
        columns = (TextColumn("{task.fields[text]}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}"))
        show = progress and console.is_terminal
        self.bar = Progress(*columns, console=console, refresh_per_second=4) if show else None

    @contextmanager
    def opened(self, state: RunState) -> Iterator[None]:
        """Opens the files for a run that goes on after `state`; lines of metrics.jsonl from after it are dropped."""
        self._trim(state)
        self.started, self.first_step = time.perf_counter(), state.step
        screen: AbstractContextManager[Any] = self.bar or nullcontext()
        with Appended(self.run.metrics_file) as self._metrics, Appended(self.run.log_file) as self._log, screen:
            if self.bar:
                self.task = self.bar.add_task("", total=self.max_steps, completed=state.step, text="", left="")
            yield

    def metrics(self, entry: dict[str, Any]) -> None:
        """Appends one JSON object, with the time of day."""
        entry = entry | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        self._metrics.add(json.dumps(entry, allow_nan=False))

    def line(self, text: str, always: bool = False) -> None:
        """Appends a line to log.txt, with the time of day, and shows it, where progress is shown, or `always`."""
        self._log.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")
        with suppress(OSError):  # nobody reads it any more
            if self.bar:
                self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            elif self.progress or always:
                print(text, file=sys.stderr, flush=True)

    def advance(self, state: RunState) -> None:
        """Moves the bar to the state's step."""
        if self.bar:
            text = f"step {state.step}/{self.max_steps}  loss {state.loss:.4f}  {state.speed:,.0f} tokens/s"
            self.bar.update(self.task, completed=state.step, text=text, left=self.time_left(state))

    def time_left(self, state: RunState) -> str:
        """Time to max_steps at this process's pace, validation and writing included: "1:02:03 left"."""
        pace = (time.perf_counter() - self.started) / max(1, state.step - self.first_step)  # seconds a step
        return f"{clock(pace * (self.max_steps - state.step))} left"

    def sync(self) -> None:
        """Forces the metrics to disk, so that no checkpoint is newer than they are; WriteError where it is full."""
        with disk_errors(str(self.run.metrics_file)):
            self._metrics.sync()

    def _trim(self, state: RunState) -> None:
        file, kept = self.run.metrics_file, ""
        if not file.exists():
            return
        for line, entry in self.run.metric_lines():
            if entry["step"] <= (state.validated if entry["kind"] == "valid" else state.step):
                kept += line + "\n"
        if file.stat().st_size != len(kept.encode()):
            write_text(file, kept)


class Silent(RunReport):
    """The report of a rank that does not write: what it would tell, rank 0 tells."""

    @contextmanager
    def opened(self, state: RunState) -> Iterator[None]:
        yield

    def metrics(self, entry: dict[str, Any]) -> None:
        pass

    def line(self, text: str, always: bool = False) -> None:
        pass

    def advance(self, state: RunState) -> None:
        pass

    def time_left(self, state: RunState) -> str:
        return ""

    def sync(self) -> None:
        pass


class Notes:
    """A report of what one rank alone has to say, until rank 0 tells it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def metrics(self, entry: dict[str, Any]) -> None:
        pass

    def line(self, text: str) -> None:
        self.lines.append(text)

    def taken(self) -> list[str]:
        """The lines since the last time."""
        lines, self.lines = self.lines, []
        return lines


class Appended:
    """A text file that grows by lines. What a full disk does not take is kept, and written once there is room."""

    def __init__(self, path: Path) -> None:
        self.path, self._left = path, b""

    def __enter__(self) -> "Appended":
        self._file = appended(self.path)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, line: str) -> None:
        """Appends a line, after those that are left."""
        self._left += line.encode("utf-8", "replace") + b"\n"
        with suppress(WriteError):
            self._write()

    def sync(self) -> None:
        """Forces all lines to disk; WriteError where it is full."""
        self._write()
        os.fsync(self._file.fileno())

    def _write(self) -> None:
        with disk_errors(str(self.path)):
            while self._left:
                self._left = self._left[self._file.write(self._left) or 0 :]


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
