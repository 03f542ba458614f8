"""Joining the ranks that were started together, without importing the trainer."""

import npx
from train.errors import UserError


def join_ranks() -> npx.distributed.World:
    """Return the world of all ranks started with this process. Raises UserError if they do not connect."""
    try:
        return npx.distributed.join()
    except RuntimeError as error:
        raise UserError(str(error)) from None
