"""Options of numbers and names, each checked against a range that is declared once: its own, or that of a key.

    number(int, "[1, 512]", help=...)      an option of its own
    search_key("beam")                     one that goes before a key of [search], and takes what the key takes

What `translate` and `parse` have in common stands here whole, with `searched`, which puts it before a run's own.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

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


def text(*names: str, **about: Any) -> Any:
    """An option of typer's for text; UserError for bytes that are none."""

    def check(parameter: typer.CallbackParam, value: str) -> str:
        if any("\ud800" <= c <= "\udfff" for c in value or ""):
            got = "bytes that are none"
            raise UserError(f"{parameter.opts[0]}: expected UTF-8; got {got}; try converting it (iconv -t UTF-8)")
        return value

    return typer.Option(*names, callback=check, **about)


Model = Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)]
Output = Annotated[
    Path | None, typer.Option(metavar="F", help="Where to; default: stdout. Written whole or not at all.")
]
Beam = Annotated[int | None, search_key("beam", help="Hypotheses a sentence; default: the run's.")]
Alpha = Annotated[float | None, search_key("alpha", help="Length penalty's exponent; default: the run's.")]
Penalty = Annotated[str | None, search_key("penalty", metavar="paper|length", help="Its form.")]
MaxExtra = Annotated[int | None, search_key("max_extra", help="Tokens more than the sentence at most.")]
NBest = Annotated[int, search_key("beam", metavar="K", help="K > 1: the K best as lines 'number ||| text ||| score'.")]
BatchTokens = Annotated[int | None, search_key("batch_tokens", help="Tokens of sentences that are decoded together.")]


def searched(own: dict[str, Any], n_best: int, **given: Any) -> dict[str, Any]:
    """A run's [search] with what is given (not None) before it, `n_best` and warnings to stderr."""
    search = own | {name: value for name, value in given.items() if value is not None}
    if n_best > search["beam"]:
        raise UserError(f"--n-best: expected at most the beam, {search['beam']}; got {n_best}; try --beam {n_best}")
    return search | {"n_best": n_best, "on_warning": warn}


def mute(text: str) -> None:
    """Says nothing."""


def warn(text: str) -> None:
    """Says something on stderr."""
    print(text, file=sys.stderr, flush=True)
