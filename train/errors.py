"""UserError, which the command line turns into one line and exit status 2, and helpers for its messages."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An error of the user, in one line: `what: expected ...; got ...; try ...`."""


def one_line(text: object) -> str:
    """Return a text, or the message of an exception, on one line."""
    return " ".join(str(text).split())


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the choice most similar to `name`."""
    return difflib.get_close_matches(name, list(choices), n=1, cutoff=0.0)[0]
