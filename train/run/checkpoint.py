"""Write and load the checkpoints of a run. See also average.py, best_weights.py and pruning.py.

    RUN/checkpoints/step-N/model.safetensors        weights by name
                          /optimizer.safetensors    Adam's moments m and v, flat
                          /state.json               step, position in the text, early stopping, the configurations of
                                                    model and run, digests of text and tokenizer, checksums (storage.py)
    RUN/checkpoints/{averaged,best}/{model.safetensors,state.json}

A checkpoint is written into a hidden sibling folder, forced to disk and renamed. If the program is killed or the disk
fills up at any moment, the last complete checkpoint remains intact. Nothing is pickled.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import npx
from npx.messages import suggest_arguments
from train.errors import NoCheckpoint, UserError, quote
from train.files import disk_errors
from train.run.config import RunConfig, complete_fixed_keys
from train.run.folder import TRY_MORE_CHECKPOINTS, RunFolder, not_a_run_error, step_of
from train.run.folder_swap import existing_folder, folder_version, original_name
from train.run.state import RunState
from train.run.storage import (
    STATE,
    TRY_WRITER_VERSION,
    DamagedCheckpoint,
    check_shapes,
    model_config,
    read_arrays,
    read_state,
    write_folder,
)
from train.tasks import TASKS, Task
from train.tasks.protocols import TextTokenizer
from train.tasks.task import TaskError

MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
MAX_RETRIES = 3  # see `find_and_read`
Result = TypeVar("Result")


class Origin(NamedTuple):
    """The checkpoint that a model was loaded from."""

    path: str  # the checkpoint folder, for messages; " (step N)" is added to a name without the step
    caption: str  # a caption for pictures, which ends with the beginning of `digest`
    digest: str  # SHA-256 of state.json, which contains the checksums of all weights


class LoadedModel(NamedTuple):
    """A trained model, with the tokenizer and the configuration of its run."""

    model: Any  # an instance of a class in `models.ARCHITECTURES`, for example a Transformer
    tokenizer: Any  # its class depends on the task; for translation, it is train.Tokenizer or PairTokenizer
    config: RunConfig


@dataclass
class Checkpoint:
    """A checkpoint in memory: weights by name, optimizer arrays, and state.json with its SHA-256.

    An averaged checkpoint has no optimizer arrays.
    """

    weights: dict[str, npx.Array]
    optimizer_arrays: dict[str, npx.Array]
    state: dict[str, Any]
    digest: str


def save_checkpoint(
    run_dir: str | Path,
    state: Mapping[str, Any],
    weights: Mapping[str, npx.Array],
    optimizer_arrays: Mapping[str, npx.Array],
) -> Path:
    """Write checkpoints/step-N with N = state["step"], and return its path.

    `weights` and `optimizer_arrays` map names to arrays. `state` is JSON content with at least step, model (the
    configuration) and tokenizer_digest. Raises WriteError if the disk is full; earlier checkpoints then remain intact.
    """
    target = RunFolder(run_dir).step_path(state["step"])
    write_folder(target, {MODEL: weights, OPTIMIZER: optimizer_arrays}, state)
    return target


def load_checkpoint(path: str | Path, with_optimizer: bool = True) -> Checkpoint:
    """Read a checkpoint folder and verify state.json and every array.

    Raises DamagedCheckpoint, which names the file that is missing, truncated or changed.
    """
    path = existing_folder(Path(path))
    sha256 = hashlib.sha256()
    state = read_state(path, sha256.update)
    moments = dict(read_arrays(path / OPTIMIZER, state)) if with_optimizer and OPTIMIZER in state["files"] else {}
    return Checkpoint(dict(read_arrays(path / MODEL, state)), moments, state, sha256.hexdigest())


def load_newest(
    run: RunFolder, on_damaged: Callable[[str], object], with_optimizer: bool = True
) -> tuple[Path, Checkpoint] | None:
    """Return the newest undamaged checkpoint of a run with its path, or None if the run has no checkpoint.

    `on_damaged` is called with a message for each damaged checkpoint that is skipped. Raises DamagedCheckpoint if all
    are damaged, or if one was removed while it was read.
    """
    steps = run.step_paths()
    for path in reversed(steps):
        try:
            return path, load_checkpoint(path, with_optimizer)
        except DamagedCheckpoint as error:
            if path is steps[0] or not path.exists():
                raise
            on_damaged(f"{error}; using the previous checkpoint")
    return None


def is_imported(run: RunFolder) -> bool:
    """Return whether `import` wrote this run. The checkpoint of such a run has no optimizer state."""
    newest = next(readable_states(reversed(run.step_paths())), None)
    return newest is not None and OPTIMIZER not in newest[1]["files"]


def load_weights(path: str | Path, on_warning: Callable[[str], object]) -> tuple[Path, Checkpoint]:
    """Return the folder that `find_checkpoint` chooses, and its checkpoint without the optimizer's arrays.

    `on_warning` receives a message if an older checkpoint replaces a damaged one.
    """

    def load(folder: Path) -> tuple[Path, Checkpoint]:
        is_newest = original_name(folder).startswith("step-") and folder != Path(path)
        newest = load_newest(RunFolder(folder.parent.parent), on_warning, with_optimizer=False) if is_newest else None
        return newest or (folder, load_checkpoint(folder, with_optimizer=False))

    return find_and_read(path, load)[1]


def newest_state(run: RunFolder) -> RunState | None:
    """Return the state of a run from its newest readable checkpoint, or None if no checkpoint is readable."""
    for _, state in readable_states(reversed(run.step_paths())):
        with suppress(ValueError):
            return RunState.read(state.get("run"), state["step"])
    return None


def readable_states(paths: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the checkpoint folders whose state.json can be read, each with its content."""
    for path in paths:
        with suppress(UserError):
            yield path, read_state(path)


