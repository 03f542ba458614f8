"""`python -m autograd.testing mutate MODULE`: which mistakes in your gradients would your tests not notice?

Plants the standard mistakes (mutation/rules.py) into a module's backward code, one at a time, runs the tests on each,
and lists those that pass: docs/mutate.md. No file of yours is written: pytest runs in processes of its own, where an
import hook (mutation/planted.py) puts the mistaken text in the place of the module.
"""

import argparse
import ast
import importlib.util
import json
import os
import shlex
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

from autograd.testing.mutation.planting import Mistake, mistakes
from autograd.testing.mutation.rules import KINDS
from autograd.testing.mutation.running import CRASHED, ENDLESS, NOT_RUN, UNNOTICED, Outcome, Runner, UsageError


def find_module(name: str) -> Path:
    """The file of a module, given as its path or by its dotted name; nothing is imported."""
    if name.endswith(".py") or os.sep in name:
        if not Path(name).is_file():
            raise UsageError(f"expected the path of a .py file; found no {name}; try a path from {Path.cwd()}")
        return Path(name).resolve()
    path: Any = [os.getcwd(), *sys.path]
    spec, full = None, ""
    for part in name.split("."):
        full = f"{full}.{part}".lstrip(".")
        finders: list[Any] = [PathFinder, *(finder for finder in sys.meta_path if finder is not PathFinder)]
        spec = next((found for finder in finders if (found := finder.find_spec(full, path))), None)
        if spec is None:
            break
        path = spec.submodule_search_locations or []
    if spec is None or not str(spec.origin).endswith(".py"):
        raise UsageError(
            f"expected a module's dotted name or the path of a .py file; found no Python file for {name!r}; "
            f"try the path of the file, from {Path.cwd()}"
        )
    return Path(str(spec.origin)).resolve()


def default_tests(file: Path) -> list[str]:
    """The test files beside the module and in ./tests that import it."""
    name = file.parent.name if file.stem == "__init__" else file.stem
    candidates = {*file.parent.glob("*.py"), *Path("tests").resolve().rglob("*.py")}
    tests = [path for path in sorted(candidates) if path.stem.startswith("test_") or path.stem.endswith("_test")]
    chosen = [path for path in tests if path == file or name in imported(path)]
    if not chosen:
        raise UsageError(
            f"expected test files beside {shown_path(file)} or in ./tests that import it; found none; try --tests PATH"
        )
    return [shown_path(path) for path in chosen]


def imported(path: Path) -> set[str]:
    """The last parts of the names of all modules that a file imports, and of what it imports from them."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.name for alias in node.names} | {str(getattr(node, "module", None))}
    return {name.rpartition(".")[2] for name in names}


def planted_in(text: str, file: Path, only: list[str]) -> list[Mistake]:
    """The mistakes that there are to plant in a module; those of some operations alone, if `only` names some."""
    try:
        found = mistakes(text)
    except SyntaxError as error:
        raise UsageError(f"expected Python in {shown_path(file)}; got {error.msg} in line {error.lineno}") from None
    if not found:
        raise UsageError(
            f"expected operations (functions under @differentiable that return a vjp) or layers with parameters in "
            f"{shown_path(file)}; found none"
        )
    names = {name for mistake in found for name in (mistake.function, *mistake.operations)}
    for name in only:
        if name not in names:
            choices = ", ".join(sorted(names))
            raise UsageError(f"expected an operation of {shown_path(file)}; got {name!r}; try {choices}")
    return [m for m in found if not only or {m.function, *m.operations} & set(only)]


# What it says


def say(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def shown_path(path: Path) -> str:
    """From the current folder where it lies in it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def listed(some: list[Mistake], file: Path) -> str:
    """Mistakes by the line in which they are: each line once, and what changes in it."""
    lines, last = [], ""
    for mistake in some:
        where = f"{shown_path(file)}:{mistake.line}  {mistake.function}:  {mistake.before}"
        if where != last:
            lines += ["", where]
            last = where
        lines.append(f"    {mistake.kind:<21}  {mistake.old}   ->   {mistake.new}")
    return "\n".join(lines[1:])


