"""`score`: score a translation with BLEU variants, chrF and TER, and print a model's perplexity.

With --pairs, it prints the log-probability of each pair of two texts; with --text, the loss of a language model.
"""

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import Device, Quiet, app, open_output, use_device
from train.cli.options import OutputPath, number_option, print_stderr
from train.errors import UserError, check_choice, plural, quote

# Matches a line of the output of `translate` that contains more than the translation.
FIELDS = re.compile(r'.* \|\|\|( |$)|\{"index": ')


@app.command(epilog="Scores with different signatures are not comparable; always quote the signature with the score.")
def score(
    ref: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="F", help="References, one sentence per line; repeat for several references.", show_default=False
        ),
    ] = None,
    hyp: Annotated[Path | None, typer.Option(metavar="F", help="Translations to score.", show_default=False)] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Another system's translations, for a paired significance test."),
    ] = None,
    bootstrap: Annotated[
        int,
        number_option(
            int,
            "[0, 1000000]",
            metavar="N",
            help="Add confidence intervals from N resamples; 0 adds none, but --baseline then uses 1000.",
        ),
    ] = 0,
    model_paths: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            metavar="RUN",
            help="Also print the perplexity of the references under this model. --pairs and --text need this option;"
            " with --pairs, repeat it for an ensemble of several models.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Compute only this score, such as bleu (bleu_13a), chrf or ter; may be repeated."
        ),
    ] = None,
    src: Annotated[Path | None, typer.Option(metavar="F", help="Source text of --ref, needed with --model.")] = None,
    pairs: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="SRC TGT", help="Print each target line's log-probability under --model, not scores."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="F", help="Print a language model's loss, perplexity and bits per character on this text."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or one per line with --pairs.")
    ] = False,
    output: OutputPath = None,
    quiet: Quiet = False,
    device: Device = "cpu",
) -> None:
    """Score a translation with BLEU, chrF and TER, or, with --pairs or --text, a text with a model."""
    from train.metrics.bleu import SCORES, SHORT_NAMES, WITHOUT_TER, print_report, score_report
    from train.metrics.limits import reason_to_skip_ter
    from train.progress import Display
    from train.text.lines import read_all_lines

    if pairs is None and model_paths and len(model_paths) > 1:
        suggestion = "only one, or --pairs, which scores with an ensemble"
        raise UserError(f"score: expected one --model; got {len(model_paths)}; try {suggestion}")
    if pairs is not None or text is not None:
        mode = "--text" if pairs is None else "--pairs"
        options = {
            "--text": pairs and text,
            "--ref": ref,
            "--hyp": hyp,
            "--baseline": baseline,
            "--src": src,
            "--bootstrap": bootstrap,
            "--metric": metric,
        }
        if conflicts := [name for name, value in options.items() if value]:
            raise UserError(f"score: {mode} cannot be combined with {conflicts[0]}; try only one of them")
        if not model_paths:
            raise UserError(f"score: {mode} needs a model; try --model RUN")
        use_device(device)
        with suggest_scoring_option(), print_to(output, *(pairs or ()), text, models=model_paths):
            if pairs is not None:
                return score_given_pairs(model_paths, pairs, as_json, quiet)
            assert text is not None
            return score_text(model_paths[0], text, as_json, quiet)
    for name in metric or ():
        if "," in name:
            suggestion = " ".join(f"--metric {quote(part.strip())}" for part in name.split(",") if part.strip())
            raise UserError(f"--metric: expected one metric; got {name}; try {suggestion}")
        check_choice("--metric", name.lower(), (*SCORES, *SHORT_NAMES))
    if not ref or hyp is None:
        missing = "--ref" if not ref else "--hyp"
        suggestion = f"{missing} F, --pairs SRC TGT --model RUN, or --text F --model RUN for a language model"
        raise UserError(f"score: missing {missing}; try {suggestion}")
    if device != "cpu" and not model_paths:
        raise UserError("--device has no effect without --model; omit --device")
    if bool(model_paths) != (src is not None):
        raise UserError("score: --model and --src must be given together; try both, or neither")
    if model_paths and len(ref) > 1:
        raise UserError(f"score: expected one --ref with --model; got {len(ref)}; try only one")
    metric = [SHORT_NAMES.get(name.lower(), name.lower()) for name in metric or ()]
    if bootstrap == 1:
        raise UserError("--bootstrap: expected 0, or at least 2 resamples; got 1; try 1000")
    hypotheses, *references = (read_all_lines(path, allow_pipe=True) for path in (hyp, *ref))
    baseline_lines = None if baseline is None else read_all_lines(baseline, allow_pipe=True)
    for path, lines in ((hyp, hypotheses), (baseline, baseline_lines or ())):
        if lines and all(map(FIELDS.match, lines)) and not all(map(FIELDS.match, references[0])):
            raise UserError(
                f"{path}: expected one translation per line; got lines with further fields; try the output of "
                "`translate` without --scores, --alignments, --n-best, --samples and --json"
            )
    reason = reason_to_skip_ter(hypotheses, *references)
    if baseline_lines and not reason:
        reason = reason_to_skip_ter(baseline_lines, *references)
    wanted = metric or SCORES
    metrics = [key for key in wanted if key in WITHOUT_TER or not reason]
    if not metrics:
        expected = "a metric that can be computed for these lines"
        raise UserError(f"--metric: expected {expected}; got only ter, but {reason}; try --metric chrf")
    if len(metrics) < len(wanted):
        print(reason, file=sys.stderr)
    with print_to(output, hyp, *ref, baseline, src, models=model_paths or ()):
        with Display(not quiet) as display, display.work("scoring"):
            report = score_report(
                hypotheses, *references, bootstrap=bootstrap, baseline=baseline_lines, metrics=metrics
            )
        if model_paths and src is not None:
            from train.learn.validation import perplexity

            use_device(device)
            with suggest_scoring_option():
                report["scores"]["perplexity"] = perplexity(
                    model_paths[0], src, ref[0], progress=not quiet, on_warning=print_stderr
                )
        if as_json:
            print(json.dumps(report, ensure_ascii=False, indent=2))
        else:
            print_report(report)


