"""`demo`: train, translate and draw in a few minutes (see train/experiments/demo.py)."""

from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app
from train.cli.options import SEED_RANGE, number_option, print_stderr
from train.errors import pip_install, quote

DEMO_EXTRA = pip_install("demo").replace("[", "\\[")  # rich would read it as markup


@app.command(epilog=f"The demo needs num2words and matplotlib ({DEMO_EXTRA}) and about 3 minutes on 2 cores.")
def demo(
    out: Annotated[Path, typer.Option(help="New folder for the texts, the run and attention.png.")] = Path("demo-run"),
    seed: Annotated[int, number_option(int, SEED_RANGE, help="Seed of the data and of the training.")] = 1,
) -> None:
    """Train a model that translates English number words into German, score it and draw its attention."""
    from train.experiments.demo import run_demo

    try:
        run_demo(out, seed)
    except KeyboardInterrupt:
        if (out / "run").exists():
            command = f"npx-transformer train --resume --out {quote(out / 'run')}"
            print_stderr(f"interrupted; to finish the training, try {command}; to repeat the demo, try another --out")
        raise
