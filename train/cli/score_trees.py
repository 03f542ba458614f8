"""`score-trees`: score trees against gold trees, as EVALB does."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app


@app.command(
    "score-trees",
    epilog="A file has one tree per line and an empty line for a missing tree; without missing trees, a tree may span"
    " several lines. Sentences whose words differ from those of the gold tree are reported on stderr and not scored.",
)
def score_trees(
    gold: Annotated[Path, typer.Option(metavar="F", help="Gold trees.", show_default=False)],
    hyp: Annotated[Path, typer.Option(metavar="F", help="Trees to score.", show_default=False)],
    param: Annotated[
        Path | None, typer.Option(metavar="F.prm", help="EVALB parameter file; default: COLLINS.prm.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print labeled precision, recall, F1, crossing brackets and tagging accuracy, as EVALB does."""
    from train.tasks.parsing.commands import score_warnings
    from train.tasks.parsing.evalb import Parameters, evalb_table, score_files

    report = score_files(gold, hyp, Parameters.load(param) if param else None)
    for line in score_warnings(report):
        print(line, file=sys.stderr)
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print("\n".join(evalb_table(report)))
