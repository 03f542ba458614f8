"""The output of a training run: metrics.jsonl for programs, log.txt for people, a progress bar on a terminal."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from train.files import WriteError, disk_errors, fsync, open_for_appending, write_text
from train.run.folder import RunFolder
from train.run.state import RunState


class Journal(Protocol):
    """The part of a report that an update writes to."""

    def write_metrics(self, entry: dict[str, Any]) -> None: ...

    def write_line(self, text: str) -> None: ...


class RunReport:
    """Writes metrics.jsonl and log.txt and shows progress: a bar on a terminal, plain lines elsewhere.

    Args:
        run: The run folder.
        max_steps: The last step, for the progress bar and the remaining time.
        progress: Whether to show anything besides the files.
    """

    def __init__(self, run: RunFolder, max_steps: int, progress: bool = True) -> None:
        self.run, self.max_steps, self.progress = run, max_steps, progress
        console = Console(stderr=True)
        columns = (TextColumn("{task.fields[text]}"), BarColumn(bar_width=24), TextColumn("{task.fields[left]}"))
        show = progress and console.is_terminal
        self.bar = Progress(*columns, console=console, refresh_per_second=4) if show else None

    @contextmanager
    def open_files(self, state: RunState) -> Iterator[None]:
        """Open the files for a run that continues from `state`; drop lines of metrics.jsonl that are newer."""
        self._trim(state)
        self.started, self.first_step = time.perf_counter(), state.step
        screen: AbstractContextManager[Any] = self.bar or nullcontext()
        with LineFile(self.run.metrics_file) as self._metrics, LineFile(self.run.log_file) as self._log, screen:
            fsync(self.run.path)  # or a power loss could remove new files, however often their content is synced
            if self.bar:
                self.task = self.bar.add_task("", total=self.max_steps, completed=state.step, text="", left="")
            yield

    def write_metrics(self, entry: dict[str, Any]) -> None:
        """Append one JSON object and the time of day to metrics.jsonl."""
        entry = entry | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        self._metrics.add(json.dumps(entry, allow_nan=False))

    def write_line(self, text: str, always: bool = False) -> None:
        """Append a line and the time of day to log.txt; show it if progress is shown, or `always`."""
        self._log.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")
        with suppress(OSError):  # the terminal or pipe is closed
            if self.bar:
                self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            elif self.progress or always:
                print(text, file=sys.stderr, flush=True)

    def advance(self, state: RunState) -> None:
        """Move the progress bar to the state's step."""
        if self.bar:
            text = f"step {state.step}/{self.max_steps}  loss {state.loss:.4f}  {state.speed:,.0f} tokens/s"
            self.bar.update(self.task, completed=state.step, text=text, left=self.time_left(state))

    def time_left(self, state: RunState) -> str:
        """Return the time to max_steps at this process's pace, validation and writing included: "1:02:03 left"."""
        pace = (time.perf_counter() - self.started) / max(1, state.step - self.first_step)  # seconds per step
        return f"{format_duration(pace * (self.max_steps - state.step))} left"

    def sync(self) -> None:
        """Force the metrics to disk, so that no checkpoint is newer than they are. Raises WriteError."""
        with disk_errors(str(self.run.metrics_file)):
            self._metrics.sync()

    def _trim(self, state: RunState) -> None:
        file, lines = self.run.metrics_file, ""
        if not file.exists():
            return
        for line, entry in self.run.metric_lines():
            if entry["step"] <= (state.validated if entry["kind"] == "valid" else state.step):
                lines += line + "\n"
        if file.stat().st_size != len(lines.encode()):
            write_text(file, lines)

    # ---- the events of a training

    def log_update(
        self, state: RunState, lr: float, gradient_norm: float, loss_scale: float | None, ranks: int
    ) -> None:
        """Report the means since the last log line."""
        s = state
        entry = {"kind": "train", "step": s.step, "epoch": s.in_epoch, "loss": s.loss, "lr": lr}
        entry |= {"gradient_norm": gradient_norm, "tokens": s.tokens, "tokens_per_second": round(s.speed, 1)}
        if loss_scale is not None:
            entry["loss_scale"] = loss_scale
        if ranks > 1:
            entry["network"] = round(s.window_network, 3)
        self.write_metrics(entry | {"seconds": round(s.seconds, 3)})
        network = network_percentage(s.window_network, s.window_seconds) if ranks > 1 else ""
        self.write_line(
            f"step {s.step}/{self.max_steps}  epoch {s.in_epoch}  loss {s.loss:.4f}  lr {lr:.3g}  "
            f"{s.speed:,.0f} tokens/s{network}  {self.time_left(s)}"
        )

    def log_validation(self, state: RunState, result: Mapping[str, float], names: Mapping[str, str]) -> None:
        """Report a validation; `names` maps the keys of its scores to the names in the log."""
        s = state
        self.write_metrics({"kind": "valid", "step": s.step, "epoch": s.in_epoch, "tokens": s.tokens, **result})
        scores = "".join(f"  {name} {result[key]:.2f}" for key, name in names.items() if key in result)
        self.write_line(
            f"validation after step {s.step}: loss {result['loss']:.4f}  perplexity {result['perplexity']:.2f}{scores}"
            f"  ({result['seconds']:.1f} s)"
        )

    def log_overflow(self, step: int, loss_scale: float, skipped: int) -> None:
        """Report an update that was skipped because a gradient exceeded the range of fp16."""
        self.write_metrics({"kind": "skipped", "step": step, "loss_scale": loss_scale, "skipped": skipped})
        self.write_line(
            f"step {step}: the gradient exceeds the range of fp16; update skipped, loss scale now {loss_scale:g}"
        )

    def log_skipped(
        self, state: RunState, step: int, quantity: str, value: float, examples: str, operation: str, limit: int
    ) -> None:
        """Report an update that was skipped because its loss or gradient norm (`quantity`) is not finite."""
        entry = {"kind": "skipped", "step": step, "what": quantity}
        entry |= {"in_a_row": state.skipped, "skipped": state.all_skipped, "examples": examples}
        self.write_metrics(entry | ({"anomaly": operation} if operation else {}))
        if state.skipped <= limit:
            self.write_line(
                f"step {step}: the {quantity} is {value}; update skipped ({state.skipped} in a row, limit "
                f"train.max_skipped = {limit}){nonfinite_origin(examples, operation)}"
            )

    def log_start(
        self, state: RunState, checkpoint: Path | None, corpora: Mapping[str, Any], warnings: Iterable[str], setup: str
    ) -> None:
        """Report what a run starts from: skipped checkpoints, texts, and `setup`, the sizes of model and batches."""
        for text in warnings:
            self.write_line(text, always=True)
        for name, part in (("training", "train"), ("validation", "valid")):
            if corpora.get(part) is not None:
                self.write_line(f"{name} text: {corpora[part].describe()}")
        step, last = state.step, self.max_steps
        steps = f"steps {step + 1} to {last}" if step < last else f"no step left to {last}"
        self.write_line(f"{f'resuming from {checkpoint}' if checkpoint else 'training'}: {setup}, {steps}")
        if checkpoint and self.run.averaged.is_dir():
            self.write_line("models are still loaded from checkpoints/averaged until `average` runs again")

    def log_end(self, state: RunState, reason: str, checkpoint: Path | None, ranks: int) -> None:
        """Report the end of a run."""
        network = network_percentage(state.network, state.seconds) if ranks > 1 else ""
        self.write_line(
            f"done after step {state.step} ({reason}), {state.tokens:,} tokens in "
            f"{format_duration(state.seconds)}{network}: {checkpoint or 'no checkpoint'}"
        )


