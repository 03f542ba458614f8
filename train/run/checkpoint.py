"""What a run leaves on disk: checkpoints, the average of the last ones, a model read back.

    RUN/checkpoints/step-N/model.safetensors        weights by name
                          /optimizer.safetensors    Adam's moments m and v, flat
                          /state.json               step, position in the data, early stopping, the configurations of
                                                    model and run, what text and tokenizer; checksums, see stored.py
    RUN/checkpoints/{averaged,best}/{model.safetensors,state.json}

A checkpoint is written into a hidden sibling folder, forced to disk and renamed, so that a kill or a full disk at any
moment leaves the last good one as it was. There is no pickle.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import npx
from models import TransformerConfig
from train.errors import UserError, one_line
from train.files import digest as checksum
from train.run.config import RunConfig
from train.run.folder import RunFolder, step_of
from train.run.storage import IDENTITY, STATE, Damaged, damaged, read_arrays, read_state, remove, write_folder
from train.tasks import TASKS, Task

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


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
    """Writes checkpoints/step-N, N = state["step"], then removes what `prune` does not keep.

    `model` and `optimizer` map names to arrays; `state` is JSON and holds step, model (the configuration) and
    tokenizer_digest. Raises WriteError where the disk is full; the checkpoints before it stay.
    """
    run = RunFolder(run_dir)
    target = run.step(state["step"])
    write_folder(target, {MODEL: model, OPTIMIZER: optimizer}, state)
    prune(run, keep_last)
    return target


def save_weights(target: Path, state: Mapping[str, Any], model: Mapping[str, npx.Array]) -> None:
    """Writes a checkpoint to be used, not to be trained on from, in place of the one before."""
    write_folder(target, {MODEL: model}, state)


def prune(run: RunFolder, keep_last: int) -> None:
    """Removes all but the `keep_last` newest checkpoints (0 keeps all), and those that are `extra`, but for the newest.

    Extra is one that a stop has left between two that were due: so a run that was stopped keeps, later on,
    the same checkpoints as one that was not. A damaged one counts for none.
    """
    states: dict[Path, dict[str, Any]] = {}
    for path in run.steps():
        with suppress(UserError):
            states[path] = read_state(path)
    whole = list(states)
    for path in whole[:-1]:
        if states[path].get("extra"):
            whole.remove(path)
            remove(path)
    for path in run.steps() if keep_last > 0 and whole else []:
        if step_of(path) < step_of(whole[-keep_last:][0]):
            remove(path)


def load_checkpoint(path: str | Path, optimizer: bool = True) -> Checkpoint:
    """Reads a checkpoint folder, every array and state.json compared with the checksums they were written with.

    Raises Damaged that names the file which is missing, cut short or changed, and what to try.
    """
    path = Path(path)
    state = read_state(path)
    moments = dict(read_arrays(path / OPTIMIZER, state)) if optimizer and OPTIMIZER in state["files"] else {}
    return Checkpoint(dict(read_arrays(path / MODEL, state)), moments, state)


def newest_whole(
    run: RunFolder, say: Callable[[str], object], optimizer: bool = True
) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint of a run that is whole, None where there is none at all.

    `say` is told of each damaged one that is passed over. Raises Damaged where all are.
    """
    steps = run.steps()
    for path in reversed(steps):
        try:
            return path, load_checkpoint(path, optimizer)
        except Damaged as error:
            if path is steps[0]:
                raise
            say(f"{error}; the one before it is taken")
    return None


def check_same_config(run: RunFolder, config: RunConfig) -> None:
    """UserError, naming the key, where a run goes on with another configuration than it had.

    What it had is told by its newest checkpoint that can be read; config.toml may have been edited since.
    """
    for path in reversed(run.steps()):
        try:
            before = read_state(path).get("config")
        except Damaged:
            continue
        if isinstance(before, dict):
            return config.check_frozen(before, path)
    if run.config_file.exists():
        config.check_frozen(RunConfig.load(run.config_file).frozen(), run.config_file)


