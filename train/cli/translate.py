"""`translate`: text, a sentence a line, by a trained model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import Device, app, arriving, use_device, writer
from train.cli.options import search_key
from train.errors import UserError


@app.command(
    epilog="Example: [b]echo 'A dog runs.' | npx-transformer translate --model runs/a[/b]. An empty line stays empty,"
    " so line i of the output is always the translation of line i. What has come is translated when the input pauses,"
    " or after about four batches."
)
def translate(
    model: Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)],
    input: Annotated[Path | None, typer.Option(metavar="F", help="Text to translate; default: stdin.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="F", help="Where to; default: stdout. Written whole or not at all.")
    ] = None,
    beam: Annotated[int | None, search_key("beam", help="Hypotheses a sentence; default: the run's.")] = None,
    alpha: Annotated[float | None, search_key("alpha", help="Length penalty's exponent; default: the run's.")] = None,
    penalty: Annotated[str | None, search_key("penalty", metavar="paper|length", help="Its form.")] = None,
    max_extra: Annotated[int | None, search_key("max_extra", help="Tokens more than the source at most.")] = None,
    n_best: Annotated[
        int, search_key("beam", metavar="K", help="K > 1: the K best as lines 'number ||| text ||| score'.")
    ] = 1,
    batch_tokens: Annotated[int | None, search_key("batch_tokens", help="Source tokens translated together.")] = None,
    device: Device = "cpu",
) -> None:
    """Translate text, a sentence a line."""
    from dataclasses import asdict

    from train.run.checkpoint import load_model
    from train.tasks.pairs import numbered
    from train.tasks.translation import translate_stream

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}

    def warn(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with arriving(input) as lines, writer(output) as file:
        network, tokenizer, config = load_model(model, "translation", warn)
        search = asdict(config.search) | {name: value for name, value in given.items() if value is not None}
        if n_best > search["beam"]:
            raise UserError(f"--n-best: expected at most the beam, {search['beam']}; got {n_best}; try --beam {n_best}")
        translated = translate_stream(network, tokenizer, lines, **search, n_best=n_best, on_warning=warn)
        for index, translations in enumerate(translated):
            file.write(numbered(translations, index, n_best) + "\n")
            file.flush()
