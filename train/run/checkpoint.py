"""What a run leaves on disk: checkpoints written whole or not at all, the average of the last ones, a model read back.

    RUN/checkpoints/step-N/model.safetensors        weights by name
                          /optimizer.safetensors    Adam's moments m and v, flat
                          /state.json               step, position in the data, early stopping, the model's
                                                    configuration, the tokenizer's digest, and the size and SHA-256
                                                    of the other files
    RUN/checkpoints/{averaged,best}/{model.safetensors,state.json}

A checkpoint is written into a hidden sibling folder, forced to disk and renamed, so that a kill or a full disk at any
moment leaves the last good one as it was. There is no pickle.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import npx
from models import TransformerConfig
from train.errors import UserError, one_line
from train.run.config import RunConfig
from train.run.folder import RunFolder, disk_errors, step_of, sync
from train.tasks import TASKS, Task
from train.text.prepared import digest

FORMAT = 1  # of state.json
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
IDENTITY = ("step", "model", "tokenizer_digest")  # of the state, repeated inside each .safetensors


@dataclass
class Checkpoint:
    """One checkpoint in memory: weights by name, the optimizer's arrays (none in an averaged one), state.json."""

    model: dict[str, npx.Array]
    optimizer: dict[str, npx.Array]
    state: dict[str, Any]


def save_checkpoint(
    run_dir: str | Path,
    state: Mapping[str, Any],
    model: Mapping[str, npx.Array],
    optimizer: Mapping[str, npx.Array],
    keep_last: int = 0,
) -> Path:
    """Writes checkpoints/step-N, N = state["step"], then removes all but the `keep_last` newest (0 keeps all).

    `model` and `optimizer` map names to arrays; `state` is JSON and holds step, model (the configuration) and
    tokenizer_digest. Raises UserError where the disk is full; the checkpoints before it stay.
    """
    run = RunFolder(run_dir)
    target = run.step(state["step"])
    _write_folder(target, {MODEL: model, OPTIMIZER: optimizer}, state)
    for old in run.steps()[:-keep_last] if keep_last > 0 else []:
        _remove(old)
    return target


def save_weights(target: Path, state: Mapping[str, Any], model: Mapping[str, npx.Array]) -> None:
    """Writes a checkpoint to be used, not to be trained on from, in place of the one before."""
    _write_folder(target, {MODEL: model}, state)


