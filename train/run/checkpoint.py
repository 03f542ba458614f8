"""Checkpoints of a run: writing, pruning, averaging, and loading a model for use.

    RUN/checkpoints/step-N/model.safetensors        weights by name
                          /optimizer.safetensors    Adam's moments m and v, flat
                          /state.json               step, position in the text, early stopping, the configurations of
                                                    model and run, digests of text and tokenizer, checksums (storage.py)
    RUN/checkpoints/{averaged,best}/{model.safetensors,state.json}

A checkpoint is written into a hidden sibling folder, forced to disk and renamed. A kill or a full disk at any moment
leaves the last good checkpoint intact. Nothing is pickled.
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
from train.run.replace import existing_folder, original_name, remove_folder
from train.run.storage import IDENTITY, STATE, DamagedCheckpoint, damaged_error, read_arrays, read_state, write_folder
from train.tasks import TASKS, Task
from train.tasks.protocols import TextTokenizer

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


@dataclass
class Checkpoint:
    """A checkpoint in memory: weights by name, the optimizer's arrays (empty in an averaged one), state.json."""

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
    """Write checkpoints/step-N with N = state["step"], prune older checkpoints, and return its path.

    `model` and `optimizer` map names to arrays. `state` is JSON content with at least step, model (the configuration)
    and tokenizer_digest. Raises WriteError if the disk is full; earlier checkpoints are intact then.
    """
    run = RunFolder(run_dir)
    target = run.step(state["step"])
    write_folder(target, {MODEL: model, OPTIMIZER: optimizer}, state)
    prune(run, keep_last)
    return target


def save_weights(target: Path, state: Mapping[str, Any], model: Mapping[str, npx.Array]) -> None:
    """Write or replace a checkpoint without optimizer arrays, from which no training can resume."""
    write_folder(target, {MODEL: model}, state)


def prune(run: RunFolder, keep_last: int) -> None:
    """Remove all checkpoints except the newest `keep_last` (0 keeps all), and `extra` ones except the newest.

    A stop between two scheduled checkpoints writes an extra one. Removing it later leaves an interrupted run with the
    same checkpoints as an uninterrupted one. Damaged checkpoints do not count towards `keep_last`, and with fewer than
    `keep_last` intact ones nothing is removed: a disk that returned an error may work again.
    """
    states: dict[Path, dict[str, Any]] = {}
    for path in run.steps():
        with suppress(UserError):
            states[path] = read_state(path)
    intact = list(states)
    for path in intact[:-1]:
        if states[path].get("extra"):
            intact.remove(path)
            remove_folder(path)
    for path in run.steps() if 0 < keep_last <= len(intact) else []:
        if step_of(path) < step_of(intact[-keep_last]):
            remove_folder(path)


def load_checkpoint(path: str | Path, optimizer: bool = True) -> Checkpoint:
    """Read a checkpoint folder and verify state.json and every array.

    Raises DamagedCheckpoint, which names the file that is missing, truncated or changed.
    """
    path = existing_folder(Path(path))
    state = read_state(path)
    moments = dict(read_arrays(path / OPTIMIZER, state)) if optimizer and OPTIMIZER in state["files"] else {}
    return Checkpoint(dict(read_arrays(path / MODEL, state)), moments, state)


def load_newest(
    run: RunFolder, on_damaged: Callable[[str], object], optimizer: bool = True
) -> tuple[Path, Checkpoint] | None:
    """Return the newest undamaged checkpoint of a run with its path, or None if the run has no checkpoint.

    `on_damaged` is called with a message for each damaged checkpoint that is skipped. Raises DamagedCheckpoint if all
    are damaged.
    """
    steps = run.steps()
    for path in reversed(steps):
        try:
            return path, load_checkpoint(path, optimizer)
        except DamagedCheckpoint as error:
            if path is steps[0]:
                raise
            on_damaged(f"{error}; using the previous checkpoint")
    return None


