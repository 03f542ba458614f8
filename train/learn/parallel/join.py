"""Joining the ranks that were started together, without importing the trainer."""

from collections.abc import Iterable
from typing import Any

import npx
from train.errors import UserError
from train.files import text_digest
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
    if (world := npx.distributed.world()).size == 1:
        return
    files = [*texts]
    values = {f"{table}.{f.name}": value for table, f, value in config.keys()} | options
    values |= {key: f"a text with SHA-256 {text_digest(v)}" for key, v in values.items() if v in files}
    first, *others = world.gather(values)
    for rank, other in enumerate(others, 1):
        for key in (key for key in first if other[key] != first[key]):
            raise UserError(
                f"rank {rank}: {key}: expected {format_value(first[key], 90)} as on rank 0; "
                f"got {format_value(other[key], 90)}; try the same command and texts on every rank"
            )
