"""Command-line options whose values are checked against a range.

    number_option(int, "[1, 512]", help=...)   an option with its own range
    search_option("beam_size")                 an option that overrides a key of [search] and has its range

The options that `translate` and `parse` share are defined here, with `search_options`, which merges them into a run's
[search] table.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from npx.ranges import NUMBERS, Range
from train.errors import TO_UTF8, UserError, quote
from train.run.value_names import suggest_value

SEED_RANGE, VOCAB_SIZE_RANGE = "[0, 4294967295]", "[5, 16777216]"


def number_option(kind: type, interval: str, **settings: Any) -> Any:
    """Return a typer option for a number in an interval; `settings` are passed to `typer.Option`."""
    return checked_option(Range(kind, interval), **settings)


def search_option(key: str, **settings: Any) -> Any:
    """Return a typer option that overrides a key of [search].

    The help text is that of the key, unless `settings` contains one.
    """
    from models.fields import range_of
    from train.run.config import fields_of

    field = fields_of("search")[key]
    return checked_option(
        range_of(field), **{"help": f"{field.metadata['help'].rstrip('.')}; default: the run's setting.", **settings}
    )


def checked_option(allowed: Range, example: str = "", **settings: Any) -> Any:
    """Return a typer option that raises UserError for a value outside `allowed`.

    `example` is the value to suggest for an option that has no default and is sometimes required.
    """

    def parse(value: Any) -> Any:
        try:
            return allowed.kind(value)
        except ValueError:
            return value  # `check` reports it

    def check(parameter: typer.CallbackParam, value: Any) -> Any:
        if value is not None and not allowed.fits(value):
            name = parameter.opts[0]
            choices = tuple(allowed.choices)
            default = str(parameter.default).removesuffix(".0")
            if parameter.default is None:
                default = example or f"leaving {name} out"
            number = "" if choices else allowed.normalize_number(value) or default
            suggestion = suggest_value(name[2:], value, choices) or number
            got = f"{str(value)[:60]}{suggestion and f'; try {suggestion}'}"
            raise UserError(f"{name}: expected {allowed.describe()}; got {got}")
        return value

    if allowed.kind in NUMBERS:
        settings = {"parser": parse, **settings}
    return typer.Option(callback=check, is_eager=True, **settings)  # check values before reporting missing options


def text_option(*names: str, is_sentence: bool = False, **settings: Any) -> Any:
    """Return a typer option for text that raises UserError for invalid UTF-8.

    With `is_sentence`, it also rejects the path of a file: in other commands, the option of this name takes a file.
    """

    def check(parameter: typer.CallbackParam, value: str) -> str:
        if any("\ud800" <= c <= "\udfff" for c in value or ""):
            raise UserError(f"{parameter.opts[0]}: expected UTF-8; got invalid bytes; try {TO_UTF8}")
        if is_sentence and value and os.path.isfile(value):
            suggestion = f'{parameter.opts[0]} "$(head -n 1 {quote(value)})"'
            raise UserError(
                f"{parameter.opts[0]}: expected a sentence; got the path of a file, {value}; try {suggestion}"
            )
        return value

    return typer.Option(*names, callback=check, **settings)


ModelPath = Annotated[
    Path, typer.Option("--model", metavar="RUN", help="Run folder, or one checkpoint folder.", show_default=False)
]
ModelPaths = Annotated[
    list[Path],
    typer.Option(
        "--model",
        metavar="RUN",
        help="Run folder, or one checkpoint folder; repeat the option for an ensemble of several models.",
        show_default=False,
    ),
]
OutputPath = Annotated[
    Path | None, typer.Option(metavar="F", help="Output file, written atomically; default: standard output.")
]
BeamSize = Annotated[int | None, search_option("beam_size", help="Beam size; default: the run's setting.")]
LengthPenalty = Annotated[
    float | None,
    search_option("length_penalty", help="Length penalty exponent (the paper's alpha); default: the run's setting."),
]
LengthPenaltyType = Annotated[
    str | None,
    search_option(
        "length_penalty_type", metavar="paper|length", help="Length penalty formula; default: the run's setting."
    ),
]
MaxExtraTokens = Annotated[
    int | None,
    search_option(
        "max_extra_tokens", help="Output tokens allowed beyond the input's length; default: the run's setting."
    ),
]
NBest = Annotated[
    int,
    search_option("beam_size", metavar="K", help="Print the K best outputs; with K > 1 as 'index ||| text ||| score'."),
]
BatchTokens = Annotated[
    int | None, search_option("batch_tokens", help="Source tokens per batch; default: the run's setting.")
]
VocabSize = Annotated[
    int | None,
    number_option(
        int, VOCAB_SIZE_RANGE, metavar="V", help="Vocabulary size (not for runs); default: the configuration's."
    ),
]


def search_options(run_search: dict[str, Any], n_best: int, **overrides: Any) -> dict[str, Any]:
    """Return the options of a search: a run's [search] table, the `overrides` that are not None, and `n_best`.

    Warnings of the search go to standard error.
    """
    search = run_search | {name: value for name, value in overrides.items() if value is not None}
    if n_best > search["beam_size"]:
        raise UserError(
            f"--n-best: expected at most the beam size, {search['beam_size']}; got {n_best}; try --beam-size {n_best}"
        )
    return search | {"n_best": n_best, "on_warning": print_stderr}


@contextmanager
def rename_in_error(argument: str, option: str) -> Iterator[None]:
    """If a UserError begins with the name of a function's argument, replace it with the name of an option."""
    try:
        yield
    except UserError as error:
        start, colon, rest = str(error).partition(":")
        if start != argument:
            raise
        raise UserError(f"{option}{colon}{rest}") from None


def check_single_input(input: Path | None, gold: Path | None) -> None:
    """Raise UserError if a command receives both --input and --gold."""
    if input is not None and gold is not None:
        raise UserError(f"--gold {gold} cannot be combined with --input {input}; try only one of them")


def ignore_warning(text: str) -> None:
    """Do nothing. Ranks other than 0 use this function instead of `print_stderr`."""


def print_stderr(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)
