"""`export`: write the model of a run in the format of another program."""

from pathlib import Path
from typing import Annotated

import typer

from npx.ranges import Range
from train.cli.app import RunPath, app
from train.cli.options import checked_option, print_stderr

FORMATS = Range(str, choices=("huggingface", "ctranslate2", "onnx", "safetensors"))
DTYPES = Range(str, choices=("float32", "float16", "int8"))


@app.command(
    "export",
    epilog="Example: [b]npx-transformer export runs/a --to huggingface --out exported[/b]. The folder also contains"
    " the tokenizer, so the other program can use it as it is.",
)
def export_model(
    run: RunPath,
    to: Annotated[
        str,
        checked_option(
            FORMATS, metavar="FORMAT", help="huggingface, ctranslate2, onnx or safetensors.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder.", show_default=False)],
    dtype: Annotated[
        str,
        checked_option(DTYPES, metavar="DTYPE", help="Dtype of the weights: float32, float16, or int8 (ctranslate2)."),
    ] = "float32",
) -> None:
    """Export a model to transformers, CTranslate2, ONNX or plain safetensors."""
    from train.formats import export_run

    export_run(run, to, out, dtype, print_stderr)
    print_stderr(f"exported {run} to {out} in {to} format")
