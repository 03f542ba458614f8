"""`translate`: text, a sentence a line, by a trained model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import STANDARD, Device, app, arriving, use_device, writer
from train.cli.options import Alpha, BatchTokens, Beam, MaxExtra, Model, NBest, Output, Penalty, mute, searched, warn


@app.command(
    epilog="Example: [b]echo 'A dog runs.' | npx-transformer translate --model runs/a[/b]. An empty line stays empty,"
    " so line i of the output is always the translation of line i. What has come is translated when the input pauses,"
    " or after about four batches."
)
def translate(
    model: Model,
    input: Annotated[Path | None, typer.Option(metavar="F", help="Text to translate; default: stdin.")] = None,
    output: Output = None,
    beam: Beam = None,
    alpha: Alpha = None,
    penalty: Penalty = None,
    max_extra: MaxExtra = None,
    n_best: NBest = 1,
    batch_tokens: BatchTokens = None,
    device: Device = "cpu",
) -> None:
    """Translate text, a sentence a line. Several processes that mpirun starts share it out."""
    from contextlib import ExitStack
    from dataclasses import asdict

    from train.errors import UserError
    from train.learn.training import join_ranks
    from train.run.checkpoint import load_model
    from train.tasks.pairs import numbered
    from train.tasks.translation import translate_stream

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}
    world = join_ranks()
    if world.size > 1 and input in (None, STANDARD):
        raise UserError(
            f"translate: expected --input FILE on {world.size} ranks; got standard input, the end of which mpirun does "
            "not hand on; try --input"
        )
    with ExitStack() as stack:
        lines: Iterator[str | None] = iter(())
        file, tell = None, mute
        with world.rank_zero_first():
            if world.rank == 0:  # of several ranks the one that reads and writes
                lines, file, tell = stack.enter_context(arriving(input)), stack.enter_context(writer(output)), warn
        network, tokenizer, config = load_model(model, "translation", tell)
        world.start_heartbeat(config.train.rank_timeout)
        search = searched(asdict(config.search), n_best, **given) | {"on_warning": tell}
        translated = translate_stream(network, tokenizer, lines, world=world, **search)
        for index, translations in enumerate(translated):
            if file is not None:
                file.write(numbered(translations, index, n_best) + "\n")
                file.flush()
