"""The folder of a run: its layout, its state, and protection from other programs and users that write to it.

    RUN/config.toml              the complete configuration
       /tokenizer.json
       /data/PART/               the text as token arrays, PART "train" or "valid"
       /checkpoints/step-N/      see run/checkpoint.py
                   /averaged/
                   /best/         the weights after the best validation by train.best_metric
                   /best-N/       the weights after step N, for the train.keep_best best validations
       /metrics.jsonl, log.txt   see run/report.py
       /metrics.csv, tensorboard/  copies of metrics.jsonl, see run/metric_files.py
       /lock                     exists while a program writes, see train/lock.py

A folder is *new* if it is missing or empty. It is *unstarted* if it has an unchanged config.toml of this version, but
no checkpoints and no foreign files; training may then start over in it. A folder with checkpoints or a complete
config.toml can be resumed. It may contain foreign files, which a run does not touch.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from train.errors import ReadError, UserError, plural, quote
from train.files import describe_path, disk_errors, make_folder, open_for_appending, open_for_reading, write_text
from train.json_files import check_outside_run, parse_json, read_json, read_sealed
from train.lock import FOLDERS, FolderLock, lock_folder
from train.run.config import HEADER, RunConfig
from train.run.folder_swap import CHECKPOINT, existing_folder, finish_replacements, original_name, remove_partial
from train.run.key_names import FORMER_KEYS, similar_names
from train.run.toml_text import read_toml
from train.tasks.protocols import TextTokenizer

TRY_MORE_CHECKPOINTS = "again after more updates, or a run with a smaller train.checkpoint_every"
MAX_LISTED_RUNS = 5  # maximum number of runs in a message
CONTENTS = {*"config.toml tokenizer.json data checkpoints log.txt metrics.jsonl metrics.csv tensorboard".split()}
RUN_HEADER = f"{HEADER} Written by a training run."  # the first line of config.toml in a run
FILES = r"(config|tokenizer|log|metrics|meta)\.(toml|jsonl?|txt|csv)|lock|((src|tgt)\.)?(tokens|offsets)|left-out"
LEFTOVER = re.compile(rf"\.({FILES}|\.?({CHECKPOINT})(\.replaced)?(\.old)?)\.partial|(src|tgt)\.tokens\.part-[0-9]+")


class RunFolder:
    """One run on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file, self.tokenizer_file = self.path / "config.toml", self.path / "tokenizer.json"
        self.metrics_file, self.log_file = self.path / "metrics.jsonl", self.path / "log.txt"
        self.csv_file, self.tensorboard = self.path / "metrics.csv", self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.averaged_path, self.best_path = self.checkpoints / "averaged", self.checkpoints / "best"

    def data_path(self, part: str, shared: str = "") -> Path:
        """Return the path of a part's token arrays, in this run or in `shared`, a folder that several runs use."""
        return (Path(shared) if shared else self.path / "data") / part

    def step_path(self, step: int) -> Path:
        """Return the path of the checkpoint after `step` updates, whether or not it exists."""
        return self.checkpoints / f"step-{step}"

    def step_paths(self) -> list[Path]:
        """Return the paths of the complete checkpoints step-N in ascending order of N."""
        return self._numbered("step")

    def ranked_path(self, step: int) -> Path:
        """Return the path of the checkpoint best-N for N = `step`, whether or not it exists."""
        return self.checkpoints / f"best-{step}"

    def ranked_paths(self) -> list[Path]:
        """Return the paths of the complete checkpoints best-N in ascending order of N."""
        return self._numbered("best")

    def _numbered(self, kind: str) -> list[Path]:
        with disk_errors(str(self.checkpoints)):
            paths = [*self.checkpoints.iterdir()] if self.checkpoints.is_dir() else []
            named = {original_name(path) for path in paths if path.is_dir()}
        folders = [self.checkpoints / name for name in named if re.fullmatch(rf"{kind}-(0|[1-9][0-9]{{,17}})", name)]
        return [existing_folder(path) for path in sorted(folders, key=step_of)]

    def metrics(self) -> list[dict[str, Any]]:
        """Return the entries of metrics.jsonl."""
        return [entry for _, entry in self.metric_lines()] if self.metrics_file.is_file() else []

    def metric_lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the valid lines of metrics.jsonl with their entries; skip incomplete and foreign lines."""
        with open_for_reading(self.metrics_file, suggestion="removing it") as file:
            lines = file.read().decode("utf-8", errors="replace").split("\n")[:-1]
        for line in lines:
            with suppress(ValueError, RecursionError):
                entry = parse_json(line)
                if isinstance(entry, dict) and type(entry.get("step")) is int and isinstance(entry.get("kind"), str):
                    json.dumps(entry, ensure_ascii=False).encode()  # half of a surrogate pair raises ValueError
                    if all(type(value) is not int or abs(value) < 2**63 for value in entry.values()):
                        yield line, entry

    def load_config(self, overrides: Iterable[str] = ()) -> RunConfig:
        """Load config.toml, overridden by `overrides`. Raises UserError if it is missing, invalid or truncated."""
        return RunConfig.load(self.config_file, overrides, complete=True)

    def weights_only_paths(self) -> list[Path]:
        """Return the paths of the existing checkpoints that have no optimizer state: averaged, best and best-N."""
        return [*filter(Path.is_dir, map(existing_folder, (self.averaged_path, self.best_path))), *self.ranked_paths()]

    # ---- the state of the folder

    def is_new(self) -> bool:
        """Return whether the folder is missing or empty."""
        return not os.path.lexists(self.path) or (self.path.is_dir() and not self._names())

    def has_run_files(self) -> bool:
        """Return whether the folder holds files that only a run writes; `data` writes a tokenizer.json too."""
        return self.path.is_dir() and not CONTENTS.isdisjoint(self._names() - {self.tokenizer_file.name})

    def is_unstarted(self) -> bool:
        """Return whether the folder holds only files that a run of this version writes before its first checkpoint."""
        has_files = self.has_run_files() or self.tokenizer_file.exists()
        file = self.config_file if has_files else self.path / ".config.toml.partial"
        if not file.is_file() or self._foreign_names() or self.step_paths() or self.weights_only_paths():
            return False
        with open_for_reading(file) as raw:
            text = raw.read().decode("utf-8", "replace")
        head = text[: len(RUN_HEADER)].strip("\0")  # a power loss may leave null bytes
        return text == self._stored_config() if file == self.config_file else RUN_HEADER.startswith(head)

    def _stored_config(self) -> str | None:
        """Return config.toml as `write_config` would write its values, or None if the file is missing or invalid."""
        try:
            return self.load_config().dump(RUN_HEADER)
        except ReadError:
            raise
        except UserError:
            return None

    def _names(self) -> set[str]:
        return {*os.listdir(self.path)} - {"lock"}

    def check(self, resume: bool) -> None:
        """Raise UserError if there is already a run but `resume` is False, or no run but `resume` is True.

        A new run is not created inside another one.
        """
        if not resume:
            check_outside_run(self.path)
        if self.is_unstarted() or (self.step_paths() if resume else self.is_new()):
            return
        has_arrays = any(map(read_sealed, self.path.glob("data/*/meta.json")))  # written only by a run
        if not resume or self.weights_only_paths() or not (has_arrays or self.config_file.exists()):
            raise self.wrong_folder_error(resume)
        if self.config_file.exists():
            self.load_config()  # if the file is invalid, the UserError names the line

    def wrong_folder_error(self, resume: bool = False) -> UserError:
        """Return the error for a path that is not a new run folder or, with `resume`, not a run."""
        got = describe_path(self.path)
        suggestion = "the --out of a run, or no --resume" if resume else "a new --out"
        if self.step_paths():
            got, suggestion = "an existing run folder", "--resume to continue that run, or a new --out"
        elif weights := self.weights_only_paths():
            got = f"a run that has lost its checkpoints step-N ({weights[-1].name} has no optimizer state)"
            suggestion = f"moving step-N back, or --init {quote(self.path)} with a new --out"
        elif self._stored_config() is not None:
            name = next(iter(self._foreign_names()), "a config.toml that was edited or that another version wrote")
            got, suggestion = f"a folder with {name}", "--resume to continue the run in it, or a new --out"
        elif self.path.is_dir() and (names := [*self._foreign_names(), *sorted(self._names())]):
            got = f"a folder with {names[0]}"
        expected = "a run to resume" if resume else "a new run folder"
        return UserError(f"{self.path}: expected {expected}; got {got}; try {suggestion}")

    def _foreign_names(self) -> list[str]:
        """Return the names in the folder that a run does not write."""
        return sorted(name for name in self._names() if name not in CONTENTS and not LEFTOVER.fullmatch(name))

    # ---- writing

    def lock(self, program: str) -> AbstractContextManager[FolderLock]:
        """Lock the existing folder. Raises UserError, naming the holder, if another program has locked it."""
        return lock_folder(self.path, program)

    @contextmanager
    def creating(self, resume: bool, program: str = "train") -> Iterator[None]:
        """Create or reopen the folder of the run, and lock it during this block.

        If the block raises before `commit`, everything that it created in a new folder is removed, unless the user has
        moved the folder.
        """
        self._committed = False
        missing = not os.path.lexists(self.path)
        status = None
        try:
            with disk_errors(str(self.path), "or another --out"):
                make_folder(self.path)
            status = self.path.stat()
            with self.lock(program):
                self.check(resume)
                new = self.is_new()
                finish_replacements(self.checkpoints)
                try:
                    yield
                except BaseException:
                    if new and not self._committed and self._is_same_folder(status):
                        self._remove_contents()
                    raise
        finally:
            if missing and self._is_same_folder(status):
                with suppress(OSError):  # a folder that is not empty stays
                    self.path.rmdir()

    def _is_same_folder(self, status: os.stat_result | None) -> bool:
        return status is None or (self.path.exists() and os.path.samestat(status, self.path.stat()))

    def commit(self) -> None:
        """Keep the content of the folder even if the `creating` block raises after this call."""
        self._committed = True

    def _remove_contents(self) -> None:
        for name in sorted(self._names().difference(self._foreign_names()), key="config.toml".__eq__):
            remove_partial(f"{self.path}/{name}")  # config.toml last, because it marks the folder as a run

    def prepare(self, config: RunConfig, tokenizer: TextTokenizer) -> None:
        """Prepare the folder for the first update: write config.toml and tokenizer.json, and remove leftovers.

        Leftovers are files that a killed process left behind. Files to append to are checked before anything is
        written.
        """
        for file in filter(os.path.lexists, (self.metrics_file, self.log_file)):
            open_for_appending(file).close()
        make_folder(self.checkpoints)
        self.remove_leftovers()
        self.write_config(config)
        if not self.tokenizer_file.exists():
            tokenizer.save(self.tokenizer_file)

    def write_config(self, config: RunConfig) -> None:
        """Write config.toml unless it already has these values. The user's comments are kept if possible."""
        stored = self._stored_config()
        text = config.dump(RUN_HEADER)
        if stored is not None and stored != text:
            text = edit_config(self.config_file, stored, text)
        if stored != text:
            write_text(self.config_file, text)

    def remove_leftovers(self) -> None:
        """Remove files and folders that a killed process only partially wrote or removed."""
        finish_replacements(self.checkpoints)
        for path in chain(*((self.path / folder).glob("*") for folder in ("", *FOLDERS))):
            if LEFTOVER.fullmatch(path.name):
                remove_partial(str(path))


