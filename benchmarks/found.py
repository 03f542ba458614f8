"""Check the gradients of functions of PyTorch and JAX with the gradient checker. Results: docs/gradient-bugs.md.

    python -m benchmarks.found --torch --jax
    python -m benchmarks.found --torch --only torch.hypot --report

Each line of found_torch.txt and found_jax.txt is an expression in the inputs below, from which `check_operation`
derives further inputs. A comment at the end of a line declares a limit that the framework documents. The expression
then raises an error outside the function's domain, as any user's function may, or takes float32 inputs. The levels are
`right`; `convention`, where several gradients are defensible; `wrong`, with the broken rule; `not checked`, with the
reason: the framework has no gradient, the check took more than --limit seconds, or the framework crashed.
"""

import argparse
import ast
import json
import platform
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from autograd.testing import CheckError, GradientError, check_operation, from_jax, from_torch
from train.progress import Display

FRAMEWORKS = ("torch", "jax")
LEVELS = RIGHT, CONVENTION, WRONG, UNCHECKED = "right", "convention", "wrong", "not checked"
WIDTH = 72  # width of the function's name in the table


def inputs() -> dict[str, Any]:
    """Return the inputs, keyed by their names in the expressions."""
    rng = np.random.default_rng(0)
    square = rng.normal(size=(5, 5))
    return {
        **{name: rng.normal(size=(4, 6)) for name in "xyz"},
        **{name: 0.3 + abs(rng.normal(size=(4, 6))) for name in "pq"},  # positive
        **{name: rng.uniform(0.1, 0.9, size=(4, 6)) for name in "ut"},  # between 0 and 1
        "r": 1.3 + abs(rng.normal(size=(4, 6))),  # above 1
        **{name: rng.normal(size=6) for name in "vw"},
        "a": square,
        "h": square @ square.T + np.eye(5),  # symmetric
        "b": rng.normal(size=(5, 2)),
        "s": rng.normal(size=(2, 3, 8)),  # sequences
        "k": rng.normal(size=(4, 3, 3)),  # their kernel
        "i": rng.normal(size=(1, 2, 6, 6)),  # an image
        "c": rng.normal(size=(2, 2, 3, 3)),  # its kernel
        "g": rng.uniform(-0.9, 0.9, size=(1, 3, 3, 2)),  # a grid of points in an image
        "n": rng.integers(0, 6, size=4),  # indices
        "f": rng.normal(size=(2, 3, 8)).astype("float32"),
    }


def require(x: Any, condition: Any) -> Any:
    """Return x. Raises ValueError, which marks an input as outside the domain, unless the condition holds."""
    if not condition:
        raise ValueError("expected an input inside the domain; got one outside it")
    return x


def namespace(framework: str) -> dict[str, Any]:
    """Return the modules that the expressions of a framework use."""
    if framework == "torch":
        return {"torch": import_module("torch"), "F": import_module("torch.nn.functional"), "require": require}
    modules = {"jax": "jax", "jnp": "jax.numpy", "nn": "jax.nn", "jsp": "jax.scipy"}
    for name in ("linalg", "special", "signal", "ndimage", "stats"):
        import_module(f"jax.scipy.{name}")
    return {short: import_module(name) for short, name in modules.items()}


def expressions(framework: str) -> list[str]:
    """Return the expressions of a framework."""
    lines = Path(__file__).with_name(f"found_{framework}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def names_in(expression: str) -> set[str]:
    """Return the names that an expression uses."""
    return {node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)}


def function_of(expression: str, framework: str, names: list[str]) -> Callable[..., Any]:
    """Return the function that an expression computes from the inputs with these names."""
    function = eval(f"lambda {', '.join(names)}: {expression}", namespace(framework))
    function.__name__ = expression
    return function


@dataclass
class Outcome:
    """The check of one function.

    Attributes:
        declared: the documented limit that its line declares.
        rule: the broken rule, or why it is not checked.
        report: the checker's report.
    """

    framework: str
    function: str
    level: str = UNCHECKED
    rule: str = ""
    seconds: float = 0.0
    compared: int = 0
    conventions: int = 0
    inconclusive: int = 0
    report: str = ""
    declared: str = ""