def resumed_config(run: RunFolder, config: RunConfig) -> RunConfig:
    """Return the configuration with which a run resumes (see `RunConfig.resumed`).

    Raises UserError, naming the key, if `config` changes a key that must stay the same. The run's configuration is read
    from the newest readable checkpoint, because config.toml may have been edited. The result names the tokenizer file
    that the run was started with or, if that file is missing, the copy of it that `config` names.
    """

    def check(config: RunConfig, original: Mapping[str, Any], source: Path) -> RunConfig:
        stored, given = original.get("data.tokenizer"), config.data.tokenizer
        has_moved = bool(stored) and stored != given and has_tokenizer_of(run, config)
        if has_moved:
            config = replace(config, data=replace(config.data, tokenizer=stored))
        config.check_fixed_keys(original, source)
        if has_moved and stored not in TASKS[config.data.task].tokenizers and not Path(str(stored)).exists():
            config = replace(config, data=replace(config.data, tokenizer=os.path.abspath(given)))
        return config

    model_configs = []
    for path, state in readable_states(reversed(run.step_paths())):
        model_configs.append(model_config(state))
        if isinstance(original := state.get("config"), dict):
            return check(config.resumed(model_configs[0]), original, path)
    in_file = run.load_config() if run.config_file.exists() else None
    if model_configs:
        config = config.resumed(model_configs[0])
        in_file = in_file and in_file.resumed(model_configs[0])
    return check(config, in_file.fixed_keys(), run.config_file) if in_file else config


def has_tokenizer_of(run: RunFolder, config: RunConfig) -> bool:
    """Return whether `config` names a tokenizer file with the content of the run's tokenizer."""
    task = TASKS[config.data.task]
    path = Path(config.data.tokenizer)
    if not (path.is_file() and run.tokenizer_file.is_file()):
        return False
    tokenizer, digest = task.load_tokenizer(path), task.load_tokenizer(run.tokenizer_file).digest
    if tokenizer.digest == digest:  # true also of a tokenizer that a new run could not use
        return True
    return bool(task.adapt_tokenizer(tokenizer, config.data, task.text_files(config.data)["train"]).digest == digest)


def find_checkpoint(path: str | Path) -> Path:
    """Return `path` if it is a checkpoint folder or, if it is a run, the checkpoint that commands load.

    Commands load the averaged, the best or the newest checkpoint, or else the newest best-N. `path` can also be the
    folder `checkpoints` of a run. Raises NoCheckpoint if the run has no checkpoint, and UserError if there is no run.
    """
    with disk_errors(str(path)):
        path = existing_folder(Path(path))
        is_checkpoint = path.absolute().parent.name == "checkpoints"  # other programs have a file called MODEL too
        if (path / STATE).exists() or (is_checkpoint and (path / MODEL).exists()):
            return path
        is_inside = path.name == "checkpoints" and not (path / "checkpoints").exists()
        run = RunFolder(path.parent if is_inside else path)
        steps = run.step_paths()
        for folder in map(existing_folder, (run.averaged_path, run.best_path)):
            if folder.is_dir():
                return folder
    if steps or (steps := run.ranked_paths()):
        return steps[-1]
    if not run.config_file.exists():
        raise not_a_run_error(path, "a run folder or a checkpoint folder")
    raise NoCheckpoint(f"{path}: no checkpoints in {run.checkpoints}; try {TRY_MORE_CHECKPOINTS}")