def average_checkpoints(run_dir: str | Path, last: int = 5) -> Path:
    """Writes the mean weights of the newest `last` checkpoints into checkpoints/averaged; returns it (section 6.1).

    Sums are float64, the mean has the checkpoints' dtype. Besides the sum, one array of one checkpoint is in memory.
    Raises UserError where there are fewer than `last`, where one is damaged, where they are of different models, or
    where another program writes to the run.
    """
    run = RunFolder(run_dir)
    available = run.steps()
    if last < 1 or len(available) < last:
        attempt = f"--last {len(available)}" if available else "the --out of a training that has written some"
        where = f"in {run.checkpoints}; got {len(available)}"
        raise UserError(f"average: expected {last} checkpoints {where}; try {attempt}")
    with run.owned("average"):
        paths = run.steps()[-last:]
        states = [read_state(path) for path in paths]
        for path, state in zip(paths, states, strict=True):
            for key, of in (("model", model_config), ("tokenizer_digest", lambda state: state["tokenizer_digest"])):
                if of(state) != of(states[-1]):
                    raise UserError(
                        f"average: expected checkpoints of one model; got another {key} in {path} than in "
                        f"{paths[-1]}; try a smaller --last"
                    )
        total: dict[str, npx.Array] = {}
        for path, state in zip(paths, states, strict=True):
            for name, array in read_arrays(path / MODEL, state):
                total[name] = total[name] + array if name in total else array.astype(npx.float64)
                if path is paths[-1]:
                    total[name] = (total[name] / last).astype(array.dtype)
        state = {key: states[-1][key] for key in (*IDENTITY, "task") if key in states[-1]}
        write_folder(run.averaged, {MODEL: total}, state | {"averaged_steps": [step_of(path) for path in paths]})
    return run.averaged


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that `path` means: itself, or of a run the averaged one, the best, or the newest step.

    Raises UserError where there is none.
    """
    path = Path(path)
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing"
        raise UserError(f"{path}: expected a run folder or a checkpoint folder; got {got}; try the --out of a training")
    if (path / STATE).exists() or (path / MODEL).exists():
        return path
    run = run_of(path)
    steps = run.steps()
    if folder := next((folder for folder in (run.averaged, run.best) if folder.is_dir()), None):
        return folder
    if not steps and not run.config_file.exists():
        raise UserError(f"{path}: expected a run or a checkpoint; got another folder; try the --out of a training")
    if not steps:
        raise UserError(
            f"{path}: expected checkpoints in {run.checkpoints}; got none; "
            f"try training on (--resume), with a smaller train.checkpoint_every"
        )
    return steps[-1]


def run_of(path: Path) -> RunFolder:
    """The run that a path means: itself, or the folder above its checkpoints."""
    return RunFolder(path.parent if path.name == "checkpoints" and not (path / "checkpoints").exists() else path)


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
    if name not in (*TASKS,):
        got = f"a checkpoint of the task {name!r}"
        raise UserError(f"model: expected one of {', '.join(TASKS)}; got {got}; try the version that wrote it")
    return TASKS[name]


def load_model(
    path: str | Path, task: str = "", on_warning: Callable[[str], object] = warnings.warn
) -> tuple[Any, Any, RunConfig]:
    """What `load_with_origin` gives, without the origin."""
    return load_with_origin(path, task, on_warning)[:3]


def load_with_origin(
    path: str | Path, task: str = "", on_warning: Callable[[str], object] = warnings.warn
) -> tuple[Any, Any, RunConfig, str]:
    """Model (in eval mode), tokenizer, configuration and origin of a run folder or of one checkpoint folder.

    The origin tells who looks at a picture which checkpoint it is of; state.json has the checksums of all weights. Of a
    run whose newest checkpoint is damaged it is the newest whole one, and `on_warning` (default: Python's warnings) is
    told so, or that an average is older than the newest checkpoint. tokenizer.json and config.toml are looked for in
    the checkpoint folder, then in the run folder above it; without config.toml the configuration is the default, which
    is told of a run that has lost it. Raises UserError for a missing or damaged file, for a tokenizer that does not fit
    the model and, where a `task` is asked for, for a model of another one.
    """
    folder = find_checkpoint(path)
    run = RunFolder(folder.absolute().parent.parent)
    if not (run.tokenizer_file.exists() or run.config_file.exists()):  # a link to a checkpoint
        run = RunFolder(folder.resolve().parent.parent)
    steps = run.steps()
    if folder.name.startswith("step-") and folder != Path(path) and (found := newest_whole(run, on_warning, False)):
        folder, checkpoint = found
    else:
        checkpoint = load_checkpoint(folder, optimizer=False)
    averaged = checkpoint.state.get("averaged_steps")
    if folder != Path(path) and isinstance(averaged, list) and steps and step_of(steps[-1]) not in averaged:
        on_warning(f"{folder}: taken, but older than {steps[-1].name}; try npx-transformer average again")
    places = [[folder / file.name, file] for file in (run.tokenizer_file, run.config_file)]
    pieces, settings = (own if own.exists() else file for own, file in places)
    own_task = task_of(checkpoint.state)
    if task not in ("", own_task.name):
        raise UserError(f"{path}: expected a model of the task {task}; got one of {own_task.name}; try another run")
    tokenizer = own_task.load_tokenizer(pieces)
    check_tokenizer(tokenizer, checkpoint.state, pieces)
    emptied = settings.is_file() and not settings.stat().st_size
    if emptied or not settings.exists() and run.metrics_file.exists():
        on_warning(f"{settings}: expected the run's configuration; got none; all of [search] is the default")
    config = RunConfig.load(settings) if settings.exists() else RunConfig()
    shape = model_config(checkpoint.state)
    check_shapes(shape, checkpoint.model, folder / MODEL)
    model = shape.build(dtype=next(iter(checkpoint.model.values())).dtype)
    model.load_state_dict(checkpoint.model)
    model.eval()
    step = f"step {checkpoint.state.get('step', 'unknown')}"
    if isinstance(averaged, list):
        step = f"mean of {len(averaged)} checkpoints"
    origin = f"{run.path.name}/{folder.name}, {step}, SHA-256 of {STATE} {checksum(folder / STATE)[:12]}"
    return model, tokenizer, config, origin


def check_shapes(shape: TransformerConfig, weights: Mapping[str, npx.Array], file: Path) -> None:
    """Damaged unless `weights`, read from `file`, are those of a model of this shape; before it takes any memory."""
    own = {name: p.shape for name, p in shape.outline().named_parameters()}
    for name in {**own, **weights}:
        found = tuple(weights[name].shape) if name in weights else "none"
        if found != own.get(name, "none"):
            expected = f"{name} of shape {own[name]}" if name in own else f"no {name}"
            raise damaged(file, f"{expected}, as the model in {STATE} has; got {found}")
    if (kinds := {str(array.dtype) for array in weights.values()}) not in ({"float32"}, {"float64"}):
        raise damaged(file, f"weights of float32 or float64; got {' and '.join(sorted(kinds)) or 'none'}")


def check_tokenizer(tokenizer: Any, state: Mapping[str, Any], file: Path) -> None:
    """Raises UserError unless `tokenizer`, read from `file`, is the one the model of `state` was trained with."""
    rows, digest = state["model"].get("vocab_size"), state["tokenizer_digest"]
    if tokenizer.vocab_size != rows or tokenizer.digest != digest:
        raise UserError(
            f"{file}: expected the tokenizer the model was trained with ({rows} pieces, digest {digest[:12]}); "
            f"got {tokenizer.vocab_size} pieces, digest {tokenizer.digest[:12]}; try the tokenizer.json of its run"
        )
