"""`train`: a model from a configuration. Its options for text are the keys of [data] that the tasks declare."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from npx.ranges import Range
from train.cli.app import Device, app, use_device
from train.cli.options import number, ranged
from train.errors import UserError
from train.files import describe_path
from train.tasks import TASKS


def with_text_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each key of each task, after its first two parameters, in place of **texts."""
    own = list(inspect.signature(command).parameters.values())
    parameters = {p.name: p for p in (*own[:2], *text_options(), *own[2:-1])}
    command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    return command


def text_options() -> Iterator[inspect.Parameter]:
    """An option for each of the tasks' own keys, with the first words of the key's help."""
    for f in (f for task in TASKS.values() for f in fields(task.keys)):
        words = re.split(r"[:;.]", f.metadata["help"])[0]
        kind = Annotated[str | None, typer.Option(metavar="F", help=f"{words}.")]
        yield inspect.Parameter(f.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)


@app.command(
    help="Train a model. " + " ".join(str(task.keys.__doc__) for task in TASKS.values()),
    epilog="Every key of CONFIG with its meaning: [b]npx-transformer info base --config[/b]. Ctrl-C finishes the step"
    " and writes a checkpoint; --resume goes on from it, to the same weights as if it had never stopped.",
)
@with_text_options
def train(
    out: Annotated[Path, typer.Option(metavar="RUN", help="Run folder to write.", show_default=False)],
    config: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG.toml|PRESET", help="May be left out with --resume.", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Overrides a key; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of RUN.")] = False,
    device: Device = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress; log.txt and metrics.jsonl as always.")] = False,
    max_hours: Annotated[
        float, number(float, "[0, 1e6]", metavar="H", help="Stop by then, with a checkpoint; 0: never.")
    ] = 0.0,
    debug: Annotated[
        str | None,
        ranged(
            Range(str, choices=("anomaly",)),
            metavar="anomaly",
            help="Where a loss or gradient is not finite, name the first operation, its layer and its line of code:"
            " that update is formed once more. Costs nothing until then.",
        ),
    ] = None,
    **texts: str | None,
) -> None:
    """The whole of a training, see train/learn/training.py; `texts` are keys of [data]."""
    import npx
    from train.learn.training import train as train_run
    from train.run.config import to_toml

    use_device(device)
    changes = [*(settings or ()), *(f"data.{name}={to_toml(path)}" for name, path in texts.items() if path is not None)]
    run_config = read_config(config, changes, out, resume)
    task = TASKS[run_config.data.task]
    for name, path in texts.items():
        if path is not None and name not in {f.name for f in fields(task.keys)}:
            of = next(other.name for other in TASKS.values() if name in {f.name for f in fields(other.keys)})
            got, option = f"text of the task {of}", f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: expected text of the task {task.name}; got {got}; try --set data.task={of}")
    summary = train_run(run_config, out, resume=resume, progress=not quiet, max_hours=max_hours, debug=debug or "")
    if npx.distributed.world().rank == 0:
        print(f"{out}: stopped after step {summary.step} ({summary.stopped})", file=sys.stderr)


def read_config(config: str | None, changes: list[str], out: Path, resume: bool) -> Any:
    """The configuration of a training: from a file, by a preset's name, or (to resume) from the run itself."""
    from models import PRESETS
    from train.run.config import RunConfig
    from train.run.folder import RunFolder

    own = RunFolder(out).config_file
    if resume and config is None and not own.exists():
        if RunFolder(out).is_new() or not out.is_dir():
            got = describe_path(out)
            raise UserError(f"{out}: expected a run folder to resume; got {got}; try it without --resume")
        raise UserError(f"{out}: expected config.toml in it; got none; try giving CONFIG.toml too")
    if config is None and not resume:
        raise UserError("train: expected CONFIG.toml or a preset; got none; try npx-transformer train base --out RUN")
    if config is not None and config in PRESETS and not Path(config).exists():
        return RunConfig.from_dict({"model": {"preset": config}}, changes, source=config)
    return RunConfig.load(own if config is None else config, changes)
