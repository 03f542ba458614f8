"""`demo`: from nothing to a translation and a picture, see train/experiments/demo.py."""

from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app
from train.cli.options import SEEDS, number


@app.command(
    epilog="Needs num2words and matplotlib: pip install 'npx-transformer\\[demo]'. About 3 minutes on 2 cores."
)
def demo(
    out: Annotated[Path, typer.Option(help="New folder for texts, run and attention.png.")] = Path("demo-run"),
    seed: Annotated[int, number(int, SEEDS, help="Fixes the numbers drawn and the training.")] = 1,
) -> None:
    """Learn to translate English number words into German ones, from nothing, and show how well and how."""
    from train.experiments.demo import run_demo

    run_demo(out, seed)
