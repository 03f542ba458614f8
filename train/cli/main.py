"""The command line `npx-transformer`: each command reads its options, checks them and calls one function of `train`.

Exit status: 0 done, 2 the user's mistake (one line on stderr), 1 a fault of ours (traceback), 130 after Ctrl-C, 141
where the reader of a pipe has gone. A new command is a file beside this one and a line among the imports.
"""

import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from train.cli.app import app
from train.cli.streams import Gone, settled
from train.errors import UserError, one_line
from train.files import CANNOT_WRITE

# isort: off
# Each of these enters its command; --help lists them in this order.
from train.cli import demo  # noqa: F401
from train.cli import data  # noqa: F401
from train.cli import train  # noqa: F401
from train.cli import translate  # noqa: F401
from train.cli import parse  # noqa: F401
from train.cli import generate  # noqa: F401
from train.cli import score  # noqa: F401
from train.cli import score_trees  # noqa: F401
from train.cli import average  # noqa: F401
from train.cli import info  # noqa: F401
from train.cli import draw  # noqa: F401
from train.cli import serve  # noqa: F401
from train.cli import plan  # noqa: F401
from train.cli import reproduce  # noqa: F401
# isort: on

CLICK_ERROR: Any = typer.BadParameter.__mro__[2]  # click's, or the one of the copy that newer typers carry


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; `argv` defaults to the process's arguments."""
    os.environ["MPLBACKEND"] = "agg"  # pictures go to files; what a notebook sets may not be installed here
    try:
        with settled():
            return run(argv)
    except Gone:
        return 141


def run(argv: Sequence[str] | None) -> int:
    """Runs one command, and turns what goes wrong into a line and an exit status."""
    try:
        result = app(args=argv if argv is None else list(argv), prog_name="npx-transformer", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except UserError as error:
        return fail(str(error))
    except CLICK_ERROR as error:  # no such option, a value of the wrong kind: two or three lines of click's made one
        command = getattr(getattr(error, "ctx", None), "command_path", "npx-transformer")
        wrong: Any = getattr(error.__cause__, "errors", list)()  # pydantic's, where typer has it read values
        got = f"; got {str(wrong[0]['input'])[:60]!r}" if wrong else ""
        return fail(f"{error.format_message().rstrip('.')}{got}; try {command} --help")
    except typer.Abort:  # what typer makes of an EOFError
        return fail("input: expected more of it; got its end; try a whole copy of the file that is read")
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        return fail("memory: expected more of it; got none left; try a smaller batch_tokens in [train] or [search]")
    except OSError as error:
        if error.errno is None or error.filename is None and error.errno not in CANNOT_WRITE:
            return fault()
        what = error.filename or "output"
        return fail(f"{what}: expected to read or write it; got '{error.strerror}'; try another path or more room")
    except Exception:
        return fault()


def fail(message: str) -> int:
    """Says the user's mistake in one line; exit status 2."""
    return end(2, one_line(message))


def fault() -> int:
    """Shows where we failed; exit status 1."""
    return end(1, "this is a fault of the program, not yours; please report the lines above", traceback.format_exc())


def end(status: int, line: str, before: str = "") -> int:
    """Says why this process ends: of several ranks that end alike rank 0, a rank that ends alone for itself."""
    from npx import distributed

    world = distributed.world()
    speaks = world.rank == 0 and distributed.rank_and_size()[0] == 0
    alone = not world.all_ranks_failed()
    if speaks or alone:
        where = f"{world.name}, step {world.step}: " if alone else ""
        print(f"{before}npx-transformer: {where}{line}", file=sys.stderr, flush=True)
    if alone:
        world.abort(status)
    if not speaks and world.size == 1:  # not joined yet: mpirun ends all when the first one ends
        time.sleep(2)
    return status


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"npx-transformer {version('npx-transformer')}")
        except PackageNotFoundError:
            print("npx-transformer, not installed (run from its source)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")
