"""`train`: train a model from a configuration. The text options are the [data] keys that the tasks declare."""

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from npx.ranges import Range
from train.cli.app import Device, app, use_device
from train.cli.options import checked_option, number_option, print_stderr
from train.errors import ReadError, UserError, quote
from train.files import describe_path
from train.run.config import END, RunConfig, fields_of, preset_values
from train.run.folder import RunFolder, not_a_run_error
from train.run.toml_text import to_toml
from train.tasks import TASKS, Task
from train.tasks.task import option


def with_task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the **texts parameter of a command with an option for each [data] key of each task.

    These options follow the first two parameters.
    """
    parameters = list(inspect.signature(command).parameters.values())
    by_name = {p.name: p for p in (*parameters[:2], *task_options(), *parameters[2:-1])}
    command.__signature__ = inspect.Signature(list(by_name.values()))  # type: ignore[attr-defined]
    return command


def task_options() -> Iterator[inspect.Parameter]:
    """Yield an option for each key of each task, with the help of the key up to a colon, semicolon or period."""
    from models.fields import range_of

    for f in (f for task in TASKS.values() for f in fields(task.key_class)):
        words = re.split(r"[:;.]", f.metadata["help"])[0]
        metavar = "|".join(range_of(f).choices) or "F"
        kind = Annotated[str | None, typer.Option(metavar=metavar, help=f"{words}.")]
        yield inspect.Parameter(f.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)


@app.command(
    help="Train a model. " + " ".join(str(task.key_class.__doc__) for task in TASKS.values()),
    epilog="[b]npx-transformer info base --config[/b] prints every key of CONFIG with its meaning. Ctrl-C finishes the"
    " step and writes a checkpoint; --resume continues with bit-identical results.",
)
@with_task_options
def train(
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run folder to write.", show_default=False)],
    config: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml|PRESET", help="Configuration; optional with --resume.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key; may be repeated.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Train on a folder written by `data`: its text, tokenizer and token arrays. --valid-src and"
            " --valid-tgt replace its validation text.",
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Start from the weights of another run (its averaged, best or newest checkpoint) or of a checkpoint,"
            " and use its tokenizer unless --set data.tokenizer or CONFIG names one. Without CONFIG, also use its"
            " configuration.",
        ),
    ] = None,
    init_parameters: Annotated[
        str | None,
        typer.Option(
            "--init-parameters",
            metavar="PATTERNS",
            help="Copy only the parameters of --init whose names match, such as 'embedding.*,encoder.*'.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint of RUN.")] = False,
    device: Device = "cpu",
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not print progress; log.txt and metrics.jsonl are still written.")
    ] = False,
    max_hours: Annotated[
        float,
        number_option(
            float, "[0, 1e6]", metavar="H", help="Write a checkpoint and stop within H hours; 0 means no limit."
        ),
    ] = 0.0,
    debug: Annotated[
        str | None,
        checked_option(
            Range(str, choices=("anomaly",)),
            metavar="anomaly",
            help="If a loss or gradient is not finite, repeat the update and print the first operation whose result is"
            " not finite, with its layer and its line of code.",
        ),
    ] = None,
    **texts: str | None,
) -> None:
    """Train a model (see train/learn/training.py); `texts` are keys of [data]."""
    from npx.distributed import world
    from train.learn.training import train as run_training

    use_device(device)
    paths = {name: path for name, path in texts.items() if path is not None}
    if config is None and init is None and not resume:
        text = f"--data {quote(data)} ..." if data else "..." if paths else "--train-src F --train-tgt F ..."
        suggestion = "--resume" if RunFolder(out).has_run_files() else f"`npx-transformer train tiny {text}`"
        raise UserError(f"train: expected CONFIG.toml or a preset; got neither; try {suggestion}")
    all_overrides = [*(overrides or ()), *(f"data.{name}={to_toml(path)}" for name, path in paths.items())]
    if init is not None:
        if resume:
            raise UserError("--init applies only to a new run; try --resume without --init")
        all_overrides = [f"train.init={to_toml(str(init))}", *all_overrides]
    if init_parameters is not None:
        all_overrides.append(f"train.init_parameters={to_toml(init_parameters)}")

    def read(folder_keys: Mapping[str, Any]) -> RunConfig:
        folder_overrides = [f"data.{name}={to_toml(value)}" for name, value in folder_keys.items()]
        return read_config(config, [*folder_overrides, *all_overrides], out, resume, init)

    run_config = read({})
    if data:
        run_config, notes = use_data_folder(data, read, paths, init)
        for note in notes if not quiet else ():
            print_stderr(note)
    elif resume and paths and not os.path.isdir(run_config.data.prepared):  # the texts have moved
        run_config = replace(run_config, data=replace(run_config.data, prepared=""))
    task = TASKS[run_config.data.task]
    check_task_options(paths, run_config)
    if not resume:
        check_complete_text({override.partition("=")[0].strip() for override in all_overrides}, task, run_config.data)
    try:
        run_training(run_config, out, resume=resume, progress=not quiet, max_hours=max_hours, debug=debug or "")
    except KeyboardInterrupt:
        if world().rank == 0:
            print_stderr(
                f"interrupted; {'run the same command again' if RunFolder(out).is_new() else 'continue with --resume'}"
            )
        raise


def check_task_options(names: Iterable[str], config: RunConfig) -> None:
    """Raise UserError for an option that belongs to another task; the message names the keys that select that task."""
    from models import ARCHITECTURES

    task = TASKS[config.data.task]
    for name in names:
        if name not in {f.name for f in fields(task.key_class)}:
            owner = next(other for other in TASKS.values() if name in {f.name for f in fields(other.key_class)})
            suggestion = f"--set data.task={owner.name}"
            architectures = [name for name, model in ARCHITECTURES.items() if model.data_kind == owner.data_kind]
            if config.transformer_config(config.data.vocab_size).architecture not in architectures:
                suggestion += f" --set model.architecture={architectures[0]}"
            raise UserError(
                f"{option(name)}: expected an option of the task {task.name}; got an option of the task {owner.name}; "
                f"try {suggestion}"
            )


def check_complete_text(changed: Collection[str], task: Task[Any, Any, Any], data: Any) -> None:
    """Raise UserError if the options, which set the keys in `changed`, replace only one file of a text in `data`."""
    for part, names in task.keys_in_use(data).items():
        given = [name for name in names if f"data.{name}" in changed]
        for name in names if given else ():
            if name not in given and (file := getattr(data, name)):
                omission = "" if name in task.file_keys[part] else f", or {option(name)}= for no such file"
                raise UserError(
                    f"{option(given[0])}: expected both files of a text; got one file, to be paired with {file} "
                    f"from the configuration; try adding {option(name)} F{omission}"
                )


def use_data_folder(
    folder: Path, read: Callable[[Mapping[str, Any]], RunConfig], texts: Mapping[str, str], init: Path | None
) -> tuple[RunConfig, list[str]]:
    """Return the configuration for training on a folder written by `data`, and lines to show to the user.

    Args:
        folder: the folder of --data.
        read: returns the configuration with the given [data] keys, which --set and other options override.
        texts: the options that name texts.
        init: the run of --init, whose tokenizer is used.

    Raises UserError if the folder is invalid, if options also name a training text, or if the task is not translation.
    """
    from train.files import digest
    from train.text.download.manifest import data_keys

    keys = data_keys(folder)
    valid_files = TASKS["translation"].file_keys["valid"]
    if not {*valid_files}.isdisjoint(texts):  # the options replace the folder's validation text
        keys = {name: value for name, value in keys.items() if name not in valid_files}
    for name in texts:
        if name in keys:
            raise UserError(f"--data {folder} cannot be combined with {option(name)}; try only one of them")
    base = read({})
    original = base.data
    defaults = preset_values(base.model.preset)["data"]
    if original.task != "translation":
        raise UserError(f"--data applies only to the task translation, not to {original.task}; omit --data")
    unused: set[str] = set()
    if original.vocabularies == "separate":  # a new tokenizer is trained, and the texts are encoded again
        unused = {"tokenizer", "prepared"}
    file = original.tokenizer  # that of `init`, unless the configuration names another one
    if init is not None and os.path.isfile(file) and digest(file) != digest(keys["tokenizer"]):
        unused = {"tokenizer", "prepared", "vocab_size"}
    keys = {name: value for name, value in keys.items() if name not in unused}
    config = read(keys | dict.fromkeys(unused & {"prepared"}, ""))
    notes = []
    if init is not None and "tokenizer" in unused and os.path.isfile(config.data.tokenizer):
        notes.append(f"{folder}: {config.data.tokenizer} is used instead of the tokenizer in this folder")
    for name in ("vocab_size", "max_length"):
        value, given = getattr(config.data, name), getattr(original, name)
        if given not in (value, defaults.get(name, fields_of("data")[name].default)):
            notes.append(f"{folder}: data.{name} is {value:,}, as in this folder, not {given:,} as configured")
    if config.data.tokenizer == keys.get("tokenizer") and config.data.vocab_size != keys["vocab_size"]:
        raise UserError(
            f"data.vocab_size: expected {keys['vocab_size']}, the size of the tokenizer in {folder}; got "
            f'{config.data.vocab_size}; try another folder, or data.tokenizer = "bpe", which trains a new tokenizer'
        )
    files = [name for names in TASKS["translation"].file_keys.values() for name in names]
    is_same = all(getattr(config.data, name) == keys.get(name, "") for name in {*keys, *files}) and not texts
    if config.data.prepared == keys.get("prepared") and not is_same:  # write new token arrays to the run folder
        config = replace(config, data=replace(config.data, prepared=""))
    if not config.data.valid_src:
        notes.append(
            f"{folder}: there is no validation text, so training does not validate; try --valid-src F --valid-tgt F"
        )
    return config, notes


def read_config(
    config: str | None, overrides: list[str], out: Path, resume: bool, init: Path | None = None
) -> RunConfig:
    """Return the configuration of a file or preset or, if neither is given, that of the resumed run or of `init`.

    With `init`, its tokenizer is used unless the file or `overrides` name another one. With `resume`, keys that neither
    the file nor `overrides` name keep the values of the run.
    """
    from train.run.checkpoint import find_checkpoint, run_files

    changed = {override.partition("=")[0].strip() for override in overrides}
    run_file = RunFolder(out).config_file
    if resume and config is None and not run_file.exists():
        if not RunFolder(out).has_run_files():
            suggestion = "without --resume" if RunFolder(out).is_new() else ""
            raise not_a_run_error(out, "a run folder to resume", describe_path(out), suggestion)
        raise UserError(f"{out}: config.toml is missing; try giving CONFIG.toml as well")
    config_is_of_run = init is not None and config is None
    if init is not None:
        tokenizer_file, config_file = run_files(find_checkpoint(init))
        tokenizer = f"data.tokenizer={to_toml(str(tokenizer_file))}"
        if config is None:
            # The new run copies all weights of `init`, and must not write to the token arrays of `init`.
            config = str(config_file)
            overrides = ["data.prepared=", "train.init_parameters=", tokenizer, *overrides]
        elif "data.tokenizer" not in changed:
            base = load_config(config, ())
            if base.data.tokenizer in TASKS[base.data.task].tokenizers:
                overrides = [tokenizer, *overrides]
    if config is None:
        return RunFolder(out).load_config(overrides)
    if not resume:
        return load_config(config, overrides, config_is_of_run)
    stored = load_stored_config(RunFolder(out))
    own = replace(stored, data=type(stored.data)()) if stored else None  # of [data], only what CONFIG names
    given = load_config(config, [text for text in overrides if not text.strip().startswith("data.")], base=own)
    if stored is not None and not has_training_text(given):
        kept = ("tokenizer", "vocab_size", "max_length", "prepared")
        overrides = [*(f"data.{name}={to_toml(getattr(stored.data, name))}" for name in kept), *overrides]
    elif stored is not None and given.data.task != stored.data.task:
        raise UserError(
            f"resume: data.task: expected {stored.data.task} as in {run_file}; got {given.data.task} with a text in "
            f"{config}; try --resume without CONFIG"
        )
    return load_config(config, overrides, base=stored)


def has_training_text(config: RunConfig) -> bool:
    """Return whether a configuration names a training text for its task."""
    return any(getattr(config.data, name) for name in TASKS[config.data.task].file_keys["train"])


def load_stored_config(run: RunFolder) -> RunConfig | None:
    """Return the configuration in a run folder or, with a warning, None if it is missing or only partially written."""
    problem = f"{run.config_file}: missing"
    if run.config_file.exists():
        try:
            return run.load_config()
        except UserError as error:
            if isinstance(error, ReadError) or END in run.config_file.read_text(encoding="utf-8", errors="replace"):
                raise  # the file is complete, and has a mistake of the user
            problem = str(error)
    if run.has_run_files():
        print_stderr(f"warning: {problem}; keys that CONFIG does not name get their defaults")
    return None


def load_config(
    config: str, overrides: Iterable[str], complete: bool = False, base: RunConfig | None = None
) -> RunConfig:
    """Return the configuration of a file or, if there is no such file, of a preset, with overrides.

    Args:
        complete: whether the file belongs to a run and must be complete (see `RunConfig.load`).
        base: a configuration with the values of keys that the file does not contain.
    """
    from models import PRESETS

    if config in PRESETS and not Path(config).exists():
        return RunConfig.from_dict({"model": {"preset": config}}, overrides, config, base)
    if os.path.isdir(config):
        folder = Path(config)
        suggestion = "the path of a file inside it"
        if (folder / "manifest.json").is_file():
            suggestion = f"a preset, such as tiny, with --data {quote(config)}"
        elif (folder / "config.toml").is_file():
            suggestion = f"{quote(folder / 'config.toml')}, or, instead of CONFIG, --init {quote(config)}"
            suggestion += f" or --resume --out {quote(config)}"
        raise UserError(f"{config}: expected a configuration file; got a folder; try {suggestion}")
    return RunConfig.load(config, overrides, complete, base)
