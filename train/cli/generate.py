"""`generate`: a text that goes on where a prompt ends, by a trained language model."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Device, app, use_device
from train.errors import UserError


@app.command(
    epilog="Example: [b]npx-transformer generate --model runs/shakespeare --prompt ROMEO: --tokens 500[/b]. The same"
    " seed gives the same text."
)
def generate(
    model: Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="How the text begins; empty: with a new line.")] = "",
    tokens: Annotated[int, typer.Option(min=1, max=10_000_000, metavar="N", help="Tokens to write.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0, help="Below 1 more likely tokens, above 1 others; 0: the likeliest.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, metavar="K", help="Draw from the K likeliest tokens; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option(metavar="P", help="Draw from the fewest tokens that together have probability P.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Fixes what is drawn.")] = 0,
    device: Device = "cpu",
) -> None:
    """Go on with a text, as a trained language model would."""
    from models.search import check_sampling
    from train.run.checkpoint import load_model
    from train.tasks.language import continue_text

    use_device(device)
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    try:
        check_sampling(tokens=tokens, **options)
    except ValueError as error:
        raise UserError(f"generate: {error}") from None
    network, tokenizer, config = load_model(model, "language")
    text = continue_text(network, tokenizer, prompt, tokens, config.data.max_length, seed=seed, **options)
    sys.stdout.write(prompt + text + "\n")
