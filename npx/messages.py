"""Text helpers for messages."""

import difflib
from collections.abc import Iterable


def one_line(text: object) -> str:
    """Return the text of an object, such as an exception, with every run of white space replaced by one space."""
    return " ".join(str(text).split())


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the choice most similar to `name`; ValueError if there are no choices."""
    if not (matches := difflib.get_close_matches(name, list(choices), n=1, cutoff=0.0)):
        raise ValueError("nearest: expected at least one choice; got an empty collection")
    return matches[0]
