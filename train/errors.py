"""The user's mistakes: the one exception that the command line turns into one line and exit status 2, and its words."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's, told in one line: `what: expected ...; got ...; try ...`."""


def one_line(text: object) -> str:
    """Text, or an exception's, on one line."""
    return " ".join(str(text).split())


def nearest(name: str, choices: Iterable[str]) -> str:
    """The choice most like `name`."""
    return difflib.get_close_matches(name, list(choices), n=1, cutoff=0.0)[0]
