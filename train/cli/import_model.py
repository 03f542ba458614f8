"""`import`: write a model of another program as a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from train.cli.app import app
from train.cli.options import print_stderr


@app.command(
    "import",
    epilog="Example: [b]npx-transformer import opus-mt-en-de --out runs/opus[/b]. Then `translate`, `generate`,"
    " `embed`, `score`, `info`, `draw`, `serve` and `train --init` use it like any run.",
)
def import_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the model.", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="RUN", help="New run folder.", show_default=False)],
) -> None:
    """Import a MarianMT (OPUS-MT), GPT-2 or BERT model in Hugging Face format, or a Marian model, as a run folder."""
    from train.formats import import_folder

    run = import_folder(folder, out, print_stderr)
    print_stderr(f"imported {folder} as the run {run.path}")
