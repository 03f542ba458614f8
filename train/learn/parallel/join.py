"""Joining the ranks that were started together, without importing the trainer."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import npx
from train.errors import UserError
from train.files import digest, text_digest
from train.run.config import RunConfig, format_value


def join_ranks() -> npx.distributed.World:
    """Return the world of all ranks started with this process. Raises UserError if they do not connect."""
    try:
        return npx.distributed.join()
    except RuntimeError as error:
        raise UserError(str(error)) from None


def check_equal_inputs(config: RunConfig, texts: Iterable[str], **options: Any) -> None:
    """Raise UserError on every rank, naming a rank and a difference, unless all ranks have equal inputs.

    These are the configuration and `options`, with the content of the files `texts` instead of their paths.
    """

    def collect() -> dict[str, Any]:
        files, values = [*texts], {f"{table}.{f.name}": value for table, f, value in config.keys()} | options
        return values | {key: f"a text with SHA-256 {text_digest(v)}" for key, v in values.items() if v in files}

    check_equal(collect)


def check_equal_files(option: str, folder: Path, files: Iterable[Path]) -> None:
    """Raise UserError on every rank, naming `option`, unless these files of a folder are equal on all ranks."""
    check_equal(
        lambda: {
            f"{option}, {os.path.relpath(file, folder)}": f"SHA-256 {digest(file)}" if file.exists() else "no such file"
            for file in files
        }
    )


def check_equal(collect: Callable[[], Mapping[str, Any]]) -> None:
    """Raise UserError on every rank, naming a rank and a key, unless `collect` returns equal values on all ranks.

    A single process does not call it.
    """
    if (world := npx.distributed.world()).size == 1:
        return
    first, *others = world.gather({**collect()})
    for rank, other in enumerate(others, 1):
        for key in {**first, **other}:
            if (expected := first.get(key)) != (got := other.get(key)):
                raise UserError(
                    f"rank {rank}: {key}: expected {format_value(expected, 90)} as on rank 0; "
                    f"got {format_value(got, 90)}; try the same command and files on every rank"
                )
