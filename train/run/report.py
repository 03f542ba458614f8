"""The output of a training run: metrics.jsonl for programs, log.txt for people, and progress on standard error."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from train.errors import plural
from train.files import disk_errors, fsync, write_text
from train.progress import Display, Work, format_duration, format_metric
from train.run.folder import RunFolder
from train.run.metric_files import LineFile, MetricCopy, csv_copy, is_kept, tensorboard_copy
from train.run.state import RunState
from train.tasks import TASKS
from train.tasks.protocols import TextTokenizer

# Training has diverged if loss / (loss of uniform probabilities) is above this; before training, the ratio is below 2.
DIVERGENCE_FACTOR = 5


class RunReport:
    """Writes metrics.jsonl and log.txt and shows progress.

    Args:
        run: the run folder.
        max_steps: the last step, from which the remaining time is estimated.
        progress: whether to show progress.
        csv: whether to write metrics.csv.
        tensorboard: whether to write tensorboard/.
    """

    def __init__(
        self, run: RunFolder, max_steps: int, progress: bool = True, csv: bool = False, tensorboard: bool = False
    ) -> None:
        self.run, self.max_steps, self.progress = run, max_steps, progress
        formats = (csv, run.csv_file, csv_copy), (tensorboard, run.tensorboard, tensorboard_copy)
        # A file that an earlier start of the run has written is continued, even if it is no longer requested.
        self._formats = [(path, copy) for is_requested, path, copy in formats if is_requested or is_kept(path)]
        self.display = Display(progress)
        self.lines: list[str] = []  # lines of a rank other than 0 during an update; rank 0 writes them
        self._steps = Work("step")
        self._copies: list[MetricCopy] = []
        self._has_diverged = False

    @contextmanager
    def open_files(self, state: RunState, n_overflows: int, validates: bool) -> Iterator[None]:
        """Open the files to continue from `state`; drop lines of metrics.jsonl that are newer than `state`.

        `n_overflows` is the number of updates that were skipped up to `state` because of an overflow in fp16. With
        `validates`, the run begins with a validation at the step of `state`; its entry replaces an earlier one.
        """
        self._trim(state, n_overflows, validates)
        with (
            LineFile(self.run.metrics_file) as self._metrics,
            LineFile(self.run.log_file) as self._log,
            self.display,
            self.display.work("step", total=self.max_steps, done=state.step) as self._steps,
            ExitStack() as self._stack,
        ):
            fsync(self.run.path)  # otherwise a power loss could remove new files even if their content is synced
            self._open_copies()
            yield

    def _open_copies(self) -> None:
        """Write the requested copies of metrics.jsonl, and keep them open until `_stack` closes."""
        self._stack.close()
        self._copies = []
        for path, copy in self._formats:
            self._copies.append(self._stack.enter_context(copy(path, self.run.metrics())))

    def update_files(self, state: RunState, n_overflows: int) -> None:
        """Trim metrics.jsonl for a complete run, and write its requested copies if it changed or if one is missing.

        The arguments are those of `open_files`.
        """
        is_changed = self._trim(state, n_overflows, validates=False)
        if self._formats and (is_changed or not all(path.exists() for path, _ in self._formats)):
            with ExitStack() as self._stack:
                self._open_copies()
            self.show(f"wrote {' and '.join(str(path) for path, _ in self._formats)}")

    def write_metrics(self, entry: dict[str, Any]) -> None:
        """Append one JSON object, with the time, to metrics.jsonl."""
        entry = entry | {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        self._metrics.add(json.dumps(entry, allow_nan=False))
        for _, add in self._copies:
            add(entry)

    def write_line(self, text: str, always: bool = False, n_optional: int = 0) -> None:
        """Append a line with the time to log.txt; show it if progress is shown or `always` is true."""
        self.log_line(text)
        self.show(text, always, n_optional)

    def log_line(self, text: str) -> None:
        """Append a line with the time to log.txt without showing it."""
        self._log.add(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}")

    def show(self, text: str, always: bool = False, n_optional: int = 0) -> None:
        """Show a line if progress is shown or `always` is true, without writing it to log.txt.

        `n_optional` fields at the end of `text` are those that the progress display shows too (see `Display.write`).
        """
        with suppress(OSError):  # the terminal or pipe is closed
            if always and not self.progress:
                print(text, file=sys.stderr, flush=True)
        self.display.write(text, n_optional)

    def advance(self, state: RunState) -> None:
        """Update the progress display to the step, loss and speed of `state`."""
        self._steps.done = state.step
        self._steps.details = f"loss {state.loss:.3f}  {state.speed:,.0f} tokens/s"

    def sync(self) -> None:
        """Force the metrics to disk, so that no checkpoint is newer than the metrics. Report a file that was removed.

        Raises WriteError if the disk is full.
        """
        with disk_errors(str(self.run.metrics_file)):
            self._metrics.sync()
            removed = [file.path for file in (self._metrics, self._log) if file.restore()]
        for path in removed:
            self.write_line(f"warning: {path} was removed or replaced; its earlier lines are lost", always=True)
        replaced = [file.path for file, _ in self._copies if file.is_replaced()]
        if replaced or len(self._copies) < len(self._formats):
            self._open_copies()
        for path in replaced:
            self.write_line(
                f"warning: {path} was removed or replaced; it is written again from {self.run.metrics_file.name}",
                always=True,
            )

    def _trim(self, state: RunState, n_overflows: int, validates: bool) -> bool:
        """Drop lines of metrics.jsonl that are invalid or newer than `state`, and return whether there were any.

        The arguments are those of `open_files`.
        """
        file = self.run.metrics_file
        lines = ""
        if not file.exists():
            return False
        # The validation that ended a finished run (valid_step == step) is not repeated, so its line remains.
        last_validation = state.step - 1 if validates and state.valid_step < state.step else state.step
        for line, entry in self.run.metric_lines():
            step, n_skipped = entry["step"], entry.get("skipped")
            # overflow entries have no in_a_row and count separately
            limit = state.total_skipped if "in_a_row" in entry else n_overflows
            if entry["kind"] == "skipped" and isinstance(n_skipped, int) and n_skipped <= limit:
                step -= 1  # `state` includes these attempts of the next update
            if step <= (last_validation if entry["kind"] == "valid" else state.step):
                lines += line + "\n"
        is_changed = file.stat().st_size != len(lines.encode())
        if is_changed:
            write_text(file, lines)
        return is_changed

    # ---- the events of training

    def log_update(
        self, state: RunState, lr: float, gradient_norm: float, loss_scale: float | None, ranks: int
    ) -> None:
        """Report an update, with the mean loss and the speed since the last log line."""
        entry = {"kind": "train", "step": state.step, "epoch": state.logged_epoch, "loss": state.loss, "lr": lr}
        entry |= {"gradient_norm": gradient_norm, "tokens": state.tokens, "tokens_per_second": round(state.speed, 1)}
        if loss_scale is not None:
            entry["loss_scale"] = loss_scale
        if ranks > 1:
            entry["network"] = round(state.window_network_seconds, 3)
        self.write_metrics(entry | {"seconds": round(state.seconds, 3)})
        network = network_percentage(state.window_network_seconds, state.window_seconds) if ranks > 1 else ""
        self.write_line(
            f"step {state.step:,}/{self.max_steps:,}  epoch {state.logged_epoch}  loss {state.loss:.4f}  lr {lr:.3g}  "
            f"{state.speed:,.0f} tokens/s{network}  {self._steps.time_left()}",
            n_optional=2,
        )
        self._steps.n_logged = state.step

    def warn_of_divergence(self, loss: float, uniform_loss: float, remedies: str) -> None:
        """Warn, only once, if the loss is many times that of uniform probabilities; `remedies` says what to try."""
        if self._has_diverged or loss <= DIVERGENCE_FACTOR * uniform_loss:
            return
        self._has_diverged = True
        self.write_line(
            f"warning: the loss is {loss / uniform_loss:.3g} times that of uniform probabilities ({uniform_loss:.2f}); "
            f"try {remedies}",
            always=True,
        )

    def log_validation(self, state: RunState, result: Mapping[str, float], names: Mapping[str, str]) -> None:
        """Report a validation; `names` maps the keys of its scores to the names in the log."""
        self.write_metrics(
            {"kind": "valid", "step": state.step, "epoch": state.logged_epoch, "tokens": state.tokens, **result}
        )
        scores = "".join(f"  {name} {result[key]:.2f}" for key, name in names.items() if key in result)
        self.write_line(
            f"validation after step {state.step:,}: loss {result['loss']:.4f}  "
            f"perplexity {format_metric(result['perplexity'])}{scores}  ({result['seconds']:.1f} s)"
        )

    def log_overflow(self, step: int, loss_scale: float, total_skipped: int) -> None:
        """Report an update that was skipped because a gradient exceeded the range of fp16."""
        self.write_metrics({"kind": "skipped", "step": step, "loss_scale": loss_scale, "skipped": total_skipped})
        self.write_line(
            f"step {step:,}: the gradient exceeds the range of fp16; update skipped, loss scale now {loss_scale:g}"
        )

    def log_skipped(
        self,
        state: RunState,
        step: int,
        quantity: str,
        value: float,
        examples: str,
        operation: str,
        max_skipped_updates: int,
    ) -> None:
        """Report an update that was skipped because its loss or gradient norm (`quantity`) is not finite."""
        entry = {"kind": "skipped", "step": step, "what": quantity}
        entry |= {"in_a_row": state.consecutive_skipped, "skipped": state.total_skipped, "examples": examples}
        self.write_metrics(entry | ({"anomaly": operation} if operation else {}))
        if state.consecutive_skipped <= max_skipped_updates:
            # If several updates fail in a row, the cause is probably the weights, not the text.
            origin = nonfinite_origin(examples if state.consecutive_skipped == 1 else "", operation)
            self.write_line(
                f"step {step:,}: the {quantity} is {value}; update skipped ({state.consecutive_skipped} in a row, "
                f"limit train.max_skipped_updates = {max_skipped_updates}){origin}"
            )

    def log_start(
        self, state: RunState, checkpoint: Path | None, corpora: Mapping[str, Any], warnings: Iterable[str], setup: str
    ) -> None:
        """Report the start of a run: the warnings, the texts, and `setup`, which describes model and batches."""
        for text in warnings:
            self.write_line(text, always=True)
        for name, part in (("training", "train"), ("validation", "valid")):
            if corpora.get(part) is not None:
                self.write_line(f"{name} text: {corpora[part].describe()}")
        step, last = state.step, self.max_steps
        steps = f"steps {step + 1:,} to {last:,}" if step < last else "no steps left"
        self.write_line(f"{f'resuming from {checkpoint}' if checkpoint else 'training'}: {setup}, {steps}")
        if checkpoint and self.run.averaged_path.is_dir():
            self.write_line(
                "commands load checkpoints/averaged, not the newer checkpoints, until `average` runs again or "
                f"{self.run.averaged_path} is deleted"
            )

    def log_end(self, state: RunState, stop_reason: str, checkpoint: Path | None, ranks: int) -> None:
        """Report the end of a run."""
        network = network_percentage(state.network_seconds, state.seconds) if ranks > 1 else ""
        speed = f", {state.tokens / max(state.seconds, 1e-9):,.0f} tokens/s" if state.tokens else ""
        advice = "; continue with --resume" if stop_reason == "max_hours" else ""
        self.write_line(
            f"done after step {state.step:,} ({stop_reason}), {state.tokens:,} tokens in "
            f"{format_duration(state.seconds)} of updates{speed}{network}: {checkpoint or 'no checkpoint'}{advice}"
        )


class SilentReport(RunReport):
    """The report of a rank other than 0. It writes and shows nothing; `lines` collects its lines."""

    def __init__(self, run: RunFolder, max_steps: int, *options: bool) -> None:
        super().__init__(run, max_steps, progress=False)

    @contextmanager
    def open_files(self, state: RunState, n_overflows: int, validates: bool) -> Iterator[None]:
        yield

    def write_line(self, text: str, always: bool = False, n_optional: int = 0) -> None:
        self.lines.append(text)

    def _ignore(self, *arguments: Any, **options: Any) -> None:
        pass

    write_metrics = log_line = show = update_files = _ignore


def nonfinite_origin(examples: str, operation: str) -> str:
    """Describe where a NaN or infinity came from: the examples and the first operation, if they are known."""
    origin = f"; it comes from {examples}" if examples else ""
    return f"{origin}; first operation: {operation}" if operation else origin


def network_percentage(network_seconds: float, seconds: float) -> str:
    """Return the percentage of `seconds` that ranks waited for the network, as text."""
    return f", network {100 * network_seconds / max(seconds, 1e-9):.0f}%"


def vocabulary_sizes(tokenizer: TextTokenizer, data: Any) -> str:
    """Describe the sizes of the vocabularies; name data.vocab_size if the training text has yielded fewer subwords.

    `data` is the [data] table.
    """
    sizes = describe_vocabularies(tokenizer, task := TASKS[data.task])
    is_trained = data.tokenizer in task.tokenizers  # otherwise, data.tokenizer is the file of an existing tokenizer
    if not is_trained or (tokenizer.src_vocab_size or tokenizer.vocab_size) >= data.vocab_size:
        return sizes
    return f"{sizes} (data.vocab_size = {data.vocab_size:,}, but the training text yields no more)"


def describe_vocabularies(tokenizer: TextTokenizer, task: Any) -> str:
    """Return the numbers of labels and of subwords as text."""
    n_sources, n_targets = tokenizer.src_vocab_size, tokenizer.vocab_size
    if n_sources is None:
        return f"{n_targets:,} subwords"
    if task.data_kind == "labels":
        return f"{plural(n_targets - len(tokenizer.special_ids), 'label')}, {n_sources:,} subwords"
    return f"{n_sources:,} source and {n_targets:,} target subwords"