def find_and_read(path: str | Path, read: Callable[[Path], Result], retries: int = MAX_RETRIES) -> tuple[Path, Result]:
    """Return the folder that `find_checkpoint` chooses, and the result of `read` for it.

    If `read` fails and a training run has replaced or removed the folder in the meantime, the choice is repeated.
    """
    folder = find_checkpoint(path)
    version = folder_version(folder)
    try:
        return folder, read(folder)
    except UserError:
        if not retries or version == folder_version(folder) != ():
            raise
    return find_and_read(path, read, retries - 1)


def warn_of_old_average(
    path: str | Path, folder: Path, state: Mapping[str, Any], on_warning: Callable[[str], object]
) -> None:
    """Warn if the checkpoint `folder`, chosen for `path`, is an average that lacks the newest or a best checkpoint."""
    averaged, digests = state.get("averaged_steps"), state.get("averaged_digests")
    run = run_of(folder)
    is_best = bool(state.get("averaged_best"))
    candidates = run.ranked_paths() if is_best else run.step_paths()[-1:]
    if folder == Path(path) or not isinstance(averaged, list):
        return
    missing = [candidate.name for candidate in candidates if step_of(candidate) not in averaged]
    if not missing and isinstance(digests, list):  # earlier versions did not store them
        states = readable_states(candidates)
        missing = [candidate.name for candidate, content in states if weights_digest(content) not in digests]
    if missing:
        options, name = (" --best", "best") if is_best else (f" --last {len(averaged)}", missing[-1])
        on_warning(
            f"the loaded {folder} is older than {missing[-1]}; try "
            f"`npx-transformer average {quote(folder.parent.parent)}{options}`, "
            f"{quote(folder.with_name(name))} instead of {quote(path)}, or deleting {quote(folder)}"
        )


def weights_digest(state: Mapping[str, Any]) -> str:
    """Return a SHA-256 that identifies the weights of the checkpoint with this state.json."""
    return hashlib.sha256(json.dumps(state["files"].get(MODEL), sort_keys=True).encode()).hexdigest()


def run_of(checkpoint: Path) -> RunFolder:
    """Return the run that a checkpoint folder belongs to."""
    run = RunFolder(checkpoint.absolute().parent.parent)
    if not (run.tokenizer_file.exists() or run.config_file.exists()):  # `checkpoint` is a link
        run = RunFolder(checkpoint.resolve().parent.parent)
    return run


def run_files(checkpoint: Path) -> tuple[Path, Path]:
    """Return the paths of a checkpoint's tokenizer.json and config.toml, in its own folder or else in its run."""
    run = run_of(checkpoint)
    tokenizer_file, config_file = (
        in_checkpoint if (in_checkpoint := checkpoint / file.name).exists() else file
        for file in (run.tokenizer_file, run.config_file)
    )
    return tokenizer_file, config_file


def task_of(state: Mapping[str, Any]) -> Task:
    """Return the task of a checkpoint. Early versions had only translation, and did not store the task."""
    name = state.get("task", "translation")
    if name not in [*TASKS]:  # not `in TASKS`, because a damaged state may contain a value that is not hashable
        got = f"a checkpoint of the task {name!r}"
        raise UserError(f"model: expected one of {', '.join(TASKS)}; got {got}; try {TRY_WRITER_VERSION}")
    return TASKS[name]


@suggest_arguments
def load_model(path: str | Path, task: str = "", on_warning: Callable[[str], object] = warnings.warn) -> LoadedModel:
    """Load a trained model for use.

    Args:
        path: a run folder (its averaged, best or newest checkpoint is loaded) or one checkpoint folder.
        task: the task that the model must have been trained for; "" accepts any task.
        on_warning: called with a message if a damaged checkpoint is skipped, an average is older than the newest
            checkpoint, or the run has lost its config.toml. Default: Python's warnings.

    Returns the model in eval mode, the tokenizer and the configuration. tokenizer.json and config.toml are read from
    the checkpoint folder or else from its run. Without config.toml, the configuration is the default one.

    Raises UserError if a file is missing or damaged, if the tokenizer does not fit the model, or if the model was
    trained for another task.
    """
    return LoadedModel(*load_with_origin(path, task, on_warning)[:3])


