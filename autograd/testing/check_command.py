"""`python -m autograd.testing check MODULE[:NAME]`: check the custom gradients of a module, in any framework."""

import ast
import importlib
import importlib.util
import json
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import npx
from autograd.testing.adapters.discover import (
    CustomGradient,
    adapt,
    adapt_by_trial,
    custom_gradients,
    matching_backward,
)
from autograd.testing.adapters.guess import guess_inputs
from autograd.testing.declared_gradient import DeclaredGradient
from autograd.testing.mutate import Parser
from autograd.testing.mutation.runner import UsageError
from autograd.testing.progress import progress_line, show_on_terminal
from autograd.testing.report import CheckError, GradientError

RIGHT, WRONG, UNCHECKED = "right", "wrong", "not checked"


@dataclass
class Outcome:
    """The outcome of checking one custom gradient.

    Attributes:
        kind: as for `CustomGradient`.
        result: one of RIGHT, WRONG and UNCHECKED.
        inputs: a description of each input.
        rule: the broken rule, if the result is WRONG.
        text: the report on a wrong gradient, or the error that prevented the check.
        compared, notes: as for `Report`.
        seconds: the duration of the check.
    """

    name: str
    kind: str
    result: str = UNCHECKED
    inputs: list[str] = field(default_factory=list)
    rule: str = ""
    text: str = ""
    compared: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def load(name: str) -> ModuleType:
    """Import a module by its dotted name or the path of its file. Raises UsageError if the import fails."""
    path = Path(name).resolve()
    is_path = name.endswith(".py")
    if is_path and not path.is_file():
        raise UsageError(f"expected the path of a Python file; got {name}, which is not a file")
    sys.path.insert(0, str(path.parent if is_path else Path.cwd()))
    try:
        module = importlib.import_module(path.stem if is_path else name)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise UsageError(f"expected an importable module; got {name!r} ({got})") from None
    if is_path and Path(module.__file__ or "").resolve() != path:
        raise UsageError(f"expected a file name that no imported module uses; got {path.name}; try renaming the file")
    return module


def select(target: str) -> list[CustomGradient]:
    """Return the custom gradients of `MODULE`, or the one that `MODULE:NAME` names.

    Raises UsageError if the module has no such gradient.
    """
    module_name, _, name = target.partition(":")
    module = load(module_name)
    gradients = [*custom_gradients(module)]
    if not name:
        if not gradients:
            raise UsageError(
                f"expected custom gradients in {module_name} (subclasses of torch.autograd.Function, JAX's custom_vjp, "
                "pairs of functions f_forward and f_backward, or registered operations); found none; "
                f"try {module_name}:NAME for a single function"
            )
        return gradients
    subject: Any = module
    for part in name.split("."):
        if not hasattr(subject, part):
            names = ", ".join(g.name for g in gradients) or "the name of a function"
            raise UsageError(f"expected a name that {module_name} defines; got {name!r}; try {names}")
        subject = getattr(subject, part)
    for gradient in gradients:
        if gradient.name in (name, name.removesuffix(".apply")):
            return [gradient]
    if isinstance(subject, type):
        try:
            subject = subject()
        except TypeError:
            raise UsageError(f"expected a function or an instance; got the class {name}; try {name}.apply") from None
    backward = matching_backward(name, vars(module)) if name in vars(module) else None
    selected = adapt(subject, backward) or adapt_by_trial(subject)
    if selected is None:
        raise UsageError(
            f"expected a function with a gradient; got {name}, which has no backward function {name}_backward; "
            f"try defining {name}_backward, or passing a function of Tensors, torch tensors or JAX arrays"
        )
    return [selected]


def parse_input(text: str, i: int, seed: int) -> Any:
    """Return an input: an array for `4x6`, `4:int`, `4x4:bool` or `4x6:positive`, or a Python literal for `=0.5`."""
    if text.startswith("="):
        return ast.literal_eval(text[1:])
    shape_text, _, kind = text.partition(":")
    try:
        shape = tuple(int(n) for n in shape_text.split("x")) if shape_text else ()
    except ValueError:
        shape = (-1,)
    if min(shape, default=0) < 0 or kind not in ("", "int", "bool", "positive"):
        raise UsageError(f"expected a shape such as 4x6, 4:int, 4x4:bool or 4x6:positive for --input; got {text!r}")
    rng = npx.host.random.default_rng(seed + i)
    if kind == "int":
        return rng.integers(0, 3, size=shape)
    x = rng.normal(size=shape)
    return x > 0 if kind == "bool" else abs(x) if kind == "positive" else npx.host.asarray(x)


def describe_input(x: Any) -> str:
    """Return the shape and the kind of an input."""
    if not hasattr(x, "shape"):
        return repr(x)
    shape = "x".join(map(str, x.shape)) or "number"
    return shape + {"f": "", "b": ":bool"}.get(x.dtype.kind, ":int")


