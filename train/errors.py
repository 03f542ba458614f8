"""Helpers for error messages, and UserError, which the command line reports in one line with exit status 2."""

import difflib
import shlex
from collections.abc import Collection

from npx.messages import nearest as nearest
from npx.messages import one_line as one_line
from npx.messages import pip_install as pip_install
from npx.messages import plural as plural

OTHER_CHOICES = {  # maps an option to names that other programs use, each with the value to suggest
    "--tokenizer": dict.fromkeys(("sentencepiece", "spm", "unigram"), "bpe"),
    "--metric": dict.fromkeys(("comet", "bleurt", "bertscore"), "chrf, because neural metrics are out of scope")
    | {"bleu_lc": "bleu_13a_lc"},
}
TO_UTF8 = "`iconv -f ISO-8859-1 -t UTF-8`, with the encoding of the text instead of ISO-8859-1"  # advice in messages


class UserError(Exception):
    """An error that the user can correct, described in one line: `what: expected ...; got ...; try ...`."""


class NoCheckpoint(UserError):
    """A run has no checkpoint: it has not trained long enough, or has diverged."""


class ReadError(UserError):
    """A file cannot be read, for example without permission. It may be intact, so it is not treated as damaged."""


def quote(path: object) -> str:
    """Quote a path for a command line in a message, so that the shell reads it as one word."""
    return shlex.quote(str(path))


def check_choice(name: str, value: str, choices: Collection[str], fallback: str = "") -> None:
    """Raise UserError unless `value` is one of the choices of `name`.

    The message suggests a similar choice. If no choice is similar, it suggests `fallback`.
    """
    if value not in choices:
        similar = difflib.get_close_matches(value, choices, n=1)
        suggestion = OTHER_CHOICES.get(name, {}).get(value.lower()) or "".join(similar) or fallback
        raise UserError(
            f"{name}: expected one of {', '.join(choices)}; got '{value}'{suggestion and f'; try {suggestion}'}"
        )