def edit_config(file: Path, stored: str, new: str) -> str:
    """Return the text of a configuration file with new values and the user's comments.

    `stored` and `new` are dumps of the present and the new configuration. Former names of keys are replaced. If the
    user has reformatted a line that must change, returns `new`, without the user's comments.
    """
    changes = dict[tuple[str, str], str]()
    table = ""
    for before, after in zip(stored.split("\n"), new.split("\n"), strict=True):
        table = before if before.startswith("[") else table
        if before != after:
            changes[table, before] = after
    with open_for_reading(file) as raw:
        text = raw.read().decode().removeprefix("\ufeff")
    lines = text.split("\n")
    table = ""
    for i, line in enumerate(lines):
        if header := re.match(r"\[\s*(\w+)\s*\]", line):
            table = f"[{header[1]}]"
        key = re.match(r"(?:# )?(\w+) =", line)  # a comment contains a key without a value
        if key and (name := FORMER_KEYS.get(f"{table[1:-1]}.{key[1]}")):
            lines[i] = line = line[: key.start(1)] + name.partition(".")[2] + line[key.end(1) :]
        for (place, before), after in changes.items():
            if place == table and re.fullmatch(rf"{re.escape(before)}[ \t\r]*(#.*)?", line):
                lines[i] = after + line[len(before) :]
    text = "\n".join(lines)
    with suppress(UserError, ValueError):
        if RunConfig.from_dict(read_toml(text)).dump(RUN_HEADER) == new:
            return text
    return new


