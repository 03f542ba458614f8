"""Command line `npx-transformer`: each command checks its options and calls one function of `train`.

Exit status: 0 success, 1 internal error (with a traceback), 2 user error (one line on stderr), 130 after Ctrl-C,
141 if the reader of standard output has closed it. To add a command, add a file to this folder and its name to COMMANDS
in app.py.
"""

import atexit
import errno
import gc
import importlib
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer

import npx
from train.cli.app import COMMANDS, app
from train.cli.streams import BrokenOutput, guard_standard_streams
from train.errors import UserError, one_line, quote
from train.files import CANNOT_WRITE, files_read
from train.run.key_names import similar_names

OUT_OF_MEMORY = "out of memory; try shorter lines, or a smaller train.batch_tokens or search.batch_tokens"
# Fragments of the messages that NumPy, the dynamic linker and the tokenizers library (a Rust panic) print when memory
# runs out.
ALLOCATION_FAILED = (
    "without exception set", "without setting an exception", "failed to map segment", "ThreadPoolBuildError",
)  # fmt: skip
OPTIONS_OF_FILES = (  # options to suggest, in this order, for files that were given without an option
    ("--train-src", "--train-tgt", "--valid-src", "--valid-tgt"), ("--ref", "--hyp"), ("--input",), ("--prompt",),
)  # fmt: skip
# click's exception, or its copy in newer versions of typer
CLICK_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; `argv` defaults to the process's arguments."""
    if argv is None:  # the process ends with the command; a garbage collection at exit would take 60 ms
        gc.freeze()
        atexit.register(gc.freeze)
    os.environ["MPLBACKEND"] = "agg"  # pictures are written to files; a notebook's backend may not be installed
    files_read.clear()
    try:
        with guard_standard_streams():
            return run_command(argv)
    except BrokenOutput:
        return 141


def load_commands(*names: str) -> None:
    """Register the named commands of `app` by importing their files."""
    for name in names:
        importlib.import_module(f"train.cli.{COMMANDS[name]}")


