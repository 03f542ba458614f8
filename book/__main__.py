"""`python -m book`: the twelve exercises and how far you are; `python -m book 5`: begin the fifth, or check it."""

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

from book.files import MY, ROOT, Exercise, exercises, first_refusal, shown

PATIENCE = 6  # seconds by the clock for one of the processor: on a busy machine an answer is slow, not wrong
LIMIT = 20.0  # seconds of the processor for all stages of an answer
NEEDED = ("numpy", "threadpoolctl", "tokenizers")  # which a Python outside of the environment may lack
DONE = ".done.json"  # in `my/`: exercise -> the file with which it was done


def say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def verdict(exercise: Exercise, path: Path, limit: float = LIMIT) -> dict[str, Any]:
    """A file's verdict: what can be told without running it, else from a process of its own."""
    refusal = first_refusal(exercise, path)
    if refusal:
        return {"passed": False, "lines": refusal, "hint": ""}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "verdict.json"
        words = [str(exercise.number), str(path.resolve()), str(limit), str(PATIENCE * limit), str(result)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        command, nothing = [sys.executable, "-m", "book.judging", *words], subprocess.DEVNULL
        child = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE)
        try:
            _, errors = child.communicate(timeout=PATIENCE * limit + 10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            lines = [f"It did not end within {limit:g} seconds, and caught what was to stop it.", shown(path)]
            return {"passed": False, "lines": lines, "hint": ""}
        except BaseException:
            child.kill()
            child.communicate()
            raise
        if not result.exists():
            last = (errors.decode(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
            lines = [f"{shown(path)}: it ended its own process, with status {child.returncode}.", f"  {last[:100]}"]
            return {"passed": False, "lines": lines, "hint": ""}
        return json.loads(result.read_text(encoding="utf-8"))


def mark(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def done(folder: Path) -> dict[str, str]:
    """The exercises that were done, and the files with which."""
    try:
        found = json.loads((folder / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def list_all(folder: Path) -> None:
    """How far the learner is."""
    marks, first_open = done(folder), True
    for exercise in exercises():
        mine = exercise.mine(folder)
        state = "open"
        if mine.exists():
            state = "done" if marks.get(exercise.name) == mark(mine) else "begun"
        here = "  <- " + how(exercise.number) if state != "done" and first_open else ""
        first_open = first_open and state == "done"
        say(f"{exercise.number:3}  {state:5}  {exercise.title}{here}")
    say("", f"Chapters lie in {shown(ROOT / 'book')}; your answers will lie in {shown(folder)}.")


def how(number: int) -> str:
    """What to type for an exercise: as this was typed."""
    return f"make exercise N={number}" if "MAKELEVEL" in os.environ else f"python -m book {number}"


class OneLine(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def begin(exercise: Exercise, folder: Path) -> None:
    mine = exercise.mine(folder)
    say(
        f"{exercise.number}. {exercise.title}",
        f"Read    {shown(exercise.chapter)}",
        f"Write   {shown(mine)}  (made just now)",
        f"Check   {how(exercise.number)}",
    )


def check(exercise: Exercise, folder: Path, hint: bool = False) -> bool:
    """Judge the learner's file and print what is to be said."""
    path = exercise.mine(folder)
    found = verdict(exercise, path)
    if found["passed"]:
        say(f"{exercise.name}: right.", "", *found["lines"])
        marks = done(folder)
        marks[exercise.name] = mark(path)
        unfinished = folder / f"{DONE}.new"
        unfinished.write_text(json.dumps(marks, indent=1), encoding="utf-8")
        unfinished.rename(folder / DONE)
    else:
        say(*found["lines"])
        if hint and not found["hint"]:
            say("", *general_hint(exercise))
    return bool(found["passed"])


def general_hint(exercise: Exercise) -> list[str]:
    """That of an exercise, for an answer in which no mistake was recognised: where its `check.py` begins."""
    import ast

    tree = ast.parse((exercise.folder / "check.py").read_text(encoding="utf-8"))
    return [f"Hint: {line}" if i == 0 else line for i, line in enumerate((ast.get_docstring(tree) or "").splitlines())]


def watch(exercise: Exercise, folder: Path) -> None:
    """Check again whenever the file has changed, until Ctrl-C."""
    path, seen = exercise.mine(folder), None
    say(f"Watching {shown(path)}; Ctrl-C ends it.")
    while True:
        try:
            now = (path.stat().st_mtime_ns, path.stat().st_size)
        except OSError:
            now = None  # an editor may be writing it
        if now and now != seen:
            say("", time.strftime("-- %H:%M:%S"))
            check(exercise, folder)
            seen = now
        time.sleep(0.3)


def main(arguments: list[str] | None = None) -> int:
    parser = OneLine(prog="python -m book", description=__doc__, allow_abbrev=False)
    parser.add_argument("number", nargs="?", type=int, help="of the exercise; none: list them")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--watch", action="store_true", help="check again whenever the file changes")
    which.add_argument("--hint", action="store_true", help="check, and give a hint also where no mistake is recognised")
    which.add_argument("--solution", action="store_true", help="print ours, with comments")
    which.add_argument("--reset", action="store_true", help="begin again; your file is kept beside the new one")
    which.add_argument("--chapter", action="store_true", help="run the chapter's code and print what it prints")
    parser.add_argument("--folder", type=Path, default=MY, help="where your answers lie (default: %(default)s)")
    options = parser.parse_args(arguments)
    found = {exercise.number: exercise for exercise in exercises()}
    if options.number is None:
        if options.watch or options.hint or options.solution or options.reset or options.chapter:
            parser.error("expected the number of an exercise; got none; try python -m book 5 --hint")
        list_all(options.folder)
        return 0
    exercise = found.get(options.number)
    if exercise is None:
        parser.error(f"expected an exercise from {min(found)} to {max(found)}; got {options.number}")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing and not (options.solution or options.reset):
        parser.error(
            f"expected the Python of this project's environment; got {sys.executable}, which has no {missing[0]}; "
            f"try make exercise N={exercise.number}, or .venv/bin/python -m book {exercise.number}"
        )
    if options.solution:
        say(exercise.solution.read_text(encoding="utf-8").rstrip())
    elif options.reset:
        kept = exercise.reset(options.folder)
        say(*([f"Kept    {shown(kept)}"] if kept else []), f"Write   {shown(exercise.mine(options.folder))}")
    elif options.chapter:
        from book.pages import Page

        say(*Page(exercise.chapter).told())
    else:
        new = exercise.begin(options.folder)
        if new:
            begin(exercise, options.folder)
        if options.watch:
            watch(exercise, options.folder)
        elif not new or options.hint:
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
