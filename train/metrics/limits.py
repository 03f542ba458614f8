"""What a score is asked for: lines so long that it would take hours or all memory are told before it begins."""

from collections.abc import Sequence

from train.errors import UserError

TER_WORDS = 400  # in a line: TER tries moves of all stretches of words, which takes the cube of their number
CHARACTERS = 100_000  # in a line: chrF counts all stretches of up to 6 characters, 200 bytes of memory each


def check_lengths(hypotheses: Sequence[str], references: Sequence[str]) -> str:
    """Why TER is to be left out, "" where it is not; UserError for a line that no score is made for."""
    for name, lines in (("hypothesis", hypotheses), ("reference", references)):
        for number, line in enumerate(lines, 1):
            if len(line) > CHARACTERS:
                raise UserError(
                    f"score: expected lines of at most {CHARACTERS:,} characters; got {len(line):,} in line {number} "
                    f"of the {name}; try a sentence a line"
                )
    for number, pair in enumerate(zip(hypotheses, references, strict=False), 1):
        if (words := max(len(line.split()) for line in pair)) > TER_WORDS:
            return f"TER is left out: line {number} has {words:,} words, over {TER_WORDS}, which would take too long"
    return ""