def check_same_config(run: RunFolder, config: RunConfig) -> None:
    """Raise UserError, naming the key, if a resumed run would have another configuration.

    The newest readable checkpoint has the original configuration; config.toml may have been edited since.
    """
    for path in reversed(run.steps()):
        try:
            original = read_state(path).get("config")
        except DamagedCheckpoint:
            continue
        if isinstance(original, dict):
            return config.check_frozen(original, path)
    if run.config_file.exists():
        config.check_frozen(RunConfig.load(run.config_file).frozen(), run.config_file)


def average_checkpoints(run_dir: str | Path, last: int = 5) -> Path:
    """Write the mean weights of the newest checkpoints to checkpoints/averaged (section 6.1).

    The sums are in float64; the mean has the dtype of the checkpoints. Memory holds the sums and one array of one
    checkpoint.

    Args:
        run_dir: The run folder.
        last: How many of the newest checkpoints to average.

    Returns:
        The path of the averaged checkpoint.

    Raises:
        UserError: There are fewer than `last` checkpoints, one is damaged, they are of different models, or another
            program is writing to the run.
    """
    run = RunFolder(run_dir)
    available = run.steps()
    if last < 1 or len(available) < last:
        attempt = f"--last {len(available)}" if available else "a run folder whose training has written checkpoints"
        raise UserError(
            f"average: expected {last} checkpoints in {run.checkpoints}; got {len(available)}; try {attempt}"
        )
    with run.lock("average"):
        paths = run.steps()[-last:]
        states = [read_state(path) for path in paths]
        for path, state in zip(paths, states, strict=True):
            for key, value_of in (
                ("model", model_config),
                ("tokenizer_digest", lambda state: state["tokenizer_digest"]),
            ):
                if value_of(state) != value_of(states[-1]):
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
    """Return a checkpoint folder: `path` itself, or the averaged, best or newest checkpoint of the run `path`.

    Raises UserError if there is none.
    """
    path = existing_folder(Path(path))
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing"
        raise UserError(f"{path}: expected a run folder or a checkpoint folder; got {got}; try the --out of a training")
    if (path / STATE).exists() or (path / MODEL).exists():
        return path
    run = run_of(path)
    steps = run.steps()
    for folder in map(existing_folder, (run.averaged, run.best)):
        if folder.is_dir():
            return folder
    if not steps and not run.config_file.exists():
        raise UserError(f"{path}: expected a run or a checkpoint; got another folder; try the --out of a training")
    if not steps:
        raise UserError(
            f"{path}: no checkpoints in {run.checkpoints}; try --resume with a smaller train.checkpoint_every"
        )
    return steps[-1]


def run_of(path: Path) -> RunFolder:
    """Return the run of a path: the run folder itself or its checkpoints folder."""
    return RunFolder(path.parent if path.name == "checkpoints" and not (path / "checkpoints").exists() else path)


def model_config(state: Mapping[str, Any]) -> TransformerConfig:
    """Return the configuration of a checkpoint's model; keys that its version lacked have their old meaning."""
    try:
        return TransformerConfig.from_dict(state["model"])
    except (TypeError, ValueError) as error:
        got = f"'{one_line(error)}'"
        raise UserError(f"model: expected a known configuration; got {got}; try the version that wrote it") from None


def task_of(state: Mapping[str, Any]) -> Task:
    """Return the task of a checkpoint (translation for versions that did not store it)."""
    name = state.get("task", "translation")
    if name not in (*TASKS,):
        got = f"a checkpoint of the task {name!r}"
        raise UserError(f"model: expected one of {', '.join(TASKS)}; got {got}; try the version that wrote it")
    return TASKS[name]


