"""Files that grow by lines, and copies of metrics.jsonl in other formats: metrics.csv and TensorBoard event files.

A copy is rewritten from metrics.jsonl whenever a training starts or resumes, and then receives each new entry. So it
never contains what a resumed run has dropped.
"""

import csv
import importlib.util
import io
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.files import WriteError, disk_errors, fsync, open_for_appending, write_text
from train.tasks import TASKS

Entry = Mapping[str, Any]
Copy = Callable[[Entry], object]  # adds an entry of metrics.jsonl
COPIED = ("train", "valid")  # the kinds of entries that are copied
COLUMNS = (
    "time", "kind", "step", "epoch", "tokens", "loss", "perplexity",
    *dict.fromkeys(score for task in TASKS.values() for score in task.scores),
    "lr", "gradient_norm", "loss_scale", "tokens_per_second", "network", "seconds",
)  # fmt: skip


class LineFile:
    """A text file that grows by lines. It buffers what a full disk does not take and writes it once there is space."""

    def __init__(self, path: Path) -> None:
        self.path, self._pending = path, b""

    def __enter__(self) -> "LineFile":
        self._file = open_for_appending(self.path)
        fsync(self.path.parent)  # a new file survives a power loss only with its folder's entry
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, line: str) -> None:
        """Append a line."""
        self.append(line.encode("utf-8", "replace") + b"\n")

    def append(self, data: bytes) -> None:
        """Append bytes, after those that are pending."""
        self._pending += data
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


@contextmanager
def csv_copy(path: Path, entries: Iterable[Entry]) -> Iterator[Copy]:
    """Write a CSV file with one row per entry; yield the function that adds an entry."""

    def line(cells: Iterable[Any]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        return text.getvalue()

    def row(entry: Entry) -> str:
        return line(entry.get(column, "") for column in COLUMNS)

    rows = [row(entry) for entry in entries if entry["kind"] in COPIED]
    write_text(path, "".join(f"{text}\n" for text in [line(COLUMNS), *rows]))
    with LineFile(path) as file:
        yield lambda entry: file.add(row(entry)) if entry["kind"] in COPIED else None


@contextmanager
def tensorboard_copy(folder: Path, entries: Iterable[Entry]) -> Iterator[Copy]:
    """Write a TensorBoard event file into the emptied folder; yield the function that adds an entry.

    The numbers of an entry are scalars "train/loss", "valid/bleu", ...
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c
    from tensorboardX.summary import scalar

    def record(event: Any) -> bytes:
        """Return an event as a TFRecord. The library's writer would lose events on a full disk."""
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        length_check, data_check = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
        return length + length_check + data + data_check

    def add(entry: Entry) -> None:
        if entry["kind"] in COPIED:
            seconds = datetime.strptime(entry["time"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
            values = {f"{entry['kind']}/{name}": entry[name] for name in COLUMNS[3:] if name in entry}
            events = (Event(wall_time=seconds, step=entry["step"], summary=scalar(*item)) for item in values.items())
            file.append(b"".join(map(record, events)))

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    with LineFile(folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}") as file:
        file.append(record(Event(wall_time=time.time(), file_version="brain.Event:2")))
        for entry in entries:
            add(entry)
        yield add


def check_tensorboard() -> None:
    """Raise UserError if the library that writes event files is not installed."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise UserError(
            "train.tensorboard: expected the package tensorboardX; it is not installed; "
            "try pip install 'npx-transformer[tensorboard]'"
        )
