"""`translate`: translate text, one sentence per line, with a trained model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import STDIO, Device, Quiet, app, line_progress, open_input, open_output, use_device
from train.cli.options import (
    Alpha,
    BatchTokens,
    Beam,
    MaxExtra,
    Model,
    NBest,
    Output,
    Penalty,
    ignore_warning,
    search_options,
    warn,
)


@app.command(
    epilog="Example: [b]echo 'A dog runs.' | npx-transformer translate --model runs/a[/b]. Line i of the output"
    " translates line i; an empty line stays empty. Output is flushed whenever the input pauses, or after about four"
    " batches."
)
def translate(
    model: Model,
    input: Annotated[Path | None, typer.Option(metavar="F", help="Text to translate; default: standard input.")] = None,
    output: Output = None,
    beam: Beam = None,
    alpha: Alpha = None,
    penalty: Penalty = None,
    max_extra: MaxExtra = None,
    n_best: NBest = 1,
    batch_tokens: BatchTokens = None,
    quiet: Quiet = False,
    device: Device = "cpu",
) -> None:
    """Translate text, one sentence per line. Under mpirun, the processes share the work."""
    from contextlib import ExitStack
    from dataclasses import asdict

    from train.errors import UserError
    from train.learn.training import join_ranks
    from train.run.checkpoint import load_model
    from train.tasks.pairs import format_hypotheses
    from train.tasks.translation import translate_stream

    use_device(device)
    world = join_ranks()
    if world.size > 1 and input in (None, STDIO):
        raise UserError(
            f"translate: expected --input FILE with {world.size} ranks, as mpirun does not forward the end of standard "
            "input; got standard input; try --input FILE"
        )
    with ExitStack() as stack:
        lines: Iterator[str | None] = iter(())
        file, on_warning = None, ignore_warning
        with world.rank_zero_first():
            if world.rank == 0:  # only rank 0 reads, writes and warns
                lines, file = stack.enter_context(open_input(input)), stack.enter_context(open_output(output))
                on_warning = warn
        network, tokenizer, config = load_model(model, "translation", on_warning)
        world.start_heartbeat(config.train.rank_timeout)
        overrides = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra}
        search = search_options(asdict(config.search), n_best, **overrides, batch_tokens=batch_tokens)
        search["on_warning"] = on_warning
        work = stack.enter_context(line_progress("translated", input, output, not quiet and world.rank == 0))
        search["on_progress"] = lambda lines: work.advance(lines * world.size)  # the other ranks are about as far
        index = -1
        translations = translate_stream(network, tokenizer, lines, world=world, **search)
        for index, hypotheses in enumerate(translations):
            if file is not None:
                file.write(format_hypotheses(hypotheses, index, n_best) + "\n")
                file.flush()
        work.done = index + 1
    if world.rank == 0 and not quiet:
        warn(f"translated {work.result()}")
