"""`translate`: text, a sentence a line, by a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import Device, app, arriving, use_device, writer
from train.cli.options import Alpha, BatchTokens, Beam, MaxExtra, Model, NBest, Output, Penalty, searched, warn


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
    """Translate text, a sentence a line."""
    from dataclasses import asdict

    from train.run.checkpoint import load_model
    from train.tasks.pairs import numbered
    from train.tasks.translation import translate_stream

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}
    with arriving(input) as lines, writer(output) as file:
        network, tokenizer, config = load_model(model, "translation", warn)
        search = searched(asdict(config.search), n_best, **given)
        translated = translate_stream(network, tokenizer, lines, **search)
        for index, translations in enumerate(translated):
            file.write(numbered(translations, index, n_best) + "\n")
            file.flush()
