"""What every command shares: the program `app`, the device, text in and out."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from train.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)


class Commands(typer.core.TyperGroup):
    """All commands; what comes of a stdout that takes no more is settled here, before click sees it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except OSError as error:
            if error.filename is None and error.errno in (errno.EPIPE, *FULL):
                with suppress(OSError, ValueError):  # or Python fails once more when it flushes stdout at the end
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno == errno.EPIPE:
                raise typer.Exit(141) from None
            raise


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train the Transformer of [i]Attention Is All You Need[/i] on pairs of sentences, translate, score.",
    epilog="Start with [b]npx-transformer demo[/b]. A command's own help: [b]npx-transformer train --help[/b].",
)
Device = Annotated[str, typer.Option(help="Where to compute: cpu (NumPy) or cuda (CuPy).", metavar="cpu|cuda")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of `train`.", show_default=False)]


def use_device(name: str) -> None:
    """Computes there from now on, with the whole process set up for it."""
    import npx

    npx.tune()
    try:
        npx.use_device(name)
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error)) from None


def what_is(path: Path) -> str:
    """What stands at a path, for a message."""
    if not path.exists():
        return "nothing"
    if not path.is_dir():
        return "a file"
    return "a folder that exists" if any(path.iterdir()) else "an empty folder"


def stdin_lines() -> Iterator[str]:
    """Lines of standard input, ended by "\\n" alone, as they come."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            found = f"byte {raw[error.start]:#04x} at column {error.start + 1}"
            raise UserError(f"stdin, line {number}: expected UTF-8 text; got {found}; try `iconv -t UTF-8`") from None


@contextmanager
def writer(path: Path | None) -> Iterator[TextIO]:
    """stdout as UTF-8, or a file that appears under its name only when all of it is written."""
    if path is None:
        with open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else f"no folder {path.parent}"
        raise UserError(f"{path}: expected a file to write; got {got}; try another --output")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