class TimeLimit(BaseException):
    """A check took too long.

    This is not an Exception, because the checker catches the Exceptions that functions raise.
    """


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit if the block takes longer."""

    def stop(*_: Any) -> None:
        raise TimeLimit

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def check(expression: str, framework: str, limit: float, seed: int) -> Outcome:
    """Check one function."""
    expression, _, declared = expression.partition("  # ")
    outcome = Outcome(framework, expression, declared=declared)
    start = time.perf_counter()
    names = names_in(expression)
    given = {name: x for name, x in inputs().items() if name in names}
    try:
        adapter = from_torch if framework == "torch" else from_jax
        operation = adapter(function_of(expression, framework, list(given)))
        with time_limit(limit):
            report = check_operation(operation, *given.values(), seed=seed)
        outcome.level = report.level
        outcome.report = str(report)
        outcome.compared = report.compared
        outcome.conventions = len(report.kinks) + len(report.conventions)
        outcome.inconclusive = len(report.inconclusive)
    except (GradientError, CheckError) as error:
        outcome.level = error.level
        outcome.rule = error.rule
        outcome.report = str(error)
    except TimeLimit:
        outcome.rule = f"time limit of {limit:g} s"
    except Exception as error:
        outcome.rule = f"{type(error).__name__}: {error}".splitlines()[0]
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def check_all(tasks: list[tuple[str, str]], limit: float, seed: int) -> Iterator[Outcome]:
    """Check each (framework, function) in a separate process, which is replaced if a function crashes it."""
    executor = new_executor()
    for framework, expression in tasks:
        try:
            yield executor.submit(check, expression, framework, limit, seed).result()
        except BrokenProcessPool:
            yield Outcome(framework, expression, rule="the process ended: the framework crashed")
            executor = new_executor()
    executor.shutdown()


def new_executor() -> ProcessPoolExecutor:
    """Return an executor with one process."""
    return ProcessPoolExecutor(1, get_context("spawn"))


def row(outcome: Outcome) -> str:
    """Return a line of the table."""
    function = outcome.function if len(outcome.function) <= WIDTH else outcome.function[: WIDTH - 3] + "..."
    remark = f"{outcome.rule}; declared: {outcome.declared}".strip("; ") if outcome.declared else outcome.rule
    return f"{function:{WIDTH}}  {outcome.level:11}  {outcome.seconds:6.2f} s  {remark}".rstrip()


def summary(framework: str, outcomes: list[Outcome]) -> str:
    """Return the counts of a framework as one line."""
    version = metadata.version(framework)
    levels = Counter(outcome.level for outcome in outcomes)
    inconclusive = sum(outcome.inconclusive > 0 for outcome in outcomes)
    counts = ", ".join(f"{levels[level]} {level}" for level in LEVELS)
    declared = sum(outcome.declared != "" for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return (
        f"{framework} {version}: {len(outcomes)} functions: {counts}; {declared} with a declaration; "
        f"{inconclusive} with inconclusive entries; {seconds:.0f} s"
    )


def selected(framework: str, only: list[str]) -> list[str]:
    """Return the expressions that contain one of these texts."""
    return [expression for expression in expressions(framework) if any(text in expression for text in only or [""])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for framework in FRAMEWORKS:
        parser.add_argument(f"--{framework}", action="store_true", help=f"check functions of {framework}")
    only = "check only functions whose line contains NAME; may be repeated"
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help=only)
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="S", help="seconds for each function (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the checks (default: 0)")
    parser.add_argument("--report", action="store_true", help="print the report of each function too")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    args = parser.parse_args()
    frameworks = [framework for framework in FRAMEWORKS if getattr(args, framework)]
    if not frameworks:
        parser.error("expected a framework; try --torch or --jax")
    for framework in frameworks:
        if not find_spec(framework):
            parser.error(f"expected {framework} to be installed; try pip install {framework}")
    tasks = [(framework, expression) for framework in frameworks for expression in selected(framework, args.only)]
    if not tasks:
        parser.error(
            f"expected a part of a line of found_torch.txt or found_jax.txt; got {' '.join(args.only)!r}; try det"
        )
    outcomes = []
    with Display() as display, display.work("checking", "functions", total=len(tasks)) as work:
        for outcome in check_all(tasks, args.limit, args.seed):
            outcomes.append(outcome)
            print(row(outcome), *[outcome.report] * args.report, sep="\n", flush=True)
            work.advance()
    lines = [summary(name, [o for o in outcomes if o.framework == name]) for name in frameworks]
    print("\n".join(["", *lines]))
    if args.json:
        facts = {"python": platform.python_version(), "seed": args.seed, "summary": lines}
        print(json.dumps(facts | {"functions": list(map(asdict, outcomes))}))


if __name__ == "__main__":
    main()
