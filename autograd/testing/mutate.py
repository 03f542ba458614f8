"""`python -m autograd.testing mutate MODULE`: mutation testing of gradients.

The command applies the operators of mutation/operators.py to the backward code of a module, one at a time. It runs the
module's tests on each mutant and lists the mutants that pass (docs/mutation-testing.md). The user's files are not
modified: an import hook (mutation/planted.py) substitutes the mutated source inside the pytest processes.
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

from autograd.testing.mutation.mutator import Mutant, mutants
from autograd.testing.mutation.operators import KINDS
from autograd.testing.mutation.runner import (
    CRASHED,
    ENDLESS,
    FOUND,
    NOT_RUN,
    UNNOTICED,
    MutantResult,
    Runner,
    UsageError,
)
from npx.messages import plural


def find_module(name: str) -> Path:
    """Return the file of a module, given its path or dotted name, without importing it."""
    if name.endswith(".py") or os.sep in name:
        if not Path(name).is_file():
            raise UsageError(
                f"expected the path of a .py file; got {name}, which is not a file; try a path relative to {Path.cwd()}"
            )
        return Path(name).resolve()
    path: Any = [os.getcwd(), *sys.path]
    spec = None
    full_name = ""
    for part in name.split("."):
        full_name = f"{full_name}.{part}".lstrip(".")
        finders: list[Any] = [PathFinder, *(finder for finder in sys.meta_path if finder is not PathFinder)]
        spec = next((match for finder in finders if (match := finder.find_spec(full_name, path))), None)
        if spec is None:
            break
        path = spec.submodule_search_locations or []
    if spec is None or not str(spec.origin).endswith(".py"):
        raise UsageError(
            f"expected the dotted name of a module or the path of a .py file; got {name!r}, for which no Python file "
            f"was found; try the path of the file, relative to {Path.cwd()}"
        )
    return Path(str(spec.origin)).resolve()


def default_tests(file: Path) -> list[str]:
    """Return the test files that import the module, from its folder and from ./tests."""
    name = file.parent.name if file.stem == "__init__" else file.stem
    candidates = {*file.parent.glob("*.py"), *Path("tests").resolve().rglob("*.py")}
    tests = [path for path in sorted(candidates) if path.stem.startswith("test_") or path.stem.endswith("_test")]
    chosen = [path for path in tests if path == file or name in imported_names(path)]
    if not chosen:
        raise UsageError(
            f"expected tests that import {relative_path(file)}, next to it or in ./tests; found none; try --tests PATH"
        )
    return [relative_path(path) for path in chosen]


def imported_names(path: Path) -> set[str]:
    """Return the names of modules and objects that a file imports; of a dotted name, only the last component."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.name for alias in node.names} | {str(getattr(node, "module", None))}
    return {name.rpartition(".")[2] for name in names}


def selected_mutants(text: str, file: Path, only: list[str]) -> list[Mutant]:
    """Return the mutants of a module, or only of the operations in `only`. Raises UsageError if there are none."""
    try:
        candidates = mutants(text)
    except SyntaxError as error:
        raise UsageError(f"expected Python in {relative_path(file)}; got {error.msg} in line {error.lineno}") from None
    if not candidates:
        raise UsageError(
            "expected operations (functions under @differentiable, subclasses of autograd.Function, f.defvjp, pairs "
            f"f_forward and f_backward) or layers with parameters in {relative_path(file)}; got neither"
        )
    names = {name for mutant in candidates for name in (mutant.function, *mutant.operations)}
    for name in only:
        if name not in names:
            choices = ", ".join(sorted(names))
            raise UsageError(f"expected an operation defined in {relative_path(file)}; got {name!r}; try {choices}")
    return [m for m in candidates if not only or {m.function, *m.operations} & set(only)]


# The report


def print_line(line: str = "") -> None:
    """Print a line immediately, even if stdout is a file."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def relative_path(path: Path) -> str:
    """Return the path relative to the current folder if it is inside that folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def listing(mutants: list[Mutant], file: Path) -> str:
    """Format mutants by source line: each line once, followed by its changes."""
    lines = []
    previous = ""
    for mutant in mutants:
        header = f"{relative_path(file)}:{mutant.line}  {mutant.function}:  {mutant.before}"
        if header != previous:
            lines += ["", header]
            previous = header
        lines.append(f"    {mutant.kind:<21}  {mutant.old}   ->   {mutant.new}")
    return "\n".join(lines[1:])


