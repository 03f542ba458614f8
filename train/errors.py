"""UserError, which the command line reports in one line with exit status 2, and helpers for error messages."""

from collections.abc import Collection

from npx.messages import nearest as nearest
from npx.messages import one_line as one_line
from npx.messages import pip_install as pip_install
from npx.messages import plural as plural


class UserError(Exception):
    """An error that the user can correct, described in one line: `what: expected ...; got ...; try ...`."""


class ReadError(UserError):
    """A file cannot be read (permissions, a failing disk) but may be intact, so it is not treated as damaged."""


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise UserError, which suggests the most similar choice, unless `value` is one of the choices of `name`."""
    if value not in choices:
        raise UserError(f"{name}: expected one of {', '.join(choices)}; got '{value}'; try {nearest(value, choices)}")
