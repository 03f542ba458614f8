"""`score-trees`: trees beside gold ones, as EVALB scores them."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app


@app.command(
    "score-trees",
    epilog="A tree a line, an empty line for none; or trees of any layout. Without --param EVALB's COLLINS.prm holds. A"
    " sentence with other words than the gold one is an error sentence: counted, named on stderr, and not scored.",
)
def score_trees(
    gold: Annotated[Path, typer.Option(metavar="F", help="Gold trees.", show_default=False)],
    hyp: Annotated[Path, typer.Option(metavar="F", help="Trees to score.", show_default=False)],
    param: Annotated[Path | None, typer.Option(metavar="F.prm", help="A parameter file of EVALB.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Print labelled precision, recall and F1, crossing brackets and tagging accuracy as EVALB does."""
    from train.tasks.parsing.evalb import ERROR, Parameters, score_files, table

    report = score_files(gold, hyp, Parameters.load(param) if param else None)
    for number, sentence in enumerate(report.sentences, 1):
        if sentence.status == ERROR:
            print(f"sentence {number}: {sentence.why}; not scored", file=sys.stderr)
    if report.other_roots:
        why = "counted as EVALB does, as a bracket that is not found; parse --gold leaves it out"
        roots = "roots ((S ...)), (ROOT ...) or (S1 ...) in gold trees alone"
        print(f"{roots}: {report.other_roots:,}, {why}", file=sys.stderr)
    if as_json:
        print(json.dumps(report.figures(), indent=2))
    else:
        print("\n".join(table(report)))
