"""`score`: every BLEU, chrF and TER of a translation, how sure they are, and the perplexity of a model."""

import json
import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app
from train.cli.options import number
from train.errors import UserError


@app.command(epilog="Scores of different kinds are not comparable: quote the signature beside the figure.")
def score(
    ref: Annotated[Path, typer.Option(metavar="F", help="References, a sentence a line.", show_default=False)],
    hyp: Annotated[Path, typer.Option(metavar="F", help="Translations to score.", show_default=False)],
    baseline: Annotated[
        Path | None, typer.Option(metavar="F", help="Another system's: also its scores, and the paired test.")
    ] = None,
    bootstrap: Annotated[
        int, number(int, "[0, 1000000]", metavar="N", help="Confidence from N samples of lines; 1000 with --baseline.")
    ] = 0,
    model: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Also the perplexity that its model gives the references.")
    ] = None,
    src: Annotated[Path | None, typer.Option(metavar="F", help="What was translated; needed with --model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Print every BLEU with its signature, chrF and TER of a translation."""
    from train.metrics.bleu import print_report, score_report
    from train.metrics.limits import check_lengths
    from train.text.lines import read_lines

    if (model is None) != (src is None):
        raise UserError("score: expected --model and --src together; got one of them; try both, or neither")
    if bootstrap == 1:
        raise UserError("--bootstrap: expected 0, or 2 samples and more; got 1; try 1000")
    found, expected, other = (
        None if path is None else [*chain.from_iterable(read_lines(path, pipes=True))] for path in (hyp, ref, baseline)
    )
    assert found is not None and expected is not None
    if reason := check_lengths(found, expected) or check_lengths(other or found, expected):
        print(reason, file=sys.stderr)
    report = score_report(found, expected, bootstrap=bootstrap, baseline=other, ter=not reason)
    if model is not None and src is not None:
        from train.learn.validation import perplexity

        report["scores"]["perplexity"] = perplexity(model, src, ref)
    if as_json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print_report(report)
