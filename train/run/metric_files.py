"""Files that grow line by line, and copies of metrics.jsonl in other formats: metrics.csv and TensorBoard event files.

A copy is rewritten from metrics.jsonl whenever training starts or resumes, and then receives each new entry. It
therefore never contains entries that a resumed run has dropped.
"""

import csv
import importlib.util
import io
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from train.errors import UserError, pip_install
from train.files import WriteError, disk_errors, is_same_file, open_for_appending, write_text
from train.tasks import TASKS

Entry = Mapping[str, Any]
COPIED_KINDS = ("train", "valid")  # the kinds of entries that are copied
COLUMNS = (
    "time", "kind", "step", "epoch", "tokens", "loss", "perplexity",
    *dict.fromkeys(score for task in TASKS.values() for score in task.scores),
    "lr", "gradient_norm", "loss_scale", "tokens_per_second", "network", "seconds",
)  # fmt: skip


class LineFile:
    """A text file that grows line by line. Bytes that a full disk rejects are buffered until there is space."""

    def __init__(self, path: Path) -> None:
        self.path, self._pending = path, b""

    def __enter__(self) -> "LineFile":
        self._file = open_for_appending(self.path)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, line: str) -> None:
        """Append a line."""
        self.write(line.encode("utf-8", "replace") + b"\n")

    def write(self, data: bytes) -> None:
        """Append bytes, after any that are pending."""
        self._pending += data
        with suppress(WriteError):
            self._write()

    def sync(self) -> None:
        """Force all lines to disk. Raises WriteError if the disk is full."""
        self._write()
        os.fsync(self._file.fileno())

    def is_replaced(self) -> bool:
        """Return whether the file was removed or replaced."""
        return not is_same_file(self._file.fileno(), self.path)

    def restore(self) -> bool:
        """Continue in a new file if this one was removed or replaced; return whether it was."""
        is_replaced = self.is_replaced()
        if is_replaced:
            self._reopen()
        return is_replaced

    def _reopen(self) -> None:
        file = open_for_appending(self.path)
        self._file.close()
        self._file = file

    def _write(self) -> None:
        with disk_errors(str(self.path)):
            if os.fstat(self._file.fileno()).st_nlink > 1:  # a backup by `cp -al` must not change
                self._reopen()
            while self._pending:
                self._pending = self._pending[self._file.write(self._pending) or 0 :]


# A copy of metrics.jsonl in another format, and a function that adds an entry to it.
MetricCopy = tuple[LineFile, Callable[[Entry], object]]


@contextmanager
def csv_copy(path: Path, entries: Iterable[Entry]) -> Iterator[MetricCopy]:
    """Write a CSV file with one row per entry, and keep it open for more during this block."""

    def line(cells: Iterable[Any]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        return text.getvalue()

    def row(entry: Entry) -> str:
        return line(entry.get(column, "") for column in COLUMNS)

    rows = [row(entry) for entry in entries if entry["kind"] in COPIED_KINDS]
    write_text(path, "".join(f"{text}\n" for text in [line(COLUMNS), *rows]))
    with LineFile(path) as file:
        yield file, lambda entry: file.add(row(entry)) if entry["kind"] in COPIED_KINDS else None


@contextmanager
def tensorboard_copy(folder: Path, entries: Iterable[Entry]) -> Iterator[MetricCopy]:
    """Empty the folder, write a TensorBoard event file into it, and keep that file open during this block.

    The numbers of an entry become scalars named "train/loss", "valid/bleu", ...
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    def seconds(entry: Entry) -> float:
        with suppress(KeyError, TypeError, ValueError):  # another program may have written the line
            return datetime.strptime(entry["time"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
        return 0.0

    def add(entry: Entry) -> None:
        if entry["kind"] in COPIED_KINDS:
            values = [
                Summary.Value(tag=f"{entry['kind']}/{name}", simple_value=entry[name])
                for name in COLUMNS[3:]
                if type(entry.get(name)) in (int, float)
            ]
            event = Event(wall_time=seconds(entry), step=entry["step"], summary=Summary(value=values))
            records.write(event.SerializeToString())

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    with LineFile(folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}") as file:
        records = RecordWriter(file)
        records.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        for entry in entries:
            add(entry)
        yield file, add


def is_kept(path: Path) -> bool:
    """Return whether `path` has metrics of an earlier start to which more can be appended."""
    return path.is_file() or (path.is_dir() and importlib.util.find_spec("tensorboard") is not None)


def check_tensorboard() -> None:
    """Raise UserError if the library that writes event files is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            f"train.tensorboard: the package tensorboard is not installed; try {pip_install('tensorboard')}"
        )
