"""`average`: the mean of the last checkpoints."""

from typing import Annotated

import typer

from train.cli.app import RunPath, app


@app.command(epilog="The paper averages the last 5 checkpoints of base and the last 20 of big (train.keep_last).")
def average(
    run: RunPath,
    last: Annotated[int, typer.Option(min=1, help="How many of the newest checkpoints.")] = 5,
) -> None:
    """Average the weights of the last checkpoints; `translate` then takes the average."""
    from train.run.checkpoint import average_checkpoints

    print(average_checkpoints(run, last))