def table(results: list[MutantResult]) -> str:
    """Return a table with the number of mutants of each kind and status."""
    rows: list[tuple[Any, ...]] = [("kind", "planted", "found", "unnoticed", "not run")]
    for kind in [*(k for k in KINDS if any(r.mutant.kind == k for r in results)), "all"]:
        group = [r for r in results if kind in (r.mutant.kind, "all")]
        count = Counter("found" if r.detected else r.status for r in group)
        rows.append((kind, len(group), count["found"], count[UNNOTICED], count[NOT_RUN]))
    return "\n".join(f"{row[0]:<24}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows)


def summary(results: list[MutantResult], file: Path) -> str:
    """Format the table and the survivors: first the mutants that tests execute, then those that no test executes."""
    parts = [table(results)]
    crashed = sum(r.status in (CRASHED, ENDLESS) for r in results)
    if crashed:
        verbs, them = ("crashes or does", "it") if crashed == 1 else ("crash or do", "them")
        parts.append(f"{crashed} of the detected mutants {verbs} not end, so any test that executes {them} fails.")
    if not any(r.status == FOUND for r in results):
        parts.append("No assertion failed for any mutant: the tests do not check the results of the backward code.")
    unnoticed = [r.mutant for r in results if r.status == UNNOTICED]
    if unnoticed:
        parts.append(
            f"{plural(len(unnoticed), 'mutant')} passed every test that executes the mutated code. Inspect each: it is "
            "equivalent to the original, or a test is missing."
        )
        parts.append(listing(unnoticed, file))
    not_run = [r.mutant for r in results if r.status == NOT_RUN]
    for function in dict.fromkeys(mutant.function for mutant in not_run):
        group = [mutant for mutant in not_run if mutant.function == function]
        lines = list(dict.fromkeys(str(mutant.line) for mutant in group))
        places = f"{'line' if len(lines) == 1 else 'lines'} {', '.join(lines)}"
        header = f"{relative_path(file)}:{group[0].line}  {function}"
        parts.append(f"{header}: no test executes {len(group)} of its mutants, in {places}")
    if not unnoticed and not not_run:
        parts.append("Every mutant was detected.")
    return "\n\n".join(parts)


def as_json(results: list[MutantResult], file: Path, arguments: list[str], seconds: float) -> str:
    """Return all results as JSON."""
    hidden = ("start", "end", "statement", "gradient", "overwritten")
    entries = []
    for result in results:
        fields = asdict(result)
        mutant = {name: value for name, value in fields.pop("mutant").items() if name not in hidden}
        entries.append(mutant | {"outcome": fields.pop("status")} | fields)
    kinds = {
        kind: dict(Counter(r.status for r in results if r.mutant.kind == kind))
        for kind in KINDS
        if any(r.mutant.kind == kind for r in results)
    }
    content = {"file": str(file), "tests": arguments, "seconds": round(seconds, 1), "n_mutants": len(results)}
    return json.dumps(content | {"kinds": kinds, "mutants": entries}, indent=1)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError for invalid arguments."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; try --help")


def parser() -> Parser:
    p = Parser(
        prog="python -m autograd.testing mutate",
        description="Plant typical bugs in the gradients of a module, one at a time, and list those that its "
        "tests do not detect. The exit status is 1 if there are any.",
        epilog="kinds of bugs: " + "; ".join(f"{kind} ({what})" for kind, what in KINDS.items()),
    )
    add = p.add_argument
    add("module", metavar="MODULE", help="dotted name or path of a .py file")
    add("--only", metavar="OPERATION", action="append", default=[], help="mutate only this operation; may be repeated")
    add("--jobs", metavar="N", type=int, default=os.cpu_count() or 1, help="number of processes (default: all cores)")
    add(
        "--limit",
        metavar="SECONDS",
        type=float,
        help="CPU time per mutant (default: 4 x that of the first run, plus 5 s)",
    )
    add("--list", action="store_true", help="list the mutants without running any tests")
    add("--json", metavar="FILE", type=Path, help="write all results to FILE")
    to_pytest = "pytest arguments; must come last (default: test files next to MODULE and in ./tests that import it)"
    add("--tests", metavar="PYTEST_ARGUMENT", nargs=argparse.REMAINDER, help=to_pytest)
    return p


def mutate(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = parser().parse_args(arguments)
    if options.jobs < 1:
        raise UsageError(f"expected at least 1 for --jobs; got {options.jobs}")
    if options.json and not options.json.parent.is_dir():
        raise UsageError(f"expected a file in an existing folder for --json; got {options.json}")
    file = find_module(options.module)
    text = importlib.util.decode_source(file.read_bytes())
    selected = selected_mutants(text, file, options.only)
    if options.list:
        print_line(listing(selected, file))
        return 0
    tests = options.tests or default_tests(file)
    runner = Runner(file, text, tests)
    start = time.perf_counter()
    print_line(f"{plural(len(selected), 'mutant')} of {relative_path(file)}; tests: {shlex.join(tests)}")
    results: list[MutantResult] = []
    try:
        first = runner.first_run(selected)
        no_effect = len(selected) - len(first.reached)
        skipped = f"; skipping {plural(no_effect, 'mutant')} without effect" if no_effect else ""
        print_line(f"the tests pass in {first.seconds:.1f} s{skipped}")
        for result in runner.run_on_all(selected, first, options.limit or 4 * first.seconds + 5, options.jobs):
            results.append(result)
            m = result.mutant
            progress = f"{len(results)}/{len(first.reached)}"
            print_line(f"{progress:>9}  {result.status:<12}  line {m.line:<4}  {m.function}: {m.kind}")
    finally:
        runner.stop()
    results.sort(key=lambda result: selected.index(result.mutant))
    seconds = time.perf_counter() - start
    if options.json:
        options.json.write_text(as_json(results, file, tests, seconds), encoding="utf-8")
    print_line(f"\n{summary(results, file)}\n\n{seconds:.0f} s")
    return int(any(not result.detected for result in results))


def main(arguments: list[str]) -> int:
    """Run the command line; print one line on stderr for wrong usage, and nothing for Ctrl-C."""
    try:
        # SIGTERM then kills the test processes, as Ctrl-C does.
        previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # only the main thread can set signal handlers
        previous = None
    try:
        return mutate(arguments)
    except UsageError as error:
        sys.stderr.write(f"mutate: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
