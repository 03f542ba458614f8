"""Text helpers for messages."""

import difflib
import re
from collections.abc import Iterable

_CONTROLS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")  # can alter a terminal


def one_line(text: object) -> str:
    """Return the text of an object, such as an exception, on one line.

    A run of whitespace becomes one space; other control characters, such as terminal escapes, become U+FFFD.
    """
    return _CONTROLS.sub("\ufffd", " ".join(str(text).split()))


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return a count with its noun: "1 batch", "2,000 batches". `nouns` is a plural that does not just add an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of this package (docs/cli.md lists them)."""
    return f'pip install "npx-transformer[{extra}]"'


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the choice most similar to `name`. Raises ValueError if there are no choices."""
    if not (matches := difflib.get_close_matches(name, list(choices), n=1, cutoff=0.0)):
        raise ValueError("nearest: expected at least one choice; got an empty collection")
    return matches[0]
