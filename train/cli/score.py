"""`score`: every BLEU, chrF and TER of a translation."""

from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app, read_all


@app.command(epilog="Scores of different kinds are not comparable: quote the signature beside the figure.")
def score(
    ref: Annotated[Path, typer.Option(metavar="F", help="References, a sentence a line.", show_default=False)],
    hyp: Annotated[Path, typer.Option(metavar="F", help="Translations to score.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Print every BLEU with its signature, chrF and TER of a translation."""
    from train.scores.bleu import print_report, report_json, score_report

    report = score_report(read_all(hyp), read_all(ref))
    if as_json:
        print(report_json(report))
    else:
        print_report(report)
