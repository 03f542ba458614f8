"""`score`: BLEU variants, chrF and TER of a translation, confidence intervals and a model's perplexity."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app
from train.cli.options import number_option
from train.errors import UserError


@app.command(epilog="Scores with different signatures are not comparable; always quote the signature with the score.")
def score(
    ref: Annotated[Path, typer.Option(metavar="F", help="References, one sentence per line.", show_default=False)],
    hyp: Annotated[Path, typer.Option(metavar="F", help="Translations to score.", show_default=False)],
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Another system's translations: run a paired significance test against them."),
    ] = None,
    bootstrap: Annotated[
        int,
        number_option(
            int,
            "[0, 1000000]",
            metavar="N",
            help="Confidence intervals from N resamples; 0: none (1000 with --baseline).",
        ),
    ] = 0,
    model: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Also print this model's perplexity of the references.")
    ] = None,
    src: Annotated[Path | None, typer.Option(metavar="F", help="Source text, required with --model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a translation with BLEU, chrF and TER, each with its sacreBLEU signature."""
    from train.metrics.bleu import print_report, score_report
    from train.metrics.limits import check_lengths
    from train.progress import Display
    from train.text.lines import read_all_lines

    if (model is None) != (src is None):
        raise UserError("score: expected --model and --src together; got one of them; try both, or neither")
    if bootstrap == 1:
        raise UserError("--bootstrap: expected 0, or at least 2 resamples; got 1; try 1000")
    hypotheses, references, baseline_lines = (
        None if path is None else read_all_lines(path, allow_pipe=True) for path in (hyp, ref, baseline)
    )
    assert hypotheses is not None and references is not None
    reason = check_lengths(hypotheses, references) or check_lengths(baseline_lines or hypotheses, references)
    if reason:
        print(reason, file=sys.stderr)
    with Display() as display, display.work("scoring"):
        report = score_report(hypotheses, references, bootstrap=bootstrap, baseline=baseline_lines, ter=not reason)
    if model is not None and src is not None:
        from train.learn.validation import perplexity

        report["scores"]["perplexity"] = perplexity(model, src, ref, progress=True)
    if as_json:
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        print_report(report)