def run_command(argv: Sequence[str] | None) -> int:
    """Run one command and turn its errors into a message and an exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        # Typer prepares the options of every registered command, so only the one that is run is loaded.
        load_commands(*(words[:1] if words and words[0] in COMMANDS else COMMANDS))
        with npx.host.errstate(all="ignore"):  # no NumPy warnings; code that uses a result checks it for NaN
            result = app(args=words, prog_name="npx-transformer", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except UserError as error:
        return report_user_error(str(error))
    except CLICK_ERROR as error:  # for example, an unknown option; click's message has several lines
        name = getattr(error, "option_name", "")
        similar = getattr(error, "possibilities", None) or ()
        error.possibilities = similar_names(name, similar)  # click also suggests names that are less similar
        details: Any = getattr(error.__cause__, "errors", list)()  # `errors` exists if typer uses pydantic
        got = f"; got {str(details[0]['input'])[:60]!r}" if details else ""
        return report_user_error(f"{error.format_message().rstrip('.')}{got}; try {suggest_usage(error, words)}")
    except typer.Abort:  # typer raises Abort for an EOFError
        return report_user_error("unexpected end of file; try a complete copy of the input file")
    except KeyboardInterrupt:
        return 130
    except FloatingPointError as error:  # a search raises this error; training reports its own errors
        return report_user_error(f"{error}; try an earlier checkpoint")
    except MemoryError:
        return report_user_error(OUT_OF_MEMORY)
    except OSError as error:
        if error.errno == errno.ENOMEM and error.filename is None:  # mmap
            return report_user_error(OUT_OF_MEMORY)
        if error.errno is None or error.filename is None and error.errno not in CANNOT_WRITE:
            return report_internal_error()
        path = error.filename or "output"
        expected, suggestion = CANNOT_WRITE.get(error.errno, ("a readable or writable file", "another path"))
        return report_user_error(f"{path}: expected {expected}; got '{error.strerror}'; try {suggestion}")
    except BaseException as error:
        if any(fragment in str(error) for fragment in ALLOCATION_FAILED):
            return report_user_error(OUT_OF_MEMORY)
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            return report_internal_error()
        raise


def suggest_usage(error: Any, words: Sequence[str]) -> str:
    """Return what the user can try after click has rejected the command line `words`."""
    context = getattr(error, "ctx", None)
    params = getattr(getattr(context, "command", None), "params", ())
    usage = f"{getattr(context, 'command_path', 'npx-transformer')} --help"
    # words that are not options and probably not the values of options
    positional = [word for before, word in pairwise(words) if not (before.startswith("--") or word.startswith("-"))]
    files = [word for word in positional if os.path.isfile(word) and not word.endswith(".toml")]
    if type(error).__name__ == "MissingParameter" and error.param.param_type_name == "option":
        runs = [word for word in words if os.path.isfile(f"{word}/config.toml")]
        if "--resume" in words and "--out" in error.param.opts and runs:
            return "--resume --out " + quote(runs[0])
        if "--model" in error.param.opts and positional[:1] == runs[:1] != []:
            return f"--model {quote(runs[0])} {suggest_options(files, words, params)}".rstrip()
        return f"{error.param.opts[0]} {error.param.metavar}, or {usage}"
    if not (match := re.search(r"unexpected extra argument\S* \((.*)\)", error.format_message())):
        return usage
    extra = next((word for word in words if f"{match[1]} ".startswith(f"{word} ")), match[1])
    position = words.index(extra) if extra in words else 0
    quoted = shlex.quote(extra)
    option, value = words[position - 2 : position] if position > 1 else ("", "")
    if option == "--set" and "=" not in value:  # such as `--set key value` or `--set key = value`
        text = match[1].lstrip("= ").split(" ")[0]
        return f"--set {shlex.quote(f'{value}={text}')}"
    if os.path.isdir(extra):
        is_run = os.path.isfile(f"{extra}/config.toml")
        if not is_run and "--data" not in words and any("--data" in param.opts for param in params):
            return f"--data {quote(extra)}"
    elif not files and any("--input" in p.opts and p.metavar == "F" for p in params) and "--input" not in words:
        return f"`echo {shlex.quote(match[1])} | {without_extra(words, match[1])}`, or --input F for a file"
    elif "=" not in extra and (options := suggest_options(files or [extra], words, params)):
        first = {"data": "own ", "train": "tiny "}.get(words[0], "") if files == positional else ""
        return first + options
    if option == "--set" and "=" not in extra:
        return f"{option} {shlex.quote(f'{value} {extra}')}, because a value with a space needs quotes"
    if option.startswith("--"):
        is_multiple = any(option in param.opts and param.multiple for param in params)
        return f"{option} {quoted}" if is_multiple else f"{option} with one value, or {usage}"
    return next((f"a single {p.metavar}, or {usage}" for p in params if p.param_type_name == "argument"), usage)


def without_extra(words: Sequence[str], extra: str) -> str:
    """Return the command without the words in `extra`, which click's message lists as extra arguments."""
    command = ["npx-transformer", *words[:1]]
    for word in words[1:]:
        if f"{extra} ".startswith(f"{word} "):
            extra = extra[len(word) + 1 :]
        else:
            command.append(word)
    return shlex.join(command)


def suggest_options(files: Sequence[str], words: Sequence[str], params: Sequence[Any]) -> str:
    """Suggest unused options of a command for `files`, which were given without an option; return "" if none fits."""
    unused = {name for param in params for name in param.opts} - {*words}
    for names in OPTIONS_OF_FILES:
        free = [name for name in names if name in unused]
        if free and files and ("--train-src" not in names or os.path.isfile(files[0])):
            values = ["F", "F"] if free == ["--ref", "--hyp"] else map(quote, files)  # both orders are common
            return " ".join(f"{name} {value}" for name, value in zip(free, values, strict=False))
    return ""


def report_user_error(message: str) -> int:
    """Print the message on one line and return exit status 2."""
    return report_exit(2, one_line(message))


def report_internal_error() -> int:
    """Print the traceback of the current exception and return exit status 1."""
    return report_exit(1, "internal error; please report the lines above", traceback.format_exc())


def report_exit(status: int, line: str, details: str = "") -> int:
    """Print `details` and `line` once and return `status`.

    If all ranks fail with the same error, only rank 0 prints it. If one rank fails alone, it adds its name to the line
    and aborts the others.
    """
    world = npx.distributed.world()
    rank, size = npx.distributed.rank_and_size()
    name = f"rank {rank} of {size}: " if rank and world.size == 1 else ""
    if name:  # this rank has not joined the others yet; if rank 0 fails too, mpirun kills this process
        time.sleep(2)
    if fails_alone := not world.all_ranks_failed():
        name = f"{world.name}, step {world.step:,}: "
    if name or world.rank == 0:
        print(f"{details}npx-transformer: {name}{line}", file=sys.stderr, flush=True)
    if fails_alone:
        world.abort(status)
    return status


def print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"npx-transformer {version('npx-transformer')}")
        except PackageNotFoundError:
            print("npx-transformer (not installed; running from its source folder)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")
