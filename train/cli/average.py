"""`average`: average the weights of the last or best checkpoints."""

import sys
from typing import Annotated

import typer

from train.cli.app import RunPath, app
from train.cli.options import number_option
from train.errors import UserError


@app.command(
    epilog="The paper averages the last 5 checkpoints of base and the last 20 of big; train.keep_last sets how many are"
    " kept."
)
def average(
    run: RunPath,
    last: Annotated[
        int | None,
        number_option(
            int, "[1, 10000]", help="Number of newest checkpoints to average; default: 5, or all if there are fewer."
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Average the best checkpoints (train.keep_best) instead.")
    ] = False,
) -> None:
    """Average the weights of the newest or best checkpoints. Commands that load the run then use the average."""
    from train.run.average import average_checkpoints
    from train.run.checkpoint import read_state
    from train.run.folder import RunFolder

    if best and last is not None:
        raise UserError("--last cannot be combined with --best; try only one of them")
    path = average_checkpoints(run, last, best)
    steps = ", ".join(f"{step:,}" for step in read_state(path)["averaged_steps"])
    replaced = " instead of checkpoints/best" if RunFolder(run).best_path.is_dir() else ""
    print(f"averaged the weights after steps {steps}", file=sys.stderr)
    print(f"commands that load the run now use this average{replaced}", file=sys.stderr)
    print(path)