@contextmanager
def print_to(output: Path | None, *others: Path | None, models: Sequence[Path] = ()) -> Iterator[None]:
    """Print to the file `output`, if one is given, instead of standard output. See `open_output`."""
    if output is None:
        yield
        return
    with open_output(output, *others, models=models) as file, redirect_stdout(file):
        yield


def score_given_pairs(runs: list[Path], pairs: tuple[Path, Path], as_json: bool, quiet: bool) -> None:
    """Print each target line with its log-probability; print the overall perplexity on stderr unless `quiet`."""
    from train.cli.models import load_models
    from train.tasks import decoding
    from train.text.lines import check_parallel, read_parallel

    check_parallel(*pairs)
    model, tokenizer, config, _ = load_models(runs, print_stderr)
    total, n_tokens, n_pairs, n_empty = 0.0, 0, 0, 0
    lines = read_parallel(*pairs)
    size = config.search.batch_tokens
    for index, t in enumerate(
        decoding.score_pairs(model, tokenizer, lines, batch_tokens=size, on_warning=print_stderr)
    ):
        if as_json:
            fields = {"index": index} | decoding.to_json(t, tokenizer, scores=True, alignments=False)
            del fields["score"]  # unlike a translation's score, this one includes no length penalty
            print(json.dumps(fields, ensure_ascii=False))
        else:
            print(" ||| ".join([t.text, *decoding.format_fields(t, tokenizer, scores=True, alignments=False)]))
        n_empty += not (t.source_ids and t.hypothesis.tokens)
        terms = t.hypothesis.token_log_probabilities
        total += sum(terms)
        n_tokens += len(terms)
        n_pairs += 1
    if n_empty:
        print_stderr(f"{plural(n_empty, 'pair')} with an empty side; training skips such pairs")
    if quiet:
        return
    perplexity = math.exp(min(-total / max(1, n_tokens), 700.0))
    counts = f"{plural(n_pairs, 'pair')}, {plural(n_tokens, 'token')}"
    print_stderr(f"{counts}: log-probability {total:.4f}, perplexity {perplexity:.4f}")


def score_text(run: Path, text: Path, as_json: bool, quiet: bool) -> None:
    """Print the loss of a language model on a text."""
    from train.learn.validation import text_loss
    from train.progress import format_metric

    result = text_loss(run, text, progress=not quiet, on_warning=print_stderr)
    if as_json:
        print(json.dumps(result))
    else:
        print(
            f"loss {result['loss']:.4f}  perplexity {format_metric(result['perplexity'])}  "
            f"bits per character {result['bits_per_character']:.4f}  "
            f"tokens {result['tokens']:,}  characters {result['characters']:,}"
        )


@contextmanager
def suggest_scoring_option() -> Iterator[None]:
    """If the model was trained for another task, let the error suggest the option for that task."""
    from train.tasks.task import TaskError

    options = {"translation": "--pairs SRC TGT", "language": "--text F"}
    try:
        yield
    except TaskError as error:
        raise TaskError(error.path, error.expected, error.task, options.get(error.task.name, "")) from None
