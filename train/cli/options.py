"""Options of numbers and names, each checked against a range that is declared once: its own, or that of a key.

    number(int, "[1, 512]", help=...)      an option of its own
    search_key("beam")                     one that goes before a key of [search], and takes what the key takes
"""

from typing import Any

import typer

from npx.ranges import Range
from train.errors import UserError, nearest

SEEDS, VOCABULARY = "[0, 4294967295]", "[5, 16777216]"


def number(kind: type, within: str, **about: Any) -> Any:
    """An option of typer's for a number of an interval."""
    return ranged(Range(kind, within), **about)


def search_key(name: str, **about: Any) -> Any:
    """An option of typer's that goes before a key of [search]; its help is the key's, unless another is given."""
    from models.fields import range_of
    from train.run.config import keys_of

    key = keys_of("search")[name]
    return ranged(range_of(key), **{"help": f"{key.metadata['help'].rstrip('.')}; default: the run's.", **about})


def ranged(allowed: Range, **about: Any) -> Any:
    """An option of typer's whose value UserError refuses where it is none of the range."""

    def check(parameter: typer.CallbackParam, value: Any) -> Any:
        if value is not None and not allowed.fits(value):
            name = parameter.opts[0]
            choices = tuple(allowed.choices)
            default = parameter.default if parameter.default is not None else "leaving it out"
            attempt = nearest(str(value), choices) if choices else default
            raise UserError(f"{name}: expected {allowed.words()}; got {str(value)[:60]}; try {attempt}")
        return value

    return typer.Option(callback=check, is_eager=True, **about)  # before what is missing is missed
