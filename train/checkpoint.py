"""What a run leaves on disk: checkpoints written whole or not at all, the average of the last ones, a model read back.

    RUN/checkpoints/step-N/model.safetensors        weights by name
                          /optimizer.safetensors    Adam's moments m and v, flat
                          /state.json               step, position in the data, early stopping, the model's
                                                    configuration, the tokenizer's digest, and the size and SHA-256
                                                    of the other files
    RUN/checkpoints/averaged/{model.safetensors,state.json}

A checkpoint is written into a hidden sibling folder, forced to disk and renamed, so that a kill or a full disk at any
moment leaves the last good one as it was. There is no pickle. Read trainer.py for what the state means.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import npx
from train.errors import UserError

if TYPE_CHECKING:
    from models import Transformer
    from train.config import RunConfig
    from train.tokenizer import Tokenizer

FORMAT = 1  # of state.json
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
IDENTITY = ("step", "model", "tokenizer_digest")  # of the state, repeated inside each .safetensors
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass
class Checkpoint:
    """One checkpoint in memory: weights by name, the optimizer's arrays (none in an averaged one), state.json."""

    path: Path
    model: dict[str, Any]
    optimizer: dict[str, Any]
    state: dict[str, Any]


def save_checkpoint(
    run_dir: str | Path,
    state: Mapping[str, Any],
    model: Mapping[str, Any],
    optimizer: Mapping[str, Any],
    keep_last: int = 0,
) -> Path:
    """Writes checkpoints/step-N, N = state["step"], then removes all but the `keep_last` newest (0 keeps all).

    `model` and `optimizer` map names to arrays; `state` is JSON and holds step, model (the configuration) and
    tokenizer_digest. Raises UserError where the disk is full; the checkpoints before it stay.
    """
    target = Path(run_dir) / "checkpoints" / f"step-{state['step']}"
    _write_folder(target, {MODEL: model, OPTIMIZER: optimizer}, state)
    for old in list_checkpoints(run_dir)[:-keep_last] if keep_last > 0 else []:
        _remove(old)
    return target


def list_checkpoints(run_dir: str | Path) -> list[Path]:
    """The folders checkpoints/step-N of a run, lowest step first; leftovers of a killed write are not among them."""
    found = (Path(run_dir) / "checkpoints").glob("step-*")
    return sorted((path for path in found if re.fullmatch(r"step-\d+", path.name) and path.is_dir()), key=_step_of)


