"""`python -m book` lists the exercises and your progress; `python -m book 5` starts or checks exercise 5."""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from book.files import MY, ROOT, Exercise, exercises, first_problem, shown

WALL_PER_CPU = 6  # allowed wall-clock seconds per CPU second, high enough for a busy machine
LIMIT = 20.0  # seconds of CPU time for all stages of an answer
REQUIRED = ("numpy", "threadpoolctl", "tokenizers")  # a Python outside `.venv` may lack these packages
DONE = ".done.json"  # this file in `my/` maps each finished exercise to the hash of the accepted answer


def say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def verdict(exercise: Exercise, path: Path, limit: float = LIMIT) -> dict[str, Any]:
    """Judge a file: check it without running it, then run it in a separate process."""
    refusal = first_problem(exercise, path)
    if refusal:
        return {"passed": False, "lines": refusal, "hint": ""}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "verdict.json"
        arguments = [str(exercise.number), str(path.resolve()), str(limit), str(WALL_PER_CPU * limit), str(result)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        command, devnull = [sys.executable, "-m", "book.judging", *arguments], subprocess.DEVNULL
        child = subprocess.Popen(command, env=environment, stdin=devnull, stdout=devnull, stderr=subprocess.PIPE)
        try:
            _, errors = child.communicate(timeout=WALL_PER_CPU * limit + 10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            lines = [
                f"Your code did not finish within {limit:g} s and caught the exception that should stop it.",
                shown(path),
            ]
            return {"passed": False, "lines": lines, "hint": ""}
        except BaseException:
            child.kill()
            child.communicate()
            raise
        if not result.exists():
            last = (errors.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
            lines = [f"{shown(path)}: the process exited with status {child.returncode}.", f"  {last[:100]}"]
            return {"passed": False, "lines": lines, "hint": ""}
        return json.loads(result.read_text(encoding="utf-8"))


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_done(folder: Path) -> dict[str, str]:
    """Return the finished exercises and the hashes of their accepted files."""
    try:
        content = json.loads((folder / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def list_all(folder: Path) -> None:
    """Print every exercise with its state."""
    hashes, first_open = load_done(folder), True
    for exercise in exercises():
        mine = exercise.mine(folder)
        state = "open"
        if mine.exists():
            state = "done" if hashes.get(exercise.name) == file_hash(mine) else "started"
        here = "  <- " + command_for(exercise.number) if state != "done" and first_open else ""
        first_open = first_open and state == "done"
        say(f"{exercise.number:3}  {state:7}  {exercise.title}{here}")
    say("", f"The chapters are in {shown(ROOT / 'book')}; your answers go to {shown(folder)}.")


def command_for(number: int) -> str:
    """Return the command for an exercise, in the form in which the user typed the current command."""
    return f"make exercise N={number}" if "MAKELEVEL" in os.environ else f"python -m book {number}"


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def announce(exercise: Exercise, folder: Path) -> None:
    mine = exercise.mine(folder)
    say(
        f"{exercise.number}. {exercise.title}",
        f"Read    {shown(exercise.chapter)}",
        f"Write   {shown(mine)}  (just created)",
        f"Check   {command_for(exercise.number)}",
    )


def check(exercise: Exercise, folder: Path, hint: bool = False) -> bool:
    """Judge the learner's file, print the verdict and return whether it passed."""
    path = exercise.mine(folder)
    judgment = verdict(exercise, path)
    if judgment["passed"]:
        say(f"{exercise.name}: correct.", "", *judgment["lines"])
        hashes = load_done(folder)
        hashes[exercise.name] = file_hash(path)
        unfinished = folder / f"{DONE}.new"
        unfinished.write_text(json.dumps(hashes, indent=1), encoding="utf-8")
        unfinished.rename(folder / DONE)
    else:
        say(*judgment["lines"])
        if hint and not judgment["hint"]:
            say("", *general_hint(exercise))
    return bool(judgment["passed"])


def general_hint(exercise: Exercise) -> list[str]:
    """Return the general hint of an exercise: the docstring of its check.py."""
    import ast

    tree = ast.parse((exercise.folder / "check.py").read_text(encoding="utf-8"))
    return [f"Hint: {line}" if i == 0 else line for i, line in enumerate((ast.get_docstring(tree) or "").splitlines())]


def watch(exercise: Exercise, folder: Path) -> None:
    """Check again whenever the file changes, until Ctrl-C."""
    path, last_seen = exercise.mine(folder), None
    say(f"Watching {shown(path)}; press Ctrl-C to stop.")
    while True:
        try:
            now = (path.stat().st_mtime_ns, path.stat().st_size)
        except OSError:
            now = None  # an editor may be saving it
        if now and now != last_seen:
            say("", time.strftime("-- %H:%M:%S"))
            check(exercise, folder)
            last_seen = now
        time.sleep(0.3)


def main(arguments: list[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m book", description=__doc__, allow_abbrev=False)
    parser.add_argument("number", nargs="?", type=int, help="number of the exercise; without it, list all exercises")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--watch", action="store_true", help="check again whenever the file changes")
    mode.add_argument(
        "--hint", action="store_true", help="check, and give a general hint if the error is not recognized"
    )
    mode.add_argument("--solution", action="store_true", help="print our solution, with comments")
    mode.add_argument("--reset", action="store_true", help="start over; your file is renamed and kept")
    mode.add_argument("--chapter", action="store_true", help="run the chapter's code and print its output")
    mode.add_argument(
        "--notebook", action="store_true", help="write the chapter and its exercise as a Jupyter notebook"
    )
    parser.add_argument("--folder", type=Path, default=MY, help="folder of your answers (default: %(default)s)")
    options = parser.parse_args(arguments)
    by_number = {exercise.number: exercise for exercise in exercises()}
    if options.number is None:
        if any(vars(options)[name] for name in ("watch", "hint", "solution", "reset", "chapter", "notebook")):
            parser.error("expected the number of an exercise; got no number; try `python -m book 5 --hint`")
        list_all(options.folder)
        return 0
    exercise = by_number.get(options.number)
    if exercise is None:
        parser.error(f"expected an exercise from {min(by_number)} to {max(by_number)}; got {options.number}")
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing and not (options.solution or options.reset):
        parser.error(
            f"expected the Python of this project's environment; got {sys.executable} without {missing[0]}; "
            f"try `make exercise N={exercise.number}`, or `.venv/bin/python -m book {exercise.number}`"
        )
    if options.solution:
        say(exercise.solution.read_text(encoding="utf-8").rstrip())
    elif options.reset:
        backup = exercise.reset(options.folder)
        say(*([f"Backup  {shown(backup)}"] if backup else []), f"Write   {shown(exercise.mine(options.folder))}")
    elif options.notebook:
        from book.notebooks import write

        try:
            say(f"Open    {shown(write(exercise, options.folder))}  (in JupyterLab)")
        except FileExistsError as error:
            parser.error(f"expected no file {shown(Path(error.filename))}, but it already exists; try renaming it")
    elif options.chapter:
        from book.pages import Page

        say(*Page(exercise.chapter).transcript())
    else:
        created = exercise.start(options.folder)
        if created:
            announce(exercise, options.folder)
        if options.watch:
            watch(exercise, options.folder)
        elif not created or options.hint:
            return 0 if check(exercise, options.folder, options.hint) else 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.stderr.write(f"python -m book: {error.strerror}: {error.filename}\n")
        sys.exit(2)
