"""The folder of a run: which file lies where, what is there already, and writing that a kill cannot leave half done.

    RUN/config.toml              the complete configuration
       /tokenizer.json
       /data/PART/               the text as token arrays, PART "train" or "valid"
       /checkpoints/step-N/      see run/checkpoint.py
                   /averaged/
                   /best/         after the validation of greatest score, where the task is judged by one
       /metrics.jsonl, log.txt   see run/report.py
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from train.errors import UserError
from train.run.config import RunConfig

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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
        return sorted((path for path in found if re.fullmatch(r"step-\d+", path.name) and path.is_dir()), key=step_of)

    def metrics(self) -> list[dict[str, Any]]:
        """The entries of metrics.jsonl."""
        file = self.metrics_file
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.is_file() else []

    # ---- what is there already

    def in_use(self) -> bool:
        """Whether there is anything but an empty folder."""
        return self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir()))

    def check(self, config: RunConfig, resume: bool) -> None:
        """Raises UserError where a new run finds one already, or a resumed one none or another configuration."""
        if self.in_use() and not (resume and self.path.is_dir()):
            raise self.taken()
        if resume and not self.in_use():
            raise UserError(f"{self.path}: expected a run folder to resume; got none; try it without --resume")
        if resume:
            self.check_same_config(config)

    def taken(self) -> UserError:
        """The error for a new run where one is already."""
        got = "a run folder that exists" if self.path.is_dir() else "a file"
        attempt = "--resume to go on with it, or a new --out"
        return UserError(f"{self.path}: expected a new run folder; got {got}; try {attempt}")

    def check_same_config(self, config: RunConfig) -> None:
        """UserError, naming the key, where `config` differs from config.toml in what a resumed run may not change."""
        if not self.config_file.exists():
            return
        before = RunConfig.load(self.config_file)
        if name := config.frozen_difference(before):
            table, key = name.split(".")
            was, now = (getattr(getattr(c, table), key) for c in (before, config))
            raise UserError(
                f"resume: {name}: expected {was!r} as in {self.config_file}; got {now!r}; "
                f"try {key} = {was!r}, or a new run with --out"
            )

    # ---- writing

    @contextmanager
    def begun(self, config: RunConfig) -> Iterator[None]:
        """The block in which a run is prepared: makes the folder; one that was new is gone again where it fails."""
        new = not self.in_use()
        try:
            with disk_errors(str(self.path)):
                self.path.mkdir(parents=True, exist_ok=True)
                if not self.config_file.exists():
                    write_text(self.config_file, config.dump())
                yield
        except BaseException:
            if new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def complete(self, config: RunConfig, tokenizer: Any) -> None:
        """Before the first update: config.toml as it is now, tokenizer.json, nothing that a killed process left."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.clean_leftovers()
        write_text(self.config_file, config.dump())
        if not self.tokenizer_file.exists():
            tokenizer.save(self.tokenizer_file)

    def clean_leftovers(self) -> None:
        """Removes what a killed process left half-written or half-removed in checkpoints/."""
        for path in self.checkpoints.glob(".*.partial"):
            shutil.rmtree(path, ignore_errors=True)


def step_of(path: Path) -> int:
    """N of a folder step-N."""
    return int(path.name.removeprefix("step-"))


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turns a full disk (a quota, a file-size limit) met in the block into a UserError; other errors pass."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        found = re.search(r"os error (\d+)", str(error))  # safetensors tells the number in its text alone
        number = getattr(error, "errno", None) or (int(found[1]) if found else None)
        if number not in NO_SPACE:
            raise
        raise UserError(
            f"{what}: expected room on the disk; got '{os.strerror(number)}'; what was written before is kept; "
            f"try freeing space, then --resume"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Replaces a small text file whole or not at all; UserError where the disk is full."""
    partial = path.with_name(f".{path.name}.partial")
    with disk_errors(str(path)):
        try:
            partial.write_text(text, encoding="utf-8")
            sync(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Forces a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