def load_model(
    path: str | Path, task: str = "", on_warning: Callable[[str], object] = warnings.warn
) -> tuple[Any, Any, RunConfig]:
    """Load a trained model for use.

    Args:
        path: A run folder (its averaged, best or newest checkpoint is loaded) or one checkpoint folder.
        task: The task that the model must be for; "" accepts any.
        on_warning: Called with a message if a damaged checkpoint is skipped, an average is older than the newest
            checkpoint, or the run has lost its config.toml. Default: Python's warnings.

    Returns:
        (model in eval mode, tokenizer, configuration); the types of the first two depend on the task. tokenizer.json
        and config.toml come from the checkpoint folder or else from the run folder above it. Without config.toml the
        configuration is the default one.

    Raises:
        UserError: A file is missing or damaged, the tokenizer does not fit the model, or the model is for another
            task.
    """
    return load_with_origin(path, task, on_warning)[:3]


def load_with_origin(
    path: str | Path, task: str = "", on_warning: Callable[[str], object] = warnings.warn
) -> tuple[Any, Any, RunConfig, str]:
    """Return `load_model`'s results and the origin: which checkpoint it is, for the captions of pictures.

    The origin ends with the SHA-256 of state.json, which in turn has the checksums of all weights.
    """
    folder = find_checkpoint(path)
    run = RunFolder(folder.absolute().parent.parent)
    if not (run.tokenizer_file.exists() or run.config_file.exists()):  # `path` is a link to a checkpoint
        run = RunFolder(folder.resolve().parent.parent)
    steps = run.steps()
    is_step = original_name(folder).startswith("step-")
    if is_step and folder != Path(path) and (newest := load_newest(run, on_warning, False)):
        folder, checkpoint = newest
    else:
        checkpoint = load_checkpoint(folder, optimizer=False)
    averaged = checkpoint.state.get("averaged_steps")
    if folder != Path(path) and isinstance(averaged, list) and steps and step_of(steps[-1]) not in averaged:
        on_warning(f"{folder} is older than {steps[-1].name}; try npx-transformer average again")
    tokenizer_file, config_file = (
        in_checkpoint if (in_checkpoint := folder / file.name).exists() else file
        for file in (run.tokenizer_file, run.config_file)
    )
    model_task = task_of(checkpoint.state)
    if task not in ("", model_task.name):
        raise UserError(f"{path}: expected a model of the task {task}; got one of {model_task.name}; try another run")
    tokenizer = model_task.load_tokenizer(tokenizer_file)
    check_tokenizer(tokenizer, checkpoint.state, tokenizer_file)
    is_empty = config_file.is_file() and not config_file.stat().st_size
    if is_empty or not config_file.exists() and run.metrics_file.exists():
        on_warning(f"{config_file}: missing; using the defaults of [search]")
    config = RunConfig.load(config_file) if config_file.exists() else RunConfig()
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
    """Raise DamagedCheckpoint unless `weights`, read from `file`, fit a model of this configuration.

    The model is not built for this, so a wrong configuration takes no memory.
    """
    shapes = {name: p.shape for name, p in shape.outline().named_parameters()}
    for name in {**shapes, **weights}:
        got = tuple(weights[name].shape) if name in weights else "none"
        if got != shapes.get(name, "none"):
            expected = f"{name} of shape {shapes[name]}" if name in shapes else f"no {name}"
            raise damaged_error(file, f"{expected}, as the model in {STATE} has; got {got}")
    if (dtypes := {str(array.dtype) for array in weights.values()}) not in ({"float32"}, {"float64"}):
        raise damaged_error(file, f"weights of float32 or float64; got {' and '.join(sorted(dtypes)) or 'none'}")


def check_tokenizer(tokenizer: TextTokenizer, state: Mapping[str, Any], file: Path) -> None:
    """Raise UserError unless `tokenizer`, read from `file`, is the one the model of `state` was trained with."""
    vocab_size, digest = state["model"].get("vocab_size"), state["tokenizer_digest"]
    if tokenizer.vocab_size != vocab_size or tokenizer.digest != digest:
        raise UserError(
            f"{file}: expected the tokenizer of the model ({vocab_size} subwords, digest {digest[:12]}); "
            f"got {tokenizer.vocab_size} subwords, digest {tokenizer.digest[:12]}; try the tokenizer.json of its run"
        )