def clean_leftovers(run_dir: str | Path) -> None:
    """Removes what a killed process left half-written or half-removed in checkpoints/."""
    for path in (Path(run_dir) / "checkpoints").glob(".*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(path: str | Path, optimizer: bool = True) -> Checkpoint:
    """Reads a checkpoint folder after comparing the size and SHA-256 of its files with state.json.

    Raises UserError that names the file which is missing, cut short or changed, and what to try.
    """
    path = Path(path)
    state = read_state(path)
    names = [name for name in (MODEL, OPTIMIZER) if name == MODEL or (optimizer and name in state["files"])]
    arrays = {name: _read_arrays(path / name, state) for name in names}
    return Checkpoint(path, arrays[MODEL], arrays.get(OPTIMIZER, {}), state)


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a checkpoint folder; UserError where it is missing, damaged or of another format."""
    file = path / STATE
    try:
        state = json.loads(file.read_text(encoding="utf-8"))
        kinds = {"format": int, "step": int, "model": dict, "tokenizer_digest": str, "files": dict}
        state = state if isinstance(state, dict) else {}
        wrong = [key for key, kind in kinds.items() if not isinstance(state.get(key), kind)]
        if wrong:
            raise ValueError(f"no {wrong[0]!r} in it")
    except (OSError, ValueError) as error:
        raise _damaged(file, f"a checkpoint's state; got {_reason(error)}") from None
    if state["format"] != FORMAT:
        raise UserError(
            f"{file}: expected checkpoint format {FORMAT}; got {state['format']}; try the version that wrote it"
        )
    return state


def average_checkpoints(run_dir: str | Path, last: int = 5) -> Path:
    """Writes the mean weights of the newest `last` checkpoints into checkpoints/averaged; returns it (section 6.1).

    Sums are float64, the mean has the checkpoints' dtype. Besides the sum, one array of one checkpoint is in memory.
    Raises UserError where there are fewer than `last`, where one is damaged, or where they are of different models.
    """
    folder = Path(run_dir) / "checkpoints"
    available = list_checkpoints(run_dir)
    if last < 1 or len(available) < last:
        attempt = f"--last {len(available)}" if available else "the --out of a training that has written some"
        raise UserError(f"average: expected {last} checkpoints in {folder}; got {len(available)}; try {attempt}")
    paths = available[-last:]
    states = [read_state(path) for path in paths]
    for path, state in zip(paths, states, strict=True):
        _verify(path / MODEL, state)
        for key in ("model", "tokenizer_digest"):
            if state[key] != states[-1][key]:
                raise UserError(
                    f"average: expected checkpoints of one model; got another {key} in {path} than in {paths[-1]}; "
                    f"try a smaller --last"
                )
    total: dict[str, Any] = {}
    for path in paths:
        with safe_open(path / MODEL, framework="np") as file:
            for name in file.keys():
                array = file.get_tensor(name)
                total[name] = total[name] + array if name in total else array.astype(npx.float64)
                if path is paths[-1]:
                    total[name] = (total[name] / last).astype(array.dtype)
    state = {key: states[-1][key] for key in IDENTITY} | {"averaged_steps": [_step_of(path) for path in paths]}
    _write_folder(folder / "averaged", {MODEL: total}, state)
    return folder / "averaged"


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that `path` means: itself, or of a run checkpoints/averaged if there, else the newest step.

    Raises UserError where there is none.
    """
    path = Path(path)
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing"
        raise UserError(f"{path}: expected a run folder or a checkpoint folder; got {got}; try the --out of a training")
    if (path / STATE).is_file() or (path / MODEL).is_file():
        return path
    averaged, steps = path / "checkpoints" / "averaged", list_checkpoints(path)
    if averaged.is_dir():
        return averaged
    if not steps:
        raise UserError(
            f"{path}: expected checkpoints in {path / 'checkpoints'}; got none; "
            f"try training on (--resume), with a smaller train.checkpoint_every"
        )
    return steps[-1]


def load_model(path: str | Path) -> tuple[Transformer, Tokenizer, RunConfig]:
    """The model (in eval mode), tokenizer and configuration of a run folder or of one checkpoint folder.

    tokenizer.json and config.toml are looked for in the checkpoint folder, then in the run folder above it; without
    config.toml the configuration is the default. Raises UserError for a missing or damaged file and for a tokenizer
    that does not fit the model.
    """
    from models import Transformer, TransformerConfig
    from train.config import RunConfig
    from train.tokenizer import Tokenizer

    folder = find_checkpoint(path)
    checkpoint = load_checkpoint(folder, optimizer=False)
    run_dir = folder.resolve().parent.parent
    files = {}
    for name in ("tokenizer.json", "config.toml"):
        files[name] = folder / name if (folder / name).is_file() else run_dir / name
    tokenizer = Tokenizer.load(files["tokenizer.json"])
    check_tokenizer(tokenizer, checkpoint.state, files["tokenizer.json"])
    config = RunConfig.load(files["config.toml"]) if files["config.toml"].is_file() else RunConfig()
    try:
        dtype = next(iter(checkpoint.model.values())).dtype
        model = Transformer(TransformerConfig.from_dict(checkpoint.state["model"]), dtype=dtype)
        model.load_state_dict(checkpoint.model)
    except (StopIteration, TypeError, ValueError) as error:
        raise _damaged(folder / MODEL, f"the weights of the model in {STATE}; got {_reason(error)}") from None
    model.eval()
    return model, tokenizer, config


def check_tokenizer(tokenizer: Tokenizer, state: Mapping[str, Any], file: Path) -> None:
    """Raises UserError unless `tokenizer`, read from `file`, is the one the model of `state` was trained with."""
    rows, digest = state["model"]["vocab_size"], state["tokenizer_digest"]
    if tokenizer.vocab_size != rows or tokenizer.digest != digest:
        raise UserError(
            f"{file}: expected the tokenizer the model was trained with ({rows} pieces, digest {digest[:12]}); "
            f"got {tokenizer.vocab_size} pieces, digest {tokenizer.digest[:12]}; try the tokenizer.json of its run"
        )


def check_same_config(config: RunConfig, run_dir: Path) -> None:
    """UserError, naming the key, where `config` differs from RUN/config.toml in what a resumed run may not change."""
    from train.config import RunConfig

    file = run_dir / "config.toml"
    if not file.exists():
        return
    before = RunConfig.load(file)
    # Files may have moved: that they hold the same text is told by SHA-256.
    moved = replace(before.data, train_src=config.data.train_src, train_tgt=config.data.train_tgt)
    before = replace(before, data=moved)
    if name := config.frozen_difference(before):
        table, key = name.split(".")
        was, now = (getattr(getattr(c, table), key) for c in (before, config))
        raise UserError(
            f"resume: {name}: expected {was!r} as in {file}; got {now!r}; try {key} = {was!r}, or a new run with --out"
        )


def run_exists(run_dir: Path) -> UserError:
    """The error for a run folder that is there already."""
    got = "a run folder that exists" if run_dir.is_dir() else "a file"
    return UserError(f"{run_dir}: expected a new run folder; got {got}; try --resume to go on with it, or a new --out")


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
            _sync(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _write_folder(target: Path, files: Mapping[str, Mapping[str, Any]], state: Mapping[str, Any]) -> None:
    """Writes {file name: {array name: array}} and state.json as the folder `target`, whole or not at all."""
    # One entry: safetensors writes several in a random order, and the same run is to give the same bytes.
    metadata = {"npx_transformer": json.dumps({key: state[key] for key in IDENTITY})}
    partial = target.with_name(f".{target.name}.partial")
    with disk_errors(str(target)):
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            listed = {}
            for name, arrays in files.items():
                file = partial / name
                save_file({key: _contiguous(array) for key, array in arrays.items()}, file, metadata=metadata)
                listed[name] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
                _sync(file)
            text = json.dumps({"format": FORMAT, **state, "files": listed}, indent=1, allow_nan=False)
            (partial / STATE).write_text(text + "\n", encoding="utf-8")
            _sync(partial / STATE)
            _sync(partial)
            if target.exists():
                _remove(target)
            os.replace(partial, target)
            _sync(target.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _contiguous(array: Any) -> Any:
    """On the host and in C order, which safetensors takes for granted."""
    host = npx.to_host(array)
    return host if host.flags.c_contiguous else host.copy(order="C")


def _remove(path: Path) -> None:
    """Renames first, so that a kill in between leaves no half-emptied folder under a checkpoint's name."""
    hidden = path.with_name(f".{path.name}.old.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def _read_arrays(file: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    _verify(file, state)
    try:
        with safe_open(file, framework="np") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}
    except (OSError, SafetensorError) as error:
        raise _damaged(file, f"arrays; got {_reason(error)}") from None


def _verify(file: Path, state: Mapping[str, Any]) -> None:
    try:
        size, expected = file.stat().st_size, state["files"][file.name]
        if size != expected["bytes"]:
            raise _damaged(file, f"{expected['bytes']:,} bytes; got {size:,}")
        if _digest(file) != expected["sha256"]:
            raise _damaged(file, "the bytes that were written; got others (by SHA-256)")
    except (OSError, KeyError, TypeError) as error:
        raise _damaged(file, f"a file of the checkpoint; got {_reason(error)}") from None


def _damaged(file: Path, found: str) -> UserError:
    folder = file.parent
    others = [path for path in list_checkpoints(folder.parent.parent) if path.name != folder.name]
    if folder.name == "averaged":
        attempt = "averaging again"
    elif others:
        attempt = f"{others[-1]} instead (to resume from there, remove {folder})"
    else:
        attempt = "a copy of the file"
    return UserError(f"{file}: damaged checkpoint: expected {found}; try {attempt}")


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