class SilentReport(RunReport):
    """The report of a rank other than 0. It writes and shows nothing."""

    @contextmanager
    def open_files(self, state: RunState) -> Iterator[None]:
        yield

    def write_metrics(self, entry: dict[str, Any]) -> None:
        pass

    def write_line(self, text: str, always: bool = False) -> None:
        pass

    def advance(self, state: RunState) -> None:
        pass

    def time_left(self, state: RunState) -> str:
        return ""

    def sync(self) -> None:
        pass


class RankNotes:
    """Collects the log lines of a rank until rank 0 writes them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_metrics(self, entry: dict[str, Any]) -> None:
        pass

    def write_line(self, text: str) -> None:
        self.lines.append(text)

    def pop_lines(self) -> list[str]:
        """Return and forget the lines collected so far."""
        lines, self.lines = self.lines, []
        return lines


class LineFile:
    """A text file that grows by lines. It buffers what a full disk does not take and writes it once there is space."""

    def __init__(self, path: Path) -> None:
        self.path, self._pending = path, b""

    def __enter__(self) -> "LineFile":
        self._file = open_for_appending(self.path)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, line: str) -> None:
        """Append a line, after those that are pending."""
        self._pending += line.encode("utf-8", "replace") + b"\n"
        with suppress(WriteError):
            self._write()

    def sync(self) -> None:
        """Force all lines to disk. Raises WriteError if it is full."""
        self._write()
        os.fsync(self._file.fileno())

    def _write(self) -> None:
        with disk_errors(str(self.path)):
            while self._pending:
                self._pending = self._pending[self._file.write(self._pending) or 0 :]


def nonfinite_origin(examples: str, operation: str) -> str:
    """Return the words on where a NaN or infinity arose: the examples and, if known, the first operation."""
    return f"; it comes from {examples}{f'; first operation: {operation}' if operation else ''}"


def network_percentage(network: float, seconds: float) -> str:
    """Return the percentage of `seconds` that ranks waited for the network, in words."""
    return f", network {100 * network / max(seconds, 1e-9):.0f} %"


def format_duration(seconds: float) -> str:
    """Return seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
