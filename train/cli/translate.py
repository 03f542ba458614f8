"""`translate`: text, a sentence a line, by a trained model."""

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import Device, app, stdin_lines, use_device, what_is, writer
from train.errors import UserError


@app.command(
    epilog="Example: [b]echo 'A dog runs.' | npx-transformer translate --model runs/a[/b]. An empty line stays empty,"
    " so line i of the output is always the translation of line i."
)
def translate(
    model: Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)],
    input: Annotated[Path | None, typer.Option(metavar="F", help="Text to translate; default: stdin.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="F", help="Where to; default: stdout. Written whole or not at all.")
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Hypotheses a sentence; default: the run's.")] = None,
    alpha: Annotated[float | None, typer.Option(min=0, help="Length penalty's exponent; default: the run's.")] = None,
    penalty: Annotated[str | None, typer.Option(metavar="paper|length", help="Its form; default: the run's.")] = None,
    max_extra: Annotated[int | None, typer.Option(min=1, help="Tokens more than the source at most.")] = None,
    n_best: Annotated[
        int, typer.Option(min=1, metavar="K", help="K > 1: the K best as lines 'number ||| text ||| score'.")
    ] = 1,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Source tokens translated together.")] = None,
    device: Device = "cpu",
) -> None:
    """Translate text, a sentence a line."""
    from dataclasses import asdict

    from train.run.checkpoint import load_model
    from train.run.config import check, keys_of
    from train.tasks.pairs import numbered
    from train.tasks.translation import translate_stream
    from train.text.lines import read_lines

    use_device(device)
    given = {"beam": beam, "alpha": alpha, "penalty": penalty, "max_extra": max_extra, "batch_tokens": batch_tokens}
    keys = keys_of("search")
    changes = {k: check("search", keys[k], value, "translate") for k, value in given.items() if value is not None}
    if input is not None and not input.is_file():
        raise UserError(f"{input}: expected a text file; got {what_is(input)}; try another --input, or none for stdin")
    network, tokenizer, config = load_model(model, "translation")
    search = asdict(config.search) | changes
    if n_best > search["beam"]:
        raise UserError(f"--n-best: expected at most the beam, {search['beam']}; got {n_best}; try --beam {n_best}")
    lines = chain.from_iterable(read_lines(input)) if input else stdin_lines()
    translated = translate_stream(
        network, tokenizer, lines, **search, n_best=n_best, on_warning=lambda text: print(text, file=sys.stderr)
    )
    with writer(output) as file:
        for index, translations in enumerate(translated):
            file.write(numbered(translations, index, n_best) + "\n")
