"""Connect the ranks that were started together and check that they run the same job, without importing the trainer."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import npx
from train.errors import UserError
from train.files import digest, text_digest
from train.run.config import RunConfig
from train.run.toml_text import format_value


def join_ranks(command: str) -> npx.distributed.World:
    """Connect this process to the ranks that were started with it, and return their world.

    Raises UserError if that fails or if they run different commands.
    """
    try:
        world = npx.distributed.initialize()
    except RuntimeError as error:
        raise UserError(str(error)) from None
    check_equal(lambda: {"command": command})
    return world


def check_equal_inputs(config: RunConfig, text_files: Iterable[str], **options: Any) -> None:
    """Raise UserError on every rank, naming a rank and a difference, unless all ranks have equal inputs.

    The inputs are the configuration, `options` and the content of `text_files`, whose paths may differ.
    """

    def collect() -> dict[str, Any]:
        files = [*text_files]
        values = {f"{table}.{f.name}": value for table, f, value in config.items()} | options
        return values | {key: f"a text with SHA-256 {text_digest(v)}" for key, v in values.items() if v in files}

    check_equal(collect)


def check_equal_run(folder: Path) -> None:
    """Raise UserError on every rank, naming --out, unless all ranks see the same run folder."""
    names = "config.toml", "tokenizer.json", "checkpoints/*/state.json"
    files = (file for name in names for file in folder.glob(name))
    check_equal(lambda: {f"--out, {file.relative_to(folder)}": f"SHA-256 {digest(file)}" for file in files})


def check_equal(collect: Callable[[], Mapping[str, Any]]) -> None:
    """Raise UserError on every rank, naming a rank and a key, unless `collect` returns equal values on all ranks."""
    if (world := npx.distributed.world()).size == 1:
        return
    first, *others = world.all_gather_object({**collect()})
    for rank, other in enumerate(others, 1):
        for key in {**first, **other}:
            expected, got = (format_value(values.get(key, "no value"), 90) for values in (first, other))
            if first.get(key) != other.get(key):
                suggestion = "the same command and files on every rank"
                raise UserError(f"rank {rank}: {key}: expected {expected} as on rank 0; got {got}; try {suggestion}")
