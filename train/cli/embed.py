"""`embed`: print a vector for each line of text, computed by the encoder of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from npx.ranges import Range
from train.cli.app import Device, Quiet, app, line_progress, open_input, open_output, use_device
from train.cli.options import ModelPath, checked_option, print_stderr
from train.errors import UserError

POOLINGS = ("mean", "first")
OTHER_FORMATS = ".npz", ".pt", ".safetensors", ".h5"  # formats of other programs; the command cannot write them


@app.command(
    epilog="Example: [b]npx-transformer embed --model runs/pretrained --input texts.txt --output vectors.npy[/b]. The"
    " array has one row per line. Without .npy, the output is text: one line of space-separated numbers per input line."
)
def embed(
    model_path: ModelPath,
    input: Annotated[
        Path | None, typer.Option(metavar="F", help="Texts, one per line; default: standard input.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="F|F.npy", help="Output file, written atomically; .npy: a NumPy array. Default: standard output."
        ),
    ] = None,
    pooling: Annotated[
        str,
        checked_option(
            Range(str, choices=POOLINGS),
            metavar="|".join(POOLINGS),
            help="mean: the mean over the tokens; first: the first token's vector, after the pooler if there is one.",
        ),
    ] = "mean",
    quiet: Quiet = False,
    device: Device = "cpu",
) -> None:
    """Print a vector for each line of text, computed by a masked language model, classifier or tagger."""
    from train.run.checkpoint import find_checkpoint, load_with_origin, read_state, task_of
    from train.tasks.line_predictions import embed_lines
    from train.tasks.task import TaskError

    if output is not None and output.suffix.lower() in OTHER_FORMATS:
        expected = "a name that ends in .npy, or the name of a text file"
        raise UserError(f"{output}: expected {expected}; got {output.suffix}; try {output.with_suffix('.npy')}")
    use_device(device)
    task = task_of(read_state(find_checkpoint(model_path)))
    if task.data_kind != "labels":
        raise TaskError(model_path, ("masking", "classification", "tagging"), task)
    model, tokenizer, _, origin = load_with_origin(model_path, "", print_stderr)
    as_array = output is not None and output.suffix.lower() == ".npy"
    with (
        open_input(input) as lines,
        open_output(output, input, models=[model_path], mode="b" if as_array else "t") as file,
        line_progress("embedded", input, output, not quiet) as work,
    ):
        vectors = embed_lines(model, tokenizer, lines, pooling, on_progress=work.advance)
        if as_array:
            write_array(file, list(vectors), model.config.d_model)
        else:
            for vector in vectors:
                file.write(" ".join(f"{x:.6g}" for x in vector.tolist()) + "\n")
                file.flush()
    if not quiet:
        print_stderr(f"embedded {work.result()}, with {origin.path}")


def write_array(file: Any, vectors: list[Any], width: int) -> None:
    """Write vectors as the rows of a NumPy array (n, width) to a file or a pipe."""
    import numpy as np

    unseekable = SimpleNamespace(write=file.write)  # np.save seeks in a file object, but a pipe cannot seek
    np.save(unseekable, np.stack(vectors) if vectors else np.zeros((0, width), np.float32))