def table(outcomes: list[Outcome]) -> str:
    """Planted, noticed and passed by kind."""
    rows: list[tuple[Any, ...]] = [("kind", "planted", "found", "unnoticed", "not run")]
    for kind in [*(k for k in KINDS if any(o.mistake.kind == k for o in outcomes)), "all"]:
        own = [o for o in outcomes if kind in (o.mistake.kind, "all")]
        count = Counter("found" if o.noticed else o.outcome for o in own)
        rows.append((kind, len(own), count["found"], count[UNNOTICED], count[NOT_RUN]))
    return "\n".join(f"{row[0]:<24}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows)


def summary(outcomes: list[Outcome], file: Path) -> str:
    """The table, and what passed: first what tests run and do not notice, then what they do not run."""
    parts = [table(outcomes)]
    loud = sum(o.outcome in (CRASHED, ENDLESS) for o in outcomes)
    if loud:
        parts.append(f"{loud} of those found crash, or do not end: any test that gets there notices these.")
    unnoticed = [o.mistake for o in outcomes if o.outcome == UNNOTICED]
    if unnoticed:
        parts.append(
            f"{len(unnoticed)} passed every test that runs them. Look at each: either the line still means the same, "
            "or the tests have a hole."
        )
        parts.append(listed(unnoticed, file))
    not_run = [o.mistake for o in outcomes if o.outcome == NOT_RUN]
    for function in dict.fromkeys(mistake.function for mistake in not_run):
        own = [mistake for mistake in not_run if mistake.function == function]
        lines = ", ".join(dict.fromkeys(str(mistake.line) for mistake in own))
        where = f"{shown_path(file)}:{own[0].line}  {function}"
        parts.append(f"{where}: no test runs {len(own)} of its mistakes, in line {lines}")
    if not unnoticed and not not_run:
        parts.append("Every mistake was noticed.")
    return "\n\n".join(parts)


def as_json(outcomes: list[Outcome], file: Path, arguments: list[str], seconds: float) -> str:
    hidden = ("start", "end", "statement", "gradient", "over")
    written = []
    for outcome in outcomes:
        fields = asdict(outcome)
        mistake = {name: value for name, value in fields.pop("mistake").items() if name not in hidden}
        written.append(mistake | fields)
    kinds = {
        kind: dict(Counter(o.outcome for o in outcomes if o.mistake.kind == kind))
        for kind in KINDS
        if any(o.mistake.kind == kind for o in outcomes)
    }
    facts = {"file": str(file), "tests": arguments, "seconds": round(seconds, 1), "planted": len(outcomes)}
    return json.dumps(facts | {"kinds": kinds, "mistakes": written}, indent=1)


class Parser(argparse.ArgumentParser):
    """One line for bad use."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; try --help")


def parser() -> Parser:
    p = Parser(
        prog="python -m autograd.testing mutate",
        description="Plant the standard mistakes into a module's gradients, one at a time, and say which of them the "
        "tests do not notice. Exit status 1 if there are some.",
        epilog="kinds of mistakes: " + "; ".join(f"{kind} ({what})" for kind, what in KINDS.items()),
    )
    add = p.add_argument
    add("module", metavar="MODULE", help="dotted name, or path of a .py file")
    add("--only", metavar="OPERATION", action="append", default=[], help="this operation alone; may be repeated")
    add("--jobs", metavar="N", type=int, default=os.cpu_count() or 1, help="processes at a time (all cores)")
    add("--limit", metavar="SECONDS", type=float, help="of processor time for each (four times the first run, and 5)")
    add("--list", action="store_true", help="list the mistakes, run nothing")
    add("--json", metavar="FILE", type=Path, help="write all results here")
    to_pytest = "comes last: the rest goes to pytest (default: test files there or in ./tests that import MODULE)"
    add("--tests", metavar="PYTEST_ARGUMENT", nargs=argparse.REMAINDER, help=to_pytest)
    return p


def mutate(arguments: list[str]) -> int:
    """Plants, runs, reports; returns the exit status."""
    options = parser().parse_args(arguments)
    if options.jobs < 1:
        raise UsageError(f"expected at least 1 for --jobs; got {options.jobs}")
    if options.json and not options.json.parent.is_dir():
        raise UsageError(f"expected a file in a folder that exists for --json; got {options.json}")
    file = find_module(options.module)
    text = importlib.util.decode_source(file.read_bytes())
    planted = planted_in(text, file, options.only)
    if options.list:
        say(listed(planted, file))
        return 0
    chosen = options.tests or default_tests(file)
    runner = Runner(file, text, chosen)
    start = time.perf_counter()
    say(f"{len(planted)} mistakes to plant in {shown_path(file)}; tests: {shlex.join(chosen)}")
    outcomes: list[Outcome] = []
    try:
        first = runner.first_run(planted)
        left_out = len(planted) - len(first.reached)
        say(f"the tests pass in {first.seconds:.1f} s" + (f"; {left_out} would change nothing" if left_out else ""))
        for outcome in runner.run_on_all(planted, first, options.limit or 4 * first.seconds + 5, options.jobs):
            outcomes.append(outcome)
            m, done = outcome.mistake, f"{len(outcomes)}/{len(first.reached)}"
            say(f"{done:>9}  {outcome.outcome:<12}  line {m.line:<4}  {m.function}: {m.kind}")
    finally:
        runner.stop()
    outcomes.sort(key=lambda outcome: planted.index(outcome.mistake))
    seconds = time.perf_counter() - start
    if options.json:
        options.json.write_text(as_json(outcomes, file, chosen, seconds), encoding="utf-8")
    say(f"\n{summary(outcomes, file)}\n\n{seconds:.0f} s")
    return int(any(not outcome.noticed for outcome in outcomes))


def main(arguments: list[str]) -> int:
    """The command: `mutate`, with one line for bad use and none for Ctrl-C."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the tests as Ctrl-C does
    except ValueError:  # not in the main thread
        before = None
    try:
        return mutate(arguments)
    except UsageError as error:
        sys.stderr.write(f"mutate: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
