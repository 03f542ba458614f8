"""What a training tells while it runs: a file for programs, a file for people, a progress bar."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from train.run.folder import RunFolder, write_text
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
        with (
            open(self.run.metrics_file, "a", encoding="utf-8") as self._metrics,
            open(self.run.log_file, "a", encoding="utf-8") as self._log,
            screen,
        ):
            if self.bar:
                self.task = self.bar.add_task("", total=self.max_steps, completed=state.step, text="", left="")
            yield

    def metrics(self, entry: dict[str, Any]) -> None:
        """Appends one JSON object, with the time of day."""
        entry = entry | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        self._metrics.write(json.dumps(entry, allow_nan=False) + "\n")
        self._metrics.flush()

    def line(self, text: str) -> None:
        """Appends a line to log.txt, with the time of day, and shows it."""
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
        self._log.flush()
        if self.bar:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif self.progress:
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
        """Forces the metrics to disk, so that no checkpoint is newer than they are."""
        os.fsync(self._metrics.fileno())

    def _trim(self, state: RunState) -> None:
        file = self.run.metrics_file
        if not file.exists():
            return
        lines, kept = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True), []
        for line in lines:
            try:
                entry = json.loads(line)
                last = state.validated if entry["kind"] == "valid" else state.step
                whole = line.endswith("\n")  # a killed process may have written half a line
            except (ValueError, KeyError, TypeError):
                continue
            if whole and entry["step"] <= last:
                kept.append(line)
        if kept != lines:
            write_text(file, "".join(kept))


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
