"""`generate`: a text that goes on where a prompt ends, by a trained language model."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from train.cli.app import Device, app, use_device
from train.cli.options import SEEDS, number, text, warn


@app.command(
    epilog="Example: [b]npx-transformer generate --model runs/shakespeare --prompt ROMEO: --tokens 500[/b]. The same"
    " seed gives the same text."
)
def generate(
    model: Annotated[Path, typer.Option(metavar="RUN", help="Run folder, or one checkpoint.", show_default=False)],
    prompt: Annotated[str, text(metavar="TEXT", help="How the text begins; empty: with a new line.")] = "",
    tokens: Annotated[int, number(int, "[1, 10000000]", metavar="N", help="Tokens to write.")] = 200,
    temperature: Annotated[
        float, number(float, "[0, 1e6]", help="Below 1 more likely tokens, above 1 others; 0: the likeliest.")
    ] = 1.0,
    top_k: Annotated[
        int, number(int, "[0, 16777216]", metavar="K", help="Draw from the K likeliest tokens; 0: from all.")
    ] = 0,
    top_p: Annotated[
        float, number(float, "(0, 1]", metavar="P", help="Draw from the fewest tokens of probability P together.")
    ] = 1.0,
    seed: Annotated[int, number(int, SEEDS, help="Fixes what is drawn.")] = 0,
    device: Device = "cpu",
) -> None:
    """Go on with a text, as a trained language model would."""
    from train.run.checkpoint import load_model
    from train.tasks.language import continue_text

    use_device(device)
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    network, tokenizer, config = load_model(model, "language", warn)
    text = continue_text(network, tokenizer, prompt, tokens, config.data.max_length, seed=seed, **options)
    sys.stdout.write(prompt + text + "\n")
