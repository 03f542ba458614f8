"""The folder of a run: which file lies where, what is there already, and who may write in it.

    RUN/config.toml              the complete configuration
       /tokenizer.json
       /data/PART/               the text as token arrays, PART "train" or "valid"
       /checkpoints/step-N/      see run/checkpoint.py
                   /averaged/
                   /best/         after the validation of greatest score, where the task is judged by one
       /metrics.jsonl, log.txt   see run/report.py
       /lock                     while a program writes, see run/lock.py

A folder is new where it is not there or empty, begun where all in it is of a run that has no checkpoint yet, which may
be begun again, and a run where it has checkpoints. Any other is somebody's own.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.files import disk_errors, opened, removed, write_text
from train.run.config import RunConfig
from train.run.lock import Owned, owned

OWN = {"config.toml", "tokenizer.json", "data", "checkpoints", "metrics.jsonl", "log.txt"}  # in the order of removal


class RunFolder:
    """One run on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file, self.tokenizer_file = self.path / "config.toml", self.path / "tokenizer.json"
        self.metrics_file, self.log_file = self.path / "metrics.jsonl", self.path / "log.txt"
        self.checkpoints = self.path / "checkpoints"
        self.averaged, self.best = self.checkpoints / "averaged", self.checkpoints / "best"

    def data(self, part: str, shared: str = "") -> Path:
        """Where the arrays of a part of the text lie: here, or in a folder that runs share."""
        return (Path(shared) if shared else self.path / "data") / part

    def step(self, step: int) -> Path:
        """Where the checkpoint after so many updates lies."""
        return self.checkpoints / f"step-{step}"

    def steps(self) -> list[Path]:
        """The folders checkpoints/step-N, lowest step first; leftovers of a killed write are not among them."""
        found = self.checkpoints.glob("step-*")
        named = (path for path in found if re.fullmatch(r"step-[0-9]{1,18}", path.name))
        return sorted((path for path in named if path.is_dir()), key=step_of)

    def metrics(self) -> list[dict[str, Any]]:
        """The entries of metrics.jsonl."""
        return [entry for _, entry in self.metric_lines()] if self.metrics_file.is_file() else []

    def metric_lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The whole lines of metrics.jsonl with their entries; not what a killed process or a stranger left in it."""
        with opened(self.metrics_file, attempt="removing it") as file:
            lines = file.read().decode("utf-8", errors="replace").split("\n")[:-1]
        for line in lines:
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and type(entry.get("step")) is int and isinstance(entry.get("kind"), str):
                    yield line, entry

    # ---- what is there already

    def is_new(self) -> bool:
        """Whether there is nothing, or an empty folder."""
        return not os.path.lexists(self.path) or (self.path.is_dir() and not self._names())

    def is_begun(self) -> bool:
        """Whether all that is there is what a run leaves before its first checkpoint."""
        if not self.path.is_dir() or self.steps() or self.averaged.exists():
            return False
        return bool(names := self._names()) and all(name in OWN or _is_partial(name) for name in names)

    def _names(self) -> set[str]:
        return {*os.listdir(self.path)} - {"lock"}

    def check(self, resume: bool) -> None:
        """Raises UserError where a new run finds one already, or a resumed one none."""
        if resume and self.is_new():
            raise UserError(f"{self.path}: expected a run folder to resume; got none; try it without --resume")
        known = self.steps() or self.config_file.exists() if resume else self.is_new()
        if not (known or self.is_begun()):
            raise self.taken()

    def taken(self) -> UserError:
        """The error for a run where there is one already, or something else."""
        if self.steps():
            got, attempt = "a run folder that exists", "--resume to go on with it, or a new --out"
        else:
            got, attempt = "a folder of other files" if self.path.is_dir() else "a file", "a new --out"
        return UserError(f"{self.path}: expected a run folder, a new one without --resume; got {got}; try {attempt}")

    # ---- writing

    @contextmanager
    def owned(self, program: str) -> Iterator[Owned]:
        """This program's own for the block, where it exists; UserError says whose it is."""
        with owned(self.path, program) as own:
            yield own

    @contextmanager
    def begun(self, resume: bool) -> Iterator[None]:
        """The block in which a run is made in the folder, which is this program's own for so long.

        `started` ends its beginning: where what comes before it fails, what was not there before is gone again.
        """
        self._started, made = False, not os.path.lexists(self.path)
        try:
            with disk_errors(str(self.path), "or another --out"):
                self.path.mkdir(parents=True, exist_ok=True)
            with self.owned("train"):
                self.check(resume)
                new = self.is_new()
                try:
                    yield
                except BaseException:
                    if new and not self._started:
                        self._remove_own()
                    raise
        except FileExistsError:
            raise self.taken() from None
        finally:
            if made:
                with suppress(OSError):  # not where anything is in it
                    self.path.rmdir()

    def started(self) -> None:
        """What is in the folder stays from now on."""
        self._started = True

    def _remove_own(self) -> None:
        for name in self._names():
            if name in OWN or _is_partial(name):
                path = self.path / name
                removed([path], shutil.rmtree if path.is_dir() and not path.is_symlink() else os.unlink)

    def complete(self, config: RunConfig, tokenizer: Any) -> None:
        """Before the first update: config.toml as it is now, tokenizer.json, nothing that a killed process left."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.clean_leftovers()
        write_text(self.config_file, config.dump())
        if not self.tokenizer_file.exists():
            tokenizer.save(self.tokenizer_file)

    def clean_leftovers(self) -> None:
        """Removes what a killed process left half-written or half-removed."""
        removed([*self.checkpoints.glob(".*.partial")], shutil.rmtree)
        data = self.path / "data"
        files = chain(self.path.glob(".*.partial"), data.glob("*/.*.partial"), data.glob("*/*.part-*"))
        removed([*files], os.unlink)


def _is_partial(name: str) -> bool:
    return name.startswith(".") and name.endswith(".partial")


def step_of(path: Path) -> int:
    """N of a folder step-N."""
    return int(path.name.removeprefix("step-"))