def load_with_origin(
    path: str | Path, task: str = "", on_warning: Callable[[str], object] = warnings.warn
) -> tuple[Any, Any, RunConfig, Origin]:
    """Return the results of `load_model` and the origin of the checkpoint."""
    folder, checkpoint = load_weights(path, on_warning)
    tokenizer_file, config_file = run_files(folder)
    model_task = task_of(checkpoint.state)
    if task not in ("", model_task.name):
        raise TaskError(path, [task], model_task)
    tokenizer = model_task.load_tokenizer(tokenizer_file)
    check_tokenizer(tokenizer, checkpoint.state, tokenizer_file)
    if not config_file.exists() and run_of(folder).metrics_file.exists():
        on_warning(f"{config_file}: missing; using the defaults of [search]")
    config = RunConfig.load(config_file, complete=True) if config_file.exists() else RunConfig()
    if config_file.exists() and isinstance(original := checkpoint.state.get("config"), dict):
        # The tokenizer's file may have moved; `check_tokenizer` has compared its content.
        tokenizer_path = {"data.tokenizer": config.data.tokenizer}
        resumed = config.resumed(model_config(checkpoint.state))
        resumed.check_fixed_keys(original | tokenizer_path, folder / STATE, str(config_file))
    model = model_config(checkpoint.state).build_abstract()  # generates no random weights
    check_shapes(model, checkpoint.weights, folder / MODEL)
    check_siblings(folder, checkpoint.state)
    for name, p in model.named_parameters():
        p.data = npx.from_host(checkpoint.weights[name])
    model.eval()
    warn_of_old_average(path, folder, checkpoint.state, on_warning)
    step = f"step {checkpoint.state.get('step', 'unknown')}"
    if isinstance(averaged := checkpoint.state.get("averaged_steps"), list):
        step = f"mean of {len(averaged)} checkpoints"
    digest = checkpoint.digest
    caption = f"{run_of(folder).path.name}/{folder.name}, {step}, SHA-256 of {STATE} {digest[:12]}"
    name = str(folder) if original_name(folder).startswith("step-") else f"{folder} ({step})"
    return model, tokenizer, config, Origin(name, caption, digest)


def check_same_run(
    path: Path, state: Mapping[str, Any], other_path: Path, other: Mapping[str, Any], prefix: str, suggestion: str
) -> None:
    """Raise UserError, naming a key, unless two checkpoints agree in model, tokenizer, text and configuration."""

    def identity(state: Mapping[str, Any]) -> dict[str, Any]:
        task, config = state.get("task", "translation"), state.get("config")
        identity = {"model": model_config(state), "task": task, "tokenizer_digest": state["tokenizer_digest"]}
        if isinstance(config, dict):
            identity |= complete_fixed_keys(config) | {"text_sha256": state.get("text_sha256")}
            del identity["data.tokenizer"]  # the digest identifies the tokenizer; its file may have moved
        return identity

    values, others = identity(state), identity(other)
    for key in values.keys() & others.keys():
        if values[key] != others[key]:
            raise UserError(
                f"{prefix}expected checkpoints of one run; got a different {key} in {path} and {other_path}; "
                f"try {suggestion}"
            )


def check_siblings(folder: Path, state: Mapping[str, Any]) -> None:
    """Raise UserError if the newest of the readable checkpoints next to `folder` belongs to a different run."""
    run = run_of(folder)
    paths = reversed((run.averaged_path, run.best_path, *run.step_paths()))
    for path, sibling in readable_states(path for path in paths if path.name != folder.name):
        return check_same_run(folder, state, path, sibling, "", "removing the checkpoint of the other run")


def check_tokenizer(tokenizer: TextTokenizer, state: Mapping[str, Any], file: Path) -> None:
    """Raise UserError unless the model of `state` was trained with `tokenizer`, which was read from `file`."""
    vocab_size, digest = state["model"].get("vocab_size"), state["tokenizer_digest"]
    if tokenizer.vocab_size != vocab_size or tokenizer.digest != digest:
        raise UserError(
            f"{file}: expected the tokenizer of the model ({vocab_size} subwords, digest {digest[:12]}); "
            f"got {tokenizer.vocab_size} subwords, digest {tokenizer.digest[:12]}; try the tokenizer.json of its run"
        )
