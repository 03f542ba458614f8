"""Text helpers for messages."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")  # can alter a terminal


def one_line(text: object) -> str:
    """Return the text of an object, such as an exception, on one line.

    A run of whitespace becomes one space; other control characters, such as terminal escapes, become U+FFFD.
    """
    return _CONTROLS.sub("\ufffd", " ".join(str(text).split()))


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun: "1 batch", "2,000 batches". `nouns` is the plural, by default `noun` with an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of this package (docs/cli.md lists them)."""
    return f'pip install "npx-transformer[{extra}]"'


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the choice most similar to `name`. Raises ValueError if there are no choices."""
    if not (matches := difflib.get_close_matches(name, list(choices), n=1, cutoff=0.0)):
        raise ValueError("nearest: expected at least one choice; got an empty collection")
    return matches[0]


def check_arguments(given: Iterable[str], *functions: Callable[..., object]) -> None:
    """Raise TypeError for a keyword argument that none of the functions accepts. The message suggests other names."""
    parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
    accepted = [p.name for p in parameters if p.name != "self" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in given:
        if name not in accepted:
            similar = difflib.get_close_matches(name, accepted, n=1, cutoff=0.8)
            suggestion = f"try {similar[0]}" if similar else f"expected one of {', '.join(dict.fromkeys(accepted))}"
            raise TypeError(f"{name}: unknown argument; {suggestion}")


def suggest_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that an unknown keyword argument raises the TypeError of `check_arguments`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError:
            check_arguments(kwargs, function)
            raise

    return call