def step_of(path: Path) -> int:
    """Return N of a checkpoint folder step-N or best-N."""
    return int(original_name(path).rpartition("-")[2])


def describe_other_format(folder: Path) -> tuple[str, str] | None:
    """Return a description of a folder with a model in another format and what to use instead of it, or None."""
    with suppress(UserError):
        content = read_json(folder / "config.json", "settings of a model")
        kind = content.get("model_type") if isinstance(content, dict) else None
        if kind == "npx-transformer":
            return "an export in safetensors format", "the run that was exported"
        if kind:
            return "a Hugging Face model", f"`npx-transformer import {quote(folder)} --out RUN`"
    return None


def similar_run(path: Path) -> str:
    """Return the path of a run of which the name of `path` may be a misspelling, for a message, or ""."""
    with suppress(OSError):
        names = os.listdir(path.absolute().parent)
        same = [name for name in names if name.lower() == path.name.lower()]
        for name in same or similar_names(path.name, names):
            if same or re.sub(r"\d", "", name) != re.sub(r"\d", "", path.name):  # run-1 is no misspelling of run-2
                with suppress(UserError):  # a folder that the user may not read
                    if RunFolder(path.with_name(name)).step_paths():
                        return quote(path.with_name(name))
    return ""


def not_a_run_error(path: Path, expected: str, got: str = "another folder", suggestion: str = "") -> UserError:
    """Return the error for a path that is not a run; suggest the runs in this folder or the run that contains it."""
    if not suggestion:
        got, suggestion = describe_other_format(path) or (got, "a folder that `train` has written")
    runs = [str(child) for child in sorted(path.glob("*")) if child.is_dir() and RunFolder(child).step_paths()]
    if runs:
        got, suggestion = f"a folder with {plural(len(runs), 'run')}", " or ".join(map(quote, runs[:MAX_LISTED_RUNS]))
    for parent in path.parents[:3]:
        if not runs and RunFolder(parent).step_paths():
            got, suggestion = "a folder of a run", quote(parent)
    if not path.is_dir():
        got, suggestion = describe_path(path), similar_run(path) or suggestion
    return UserError(f"{path}: expected {expected}; got {got}; try {suggestion}")
