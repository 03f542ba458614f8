"""`translate`: translate text, one sentence per line, with a trained model or an ensemble of models."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import STDIO, Device, Quiet, app, line_progress, open_input, open_output, use_device
from train.cli.options import (
    SEED_RANGE,
    BatchTokens,
    BeamSize,
    LengthPenalty,
    LengthPenaltyType,
    MaxExtraTokens,
    ModelPaths,
    NBest,
    OutputPath,
    ignore_warning,
    number_option,
    print_stderr,
    rename_in_error,
    search_options,
)
from train.errors import UserError, plural


@app.command(
    epilog="Example: [b]echo 'A dog runs.' | npx-transformer translate --model runs/a[/b]. Line i of the output"
    " translates line i; an empty line stays empty. Output is flushed whenever the input pauses, or after about four"
    " batches. --scores and --alignments add fields, separated by ' ||| '."
)
def translate(
    model_paths: ModelPaths,
    input: Annotated[Path | None, typer.Option(metavar="F", help="Text to translate; default: standard input.")] = None,
    output: OutputPath = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    length_penalty_type: LengthPenaltyType = None,
    max_extra_tokens: MaxExtraTokens = None,
    n_best: NBest = 1,
    batch_tokens: BatchTokens = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Add the log-probability (nats) of the translation and of each token.")
    ] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Add pairs of aligned source and target words, counted from 0.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object per translation, with subwords for --scores and --alignments."
        ),
    ] = False,
    prefixes: Annotated[
        Path | None,
        typer.Option(metavar="F", help="Begin translation i with line i of F; an empty line requires no prefix."),
    ] = None,
    samples: Annotated[
        int | None,
        number_option(int, "[1, 10000]", metavar="N", help="Print N sampled translations instead of the best."),
    ] = None,
    temperature: Annotated[
        float | None, number_option(float, "[0, 1e6]", help="Temperature of --samples; default: 1.")
    ] = None,
    top_k: Annotated[
        int | None,
        number_option(int, "[0, 16777216]", metavar="K", help="Sample from the K most probable tokens; default: all."),
    ] = None,
    top_p: Annotated[
        float | None,
        number_option(
            float, "(0, 1]", metavar="P", help="Sample from the fewest tokens of total probability P; default: 1."
        ),
    ] = None,
    seed: Annotated[int | None, number_option(int, SEED_RANGE, help="Seed of --samples; default: 0.")] = None,
    quiet: Quiet = False,
    device: Device = "cpu",
) -> None:
    """Translate text, one sentence per line. Under mpirun, the processes share the work."""
    from contextlib import ExitStack
    from dataclasses import asdict

    from train.cli.models import load_models
    from train.learn.parallel.join import check_equal, join_ranks
    from train.tasks import decoding
    from train.tasks.pairs import format_hypotheses, trained_length
    from train.text.lines import read_all_lines

    sampling = without_none(samples=samples, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    check_sampling_options(
        sampling,
        without_none(
            beam_size=beam_size,
            length_penalty=length_penalty,
            length_penalty_type=length_penalty_type,
            n_best=None if n_best == 1 else n_best,
        ),
    )
    use_device(device)
    world = join_ranks("translate")
    if world.size > 1 and input in (None, STDIO):
        raise UserError(
            f"translate: expected --input FILE with {world.size} ranks, because mpirun does not forward the end of "
            "standard input; got standard input; try --input FILE"
        )
    with ExitStack() as stack:
        stack.enter_context(rename_in_error("prefixes", f"--prefixes {prefixes}"))
        lines: Iterator[str | None] = iter(())
        file = None
        on_warning = ignore_warning
        prefix_lines = None if prefixes is None else read_all_lines(prefixes)
        with world.rank_zero_first():
            if world.rank == 0:  # only rank 0 reads, writes and warns
                lines = stack.enter_context(open_input(input))
                file = stack.enter_context(open_output(output, input, prefixes, models=model_paths))
                on_warning = print_stderr
        model, tokenizer, config, origins = load_models(model_paths, on_warning)
        world.start_heartbeat(config.train.rank_timeout)
        if sampling:
            n_extra = max_extra_tokens or config.search.max_extra_tokens
            options: dict[str, Any] = {"sampling": sampling, "max_extra_tokens": n_extra}
            options["batch_tokens"] = batch_tokens or config.search.batch_tokens
        else:
            overrides = {
                "beam_size": beam_size,
                "length_penalty": length_penalty,
                "length_penalty_type": length_penalty_type,
            }
            overrides |= {"max_extra_tokens": max_extra_tokens}
            options = search_options(asdict(config.search), n_best, **overrides, batch_tokens=batch_tokens)
        text = hashlib.sha256(repr(prefix_lines).encode(errors="replace")).hexdigest()
        values = {
            "--model": [f"SHA-256 of state.json {origin.digest}" for origin in origins],
            "--prefixes": f"SHA-256 {text}",
        }
        check_equal(lambda: values | options | {"--alignments": alignments})
        options |= {"prefixes": prefix_lines, "alignments": alignments, "on_warning": on_warning, "world": world}
        options["trained_length"] = trained_length(config)
        work = stack.enter_context(line_progress("translated", input, output, not quiet and world.rank == 0))
        options["on_progress"] = lambda n_lines: work.advance(n_lines * world.size)  # assume equal speed
        index = -1
        results = decoding.decode_stream(model, tokenizer, lines, **options)
        for index, translations in enumerate(results):
            if file is None:
                continue
            if as_json:
                objects = [decoding.to_json(t, tokenizer, scores, alignments) for t in translations]
                text = "\n".join(json.dumps({"index": index} | fields, ensure_ascii=False) for fields in objects)
            else:
                rows = [
                    (t.text, t.hypothesis.score, *decoding.format_fields(t, tokenizer, scores, alignments))
                    for t in translations
                ]
                text = format_hypotheses(rows, index, samples or n_best)
            file.write(f"{text}\n")
            file.flush()
        work.done = index + 1
    if world.rank == 0 and not quiet:
        is_typed = input in (None, STDIO) and sys.stdin.isatty()  # the time includes the pauses of the user
        result = plural(work.done, "line") if is_typed else work.result()
        print_stderr(f"translated {result}, with {', '.join(origin.path for origin in origins)}")


def check_sampling_options(sampling: dict[str, Any], search: dict[str, Any]) -> None:
    """Raise UserError for options of sampling without --samples, or together with options of beam search."""
    if sampling and "samples" not in sampling:
        name = next(iter(sampling)).replace("_", "-")
        raise UserError(f"--{name} has no effect without --samples; try adding --samples 1")
    if sampling and search:
        name = next(iter(search)).replace("_", "-")
        raise UserError(f"--{name} applies to beam search, not to --samples; try only one of them")


def without_none(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
