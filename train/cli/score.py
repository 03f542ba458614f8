"""`score`: every BLEU, chrF and TER of a translation."""

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app


@app.command(epilog="Scores of different kinds are not comparable: quote the signature beside the figure.")
def score(
    ref: Annotated[Path, typer.Option(metavar="F", help="References, a sentence a line.", show_default=False)],
    hyp: Annotated[Path, typer.Option(metavar="F", help="Translations to score.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Print every BLEU with its signature, chrF and TER of a translation."""
    from train.scores.bleu import print_report, score_report
    from train.scores.limits import check_lengths
    from train.text.lines import read_lines

    lines = [[*chain.from_iterable(read_lines(path, pipes=True))] for path in (hyp, ref)]
    if reason := check_lengths(*lines):
        print(reason, file=sys.stderr)
    report = score_report(*lines, ter=not reason)
    if as_json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print_report(report)