def parse_expectations(texts: list[str], gradients: list[CustomGradient]) -> dict[str, str]:
    """Parse `NAME=GRADIENT` into a dictionary of declared gradients; NAME is optional for a single function."""
    names = [g.name for g in gradients]
    expectations = {}
    for text in texts:
        name, separator, declared = text.partition("=")
        if not (separator and name in names) and len(names) == 1:
            name = names[0]
            declared = text
        if name not in names:
            choices = ", ".join(names)
            raise UsageError(f"expected NAME=GRADIENT for --expected-gradient, with NAME among {choices}; got {text!r}")
        try:
            DeclaredGradient(declared)
        except ValueError as error:
            raise UsageError(f"--expected-gradient {text}: {error}") from None
        if any(g.name == name and hasattr(g.operation, "named_parameters") for g in gradients):
            raise UsageError(
                f"expected a function for --expected-gradient; got the layer {name}; try the function that it calls"
            )
        expectations[name] = declared
    return expectations


def run_check(gradient: CustomGradient, shapes: list[str], seed: int, expected_gradient: str | None = None) -> Outcome:
    """Check one custom gradient at inputs of the given `shapes` or, if there are none, at guessed inputs.

    Args:
        expected_gradient: as for `check_operation`.
    """
    outcome = Outcome(gradient.name, gradient.kind)
    start = time.perf_counter()
    try:
        inputs = [parse_input(text, i, seed) for i, text in enumerate(shapes)]
        inputs = inputs or guess_inputs(gradient.operation, seed)
        outcome.inputs = [describe_input(x) for x in inputs]
        options = {} if expected_gradient is None else {"expected_gradient": expected_gradient}
        report = gradient.check(*inputs, seed=seed, **options)
        outcome.result = RIGHT
        outcome.compared = report.compared
        outcome.notes = report.notes
    except (GradientError, CheckError) as error:
        outcome.result = WRONG
        outcome.rule = error.rule
        outcome.text = str(error)
    except UsageError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        outcome.text = f"{type(error).__name__}: {lines[0]}"
    outcome.seconds = round(time.perf_counter() - start, 2)
    return outcome


def run_checks(
    gradients: list[CustomGradient], shapes: list[str], seed: int, expectations: dict[str, str]
) -> list[Outcome]:
    """Check all gradients, with a progress line on a terminal."""
    outcomes: list[Outcome] = []

    def show(text: str) -> None:
        show_on_terminal(text and f"{len(outcomes) + 1} of {len(gradients)}: {text}")

    with progress_line(show) if sys.stderr.isatty() else nullcontext():
        for gradient in gradients:
            outcomes.append(run_check(gradient, shapes, seed, expectations.get(gradient.name)))
    return outcomes


def print_table(outcomes: list[Outcome]) -> None:
    """Print a row for each custom gradient, then the reports of those that are wrong."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    table = Table(box=None, pad_edge=False)
    for column in ("function", "kind", "inputs", "result", "rule", "derivatives", "s"):
        table.add_column(column, justify="right" if column in ("derivatives", "s") else "left")
    style = {RIGHT: "green", WRONG: "bold red", UNCHECKED: "yellow"}
    for o in outcomes:
        result = f"[{style[o.result]}]{o.result}[/]"
        number = str(o.compared) if o.compared else ""
        table.add_row(o.name, o.kind, " ".join(o.inputs), result, o.rule, number, f"{o.seconds:.2f}")
    console.print(table)
    for o in outcomes:
        if o.text:
            sys.stdout.write(f"\n{o.text if o.result == WRONG else f'{o.name}: not checked: {o.text}'}\n")
        for note in o.notes:
            sys.stdout.write(f"{o.name}: {note}\n")
    counts = [f"{sum(o.result == result for o in outcomes)} {result}" for result in (RIGHT, WRONG, UNCHECKED)]
    sys.stdout.write(f"\n{', '.join(counts)}\n")


def parser() -> Parser:
    p = Parser(
        prog="python -m autograd.testing check",
        description="Check custom gradients: subclasses of torch.autograd.Function, functions with JAX's custom_vjp, "
        "pairs of NumPy functions f_forward and f_backward, and operations of this package. The exit status is 0 if"
        " all are right, 1 if any is wrong, and 2 if any could not be checked or the usage is wrong.",
    )
    add = p.add_argument
    target = "dotted name of a module or path of a .py file, with :NAME for a single function (default: all)"
    add("target", metavar="MODULE[:NAME]", help=target)
    shapes = "shape of the next input: 4x6, 4:int, 4x6:bool, 4x6:positive; =0.5 for a value (default: guessed)"
    add("--input", metavar="SHAPE", action="append", default=[], help=shapes)
    expected = "gradient that intentionally differs from the derivative: straight-through, reversed, or a sentence"
    add("--expected-gradient", metavar="NAME=GRADIENT", action="append", default=[], help=expected)
    add("--seed", metavar="N", type=int, default=0, help="seed of the inputs and of the check (default: 0)")
    add("--json", action="store_true", help="print one JSON object instead of a table")
    return p


def main(arguments: list[str]) -> int:
    """Run the command line and return its exit status."""
    try:
        options = parser().parse_args(arguments)
        gradients = select(options.target)
        expectations = parse_expectations(options.expected_gradient, gradients)
        outcomes = run_checks(gradients, options.input, options.seed, expectations)
    except UsageError as error:
        sys.stderr.write(f"check: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        result = {"target": options.target, "seed": options.seed, "checks": [vars(o) for o in outcomes]}
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
    else:
        print_table(outcomes)
    results = {o.result for o in outcomes}
    return 1 if WRONG in results else 2 if UNCHECKED in results else 0
