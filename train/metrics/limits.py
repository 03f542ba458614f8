"""Limits on the length of scored lines, so that scoring neither takes hours nor runs out of memory."""

from collections.abc import Sequence

from train.errors import UserError

TER_WORDS = 400  # words per line: TER tries to move every span of words, so its time is cubic in their number
CHARACTERS = 100_000  # per line: chrF counts all n-grams of up to 6 characters, 200 bytes of memory each


def reason_to_skip_ter(hypotheses: Sequence[str], *references: Sequence[str]) -> str:
    """Return the reason to skip TER, or ""; raise UserError for a line that is too long for any score."""
    for name, lines in (("hypothesis", hypotheses), *(("reference", lines) for lines in references)):
        for number, line in enumerate(lines, 1):
            if len(line) > CHARACTERS:
                raise UserError(
                    f"score: expected lines of at most {CHARACTERS:,} characters; got {len(line):,} in line {number} "
                    f"of the {name}; try one sentence per line"
                )
    for number, texts in enumerate(zip(hypotheses, *references, strict=False), 1):
        if (words := max(len(line.split()) for line in texts)) > TER_WORDS:
            return f"TER is skipped because line {number} has {words:,} words; the limit is {TER_WORDS} words per line"
    return ""
