"""What every command shares: the program `app`, the device, text in and out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from npx.ranges import Range
from train.cli.options import ranged
from train.cli.streams import Stream, arriving_lines, ended
from train.errors import UserError
from train.files import atomic_write, disk_errors, open_for_reading
from train.text.lines import LONGEST_LINE

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train the Transformer of [i]Attention Is All You Need[/i] on pairs of sentences, translate, score.",
    epilog="Start with [b]npx-transformer demo[/b]. A command's own help: [b]npx-transformer train --help[/b].",
)
DEVICES = Range(str, choices=("cpu", "cuda"))
Device = Annotated[str, ranged(DEVICES, help="Where to compute: cpu (NumPy) or cuda (CuPy).", metavar="cpu|cuda")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of `train`.", show_default=False)]


def use_device(name: str) -> None:
    """Computes there from now on, with the whole process set up for it."""
    import npx

    npx.configure_process()
    try:
        npx.use_device(name)
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error)) from None


STANDARD = Path("-")  # input or output


@contextmanager
def arriving(path: Path | None) -> Iterator[Iterator[str | None]]:
    """The lines of a text file, of a pipe or of standard input as they come; None where they pause."""
    if path in (None, STANDARD):
        yield arriving_lines(sys.stdin.buffer, "stdin", LONGEST_LINE)
        return
    with open_for_reading(path, "a text file", pipes=True) as file:
        yield arriving_lines(file, str(path), LONGEST_LINE)


@contextmanager
def writer(path: Path | None) -> Iterator[Any]:
    """stdout as UTF-8, or a file that appears under its name only when all of it is written."""
    if path in (None, STANDARD):
        sys.stdout.flush()
        with open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n") as file:
            output = Stream(file, ended)
            yield output
            output.flush()
        return
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise UserError(f"{path}: expected a file to write; got {got}; try another --output")
    with disk_errors(str(path)), atomic_write(path, "t", write_through=True) as file:
        yield file