def load_checkpoint(path: str | Path, optimizer: bool = True) -> Checkpoint:
    """Reads a checkpoint folder after comparing the size and SHA-256 of its files with state.json.

    Raises UserError that names the file which is missing, cut short or changed, and what to try.
    """
    path = Path(path)
    state = read_state(path)
    moments = _read_arrays(path / OPTIMIZER, state) if optimizer and OPTIMIZER in state["files"] else {}
    return Checkpoint(_read_arrays(path / MODEL, state), moments, state)


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
    run = RunFolder(run_dir)
    available = run.steps()
    if last < 1 or len(available) < last:
        attempt = f"--last {len(available)}" if available else "the --out of a training that has written some"
        where = f"in {run.checkpoints}; got {len(available)}"
        raise UserError(f"average: expected {last} checkpoints {where}; try {attempt}")
    paths = available[-last:]
    states = [read_state(path) for path in paths]
    for path, state in zip(paths, states, strict=True):
        _verify(path / MODEL, state)
        for key, of in (("model", model_config), ("tokenizer_digest", lambda state: state["tokenizer_digest"])):
            if of(state) != of(states[-1]):
                raise UserError(
                    f"average: expected checkpoints of one model; got another {key} in {path} than in {paths[-1]}; "
                    f"try a smaller --last"
                )
    total: dict[str, npx.Array] = {}
    for path in paths:
        with safe_open(path / MODEL, framework="np") as file:
            for name in file.keys():
                array = file.get_tensor(name)
                total[name] = total[name] + array if name in total else array.astype(npx.float64)
                if path is paths[-1]:
                    total[name] = (total[name] / last).astype(array.dtype)
    state = {key: states[-1][key] for key in (*IDENTITY, "task") if key in states[-1]}
    _write_folder(run.averaged, {MODEL: total}, state | {"averaged_steps": [step_of(path) for path in paths]})
    return run.averaged


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that `path` means: itself, or of a run the averaged one, the best, or the newest step.

    Raises UserError where there is none.
    """
    path = Path(path)
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing"
        raise UserError(f"{path}: expected a run folder or a checkpoint folder; got {got}; try the --out of a training")
    if (path / STATE).is_file() or (path / MODEL).is_file():
        return path
    run = RunFolder(path)
    steps = run.steps()
    if own := next((folder for folder in (run.averaged, run.best) if folder.is_dir()), None):
        return own
    if not steps:
        raise UserError(
            f"{path}: expected checkpoints in {run.checkpoints}; got none; "
            f"try training on (--resume), with a smaller train.checkpoint_every"
        )
    return steps[-1]


def model_config(state: Mapping[str, Any]) -> TransformerConfig:
    """The configuration of the model of a checkpoint; what an earlier version did not have is as it was then."""
    try:
        return TransformerConfig.from_dict(state["model"])
    except (TypeError, ValueError) as error:
        got = f"'{one_line(error)}'"
        raise UserError(f"model: expected a known configuration; got {got}; try the version that wrote it") from None


def task_of(state: Mapping[str, Any]) -> Task:
    """The task that the model of a checkpoint was trained for (translation, where an earlier version wrote it)."""
    name = state.get("task", "translation")
    if name not in TASKS:
        got = f"a checkpoint of the task {name!r}"
        raise UserError(f"model: expected one of {', '.join(TASKS)}; got {got}; try the version that wrote it")
    return TASKS[name]


def load_model(path: str | Path, task: str = "") -> tuple[Any, Any, RunConfig]:
    """The model (in eval mode), tokenizer and configuration of a run folder or of one checkpoint folder.

    tokenizer.json and config.toml are looked for in the checkpoint folder, then in the run folder above it; without
    config.toml the configuration is the default. Raises UserError for a missing or damaged file, for a tokenizer that
    does not fit the model and, where a `task` is asked for, for a model of another one.
    """
    folder = find_checkpoint(path)
    checkpoint = load_checkpoint(folder, optimizer=False)
    run = RunFolder(folder.resolve().parent.parent)
    places = [[folder / file.name, file] for file in (run.tokenizer_file, run.config_file)]
    pieces, settings = (own if own.is_file() else file for own, file in places)
    own_task = task_of(checkpoint.state)
    if task not in ("", own_task.name):
        raise UserError(f"{path}: expected a model of the task {task}; got one of {own_task.name}; try another run")
    tokenizer = own_task.load_tokenizer(pieces)
    check_tokenizer(tokenizer, checkpoint.state, pieces)
    config = RunConfig.load(settings) if settings.is_file() else RunConfig()
    try:
        dtype = next(iter(checkpoint.model.values())).dtype
        model = model_config(checkpoint.state).build(dtype=dtype)
        model.load_state_dict(checkpoint.model)
    except (StopIteration, TypeError, ValueError) as error:
        raise _damaged(folder / MODEL, f"the weights of the model in {STATE}; got {_reason(error)}") from None
    model.eval()
    return model, tokenizer, config


def check_tokenizer(tokenizer: Any, state: Mapping[str, Any], file: Path) -> None:
    """Raises UserError unless `tokenizer`, read from `file`, is the one the model of `state` was trained with."""
    rows, digest = state["model"]["vocab_size"], state["tokenizer_digest"]
    if tokenizer.vocab_size != rows or tokenizer.digest != digest:
        raise UserError(
            f"{file}: expected the tokenizer the model was trained with ({rows} pieces, digest {digest[:12]}); "
            f"got {tokenizer.vocab_size} pieces, digest {tokenizer.digest[:12]}; try the tokenizer.json of its run"
        )


def _write_folder(target: Path, files: Mapping[str, Mapping[str, npx.Array]], state: Mapping[str, Any]) -> None:
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
                # safetensors takes C order for granted.
                in_order = {key: np.asarray(npx.to_host(array), order="C") for key, array in arrays.items()}
                save_file(in_order, file, metadata=metadata)
                listed[name] = {"bytes": file.stat().st_size, "sha256": digest(file)}
                sync(file)
            text = json.dumps({"format": FORMAT, **state, "files": listed}, indent=1, allow_nan=False)
            (partial / STATE).write_text(text + "\n", encoding="utf-8")
            sync(partial / STATE)
            sync(partial)
            if target.exists():
                _remove(target)
            os.replace(partial, target)
            sync(target.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _remove(path: Path) -> None:
    """Renames first, so that a kill in between leaves no half-emptied folder under a checkpoint's name."""
    hidden = path.with_name(f".{path.name}.old.partial")
    shutil.rmtree(hidden, ignore_errors=True)
    os.replace(path, hidden)
    shutil.rmtree(hidden)


def _read_arrays(file: Path, state: Mapping[str, Any]) -> dict[str, npx.Array]:
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
        if digest(file) != expected["sha256"]:
            raise _damaged(file, "the bytes that were written; got others (by SHA-256)")
    except (OSError, KeyError, TypeError) as error:
        raise _damaged(file, f"a file of the checkpoint; got {_reason(error)}") from None


def _damaged(file: Path, found: str) -> UserError:
    folder = file.parent
    others = [path for path in RunFolder(folder.parent.parent).steps() if path.name != folder.name]
    if folder.name == "averaged":
        attempt = "averaging again"
    elif others:
        attempt = f"{others[-1]} instead (to resume from there, remove {folder})"
    else:
        attempt = "a copy of the file"
    return UserError(f"{file}: damaged checkpoint: expected {found}; try {attempt}")


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return f"no {error}" if isinstance(error, KeyError) else one_line(error)
