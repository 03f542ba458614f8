"""`generate`: continue a prompt with a trained language model."""

import sys
from pathlib import Path
from typing import Annotated, Any

from train.cli.app import Device, app, use_device
from train.cli.options import SEED_RANGE, ModelPath, number_option, print_stderr, text_option


@app.command(
    epilog="Example: [b]npx-transformer generate --model runs/shakespeare --prompt ROMEO: --tokens 500[/b]. The same"
    " seed gives the same text."
)
def generate(
    model_path: ModelPath,
    prompt: Annotated[
        str, text_option(metavar="TEXT", help="Beginning of the text; if empty, generation starts on a new line.")
    ] = "",
    tokens: Annotated[
        int, number_option(int, "[1, 10000000]", metavar="N", help="Number of tokens to generate.")
    ] = 200,
    temperature: Annotated[
        float, number_option(float, "[0, 1e6]", help="Sampling temperature; 0: always the most probable token.")
    ] = 1.0,
    top_k: Annotated[
        int,
        number_option(int, "[0, 16777216]", metavar="K", help="Sample from the K most probable tokens; 0: from all."),
    ] = 0,
    top_p: Annotated[
        float,
        number_option(
            float, "(0, 1]", metavar="P", help="Sample from the fewest tokens whose total probability is at least P."
        ),
    ] = 1.0,
    seed: Annotated[int, number_option(int, SEED_RANGE, help="Seed of the samples.")] = 0,
    device: Device = "cpu",
) -> None:
    """Continue a text with a trained language model."""
    from train.progress import Display
    from train.run.checkpoint import load_model
    from train.tasks.language import continue_text

    if not prompt and Path("/dev/stdin").is_fifo():
        print_stderr("--prompt is empty, and standard input is not read; try --prompt TEXT")
    use_device(device)
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    model, tokenizer, config = load_model(model_path, "language", print_stderr)
    with Display() as display, display.work(f"generating {tokens:,} tokens"):
        text = continue_text(model, tokenizer, prompt, tokens, config.data.max_length, seed=seed, **options)
    sys.stdout.write(prompt + text + "\n")
