"""Functions with a hand-written gradient for NumPy, PyTorch and JAX, right and wrong: `collection(framework)`.

The formulas are those of formulas_layers.py and formulas_losses.py; each framework adds wrong functions with bugs that
only it can have.
"""

import argparse
import json
import sys
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from autograd.testing import check_operation, from_jax, from_pair, from_torch

from tests.user_code import formulas_layers, formulas_losses  # isort: skip  # noqa: F401  register the formulas
from tests.user_code.formula import FORMULAS, Formula

FRAMEWORKS = ("pair", "torch", "jax")
ROUNDS = (0, 1, 3, 8, 20, 50, 100, 10**6)  # seeds; all functions are checked with one round's before the next


@dataclass
class Entry:
    """A function to check: its formula and its operation."""

    name: str
    is_right: bool
    formula: Formula
    operation: Any

    def check(self, seed: int = 0) -> Any:
        """Check it with default options."""
        return check_operation(self.operation, *self.formula.inputs(seed))


def torch_function(name: str, forward: Any, backward: Any) -> Any:
    """Build a `torch.autograd.Function` from a pair."""
    import torch

    def forward_method(ctx: Any, *inputs: Any) -> Any:
        out, ctx.cache = forward(*inputs)
        return out

    methods = {
        "forward": staticmethod(forward_method),
        "backward": staticmethod(lambda ctx, g: backward(g, ctx.cache)),
    }
    return type(name, (torch.autograd.Function,), methods)


def jax_function(name: str, forward: Any, backward: Any) -> Any:
    """Build a function with a custom_vjp from a pair."""
    import jax

    def function(*inputs: Any) -> Any:
        return forward(*inputs)[0]

    function.__name__ = name
    custom = jax.custom_vjp(function)

    def backward_rule(cache: Any, g: Any) -> tuple[Any, ...]:
        gradients = backward(g, cache)
        return gradients if isinstance(gradients, tuple) else (gradients,)

    custom.defvjp(forward, backward_rule)
    return custom


def operation(framework: str, name: str, forward: Any, backward: Any) -> Any:
    """Build an operation from a pair in a framework."""
    if framework == "pair":
        forward.__name__ = f"{name}_forward"
        return from_pair(forward, backward)
    if framework == "torch":
        return from_torch(torch_function(name, forward, backward))
    return from_jax(jax_function(name, forward, backward))


def collection(framework: str) -> list[Entry]:
    """Return all functions of a framework."""
    if framework == "torch":
        import torch as xp
    elif framework == "jax":
        import jax.numpy as xp
    else:
        xp = np
    entries = []
    for formula in FORMULAS:
        forward, right, wrong = formula.build(xp)
        entries.append(Entry(formula.name, True, formula, operation(framework, formula.name, forward, right)))
        entries.append(
            Entry(f"{formula.name}_wrong", False, formula, operation(framework, formula.name, forward, wrong))
        )
    square = Formula("square", ((4, 6),), lambda xp: (None, None, None))
    for name, backward in SPECIFIC[framework].items():
        forward = (lambda x: (x * x, x)) if name != "primal_differs" else (lambda x: (x * x + 1e-3 * x, x))
        entries.append(Entry(name, False, square, operation(framework, name, forward, backward)))
    return entries


def in_place(g: Any, x: Any) -> Any:
    g *= 2 * x
    return g


class Workspace:
    """Returns one array for all calls."""

    array: Any = None

    def __call__(self, g: Any, x: Any) -> Any:
        if self.array is None or self.array.shape != x.shape:
            self.array = np.empty(x.shape)
        previous = self.array.copy()
        self.array[...] = 2 * x * g
        return previous


def rounded(g: Any, x: Any) -> Any:
    """Compute in 16 bits."""
    if hasattr(x, "astype"):
        return (2 * x * g.astype("float16")).astype(x.dtype)
    return (2 * x * g.half()).to(x.dtype)


def only_in_float32(g: Any, x: Any) -> Any:
    return 2 * x * g * (1.01 if "float32" in str(x.dtype) else 1)


def clipped(g: Any, x: Any) -> Any:
    return (2 * x * g).clip(-5, 5)


def only_contiguous(g: Any, x: Any) -> Any:
    return 2 * x * (g if g.is_contiguous() else g.as_strided(g.shape, (g.stride(0), 0)))


def only_dense(g: Any, x: Any) -> Any:
    return 2 * x * (g / g.numel() if g.numel() > 1 and not any(g.stride()) else g)


def raw_view(g: Any, x: Any) -> Any:
    return (2 * x.reshape(-1) * g.view(-1)).view(x.shape)


SPECIFIC: dict[str, dict[str, Any]] = {
    "pair": {
        "in_place": in_place,
        "workspace": Workspace(),
        "rounded": rounded,
        "only_in_float32": only_in_float32,
        "clipped": clipped,
    },
    "torch": {
        "in_place": in_place,
        "rounded": rounded,
        "only_in_float32": only_in_float32,
        "clipped": clipped,
        "only_contiguous": only_contiguous,
        "only_dense": only_dense,
        "raw_view": raw_view,
    },
    "jax": {
        "rounded": rounded,
        "only_in_float32": only_in_float32,
        "clipped": clipped,
    },
}


NAMES = [f"{formula.name}{suffix}" for formula in FORMULAS for suffix in ("", "_wrong")] + [*SPECIFIC["pair"]]


def verdict(entry: Entry, seed: int) -> str:
    """Describe an unexpected result of a check: the report of a false alarm or a crash, "missed", or ""."""
    try:
        entry.check(seed)
    except AssertionError as error:
        return str(error) if entry.is_right else ""
    except Exception:
        return f"crash: {traceback.format_exc()}"
    return "" if entry.is_right else "missed"


def read_record(path: Path | None) -> dict[tuple[str, str], dict[int, str]]:
    """Return the verdicts of an earlier run by framework and name, then by seed."""
    verdicts: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    if path and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            framework, name, seed, text = json.loads(line)
            verdicts[framework, name][seed] = text
    return verdicts


def summary(framework: str, entries: list[Entry], verdicts: dict[tuple[str, str], dict[int, str]]) -> str:
    """Return the number of functions and checks of a framework, and of unexpected verdicts."""
    lines = []
    for kind, is_right in (("right", True), ("wrong", False)):
        seeds = [verdicts[framework, e.name] for e in entries if e.is_right == is_right]
        checked = [texts for texts in seeds if texts]
        fewest = min(map(len, checked), default=0)
        unexpected = sum(bool(text) for texts in checked for text in texts.values())
        lines.append(
            f"{len(checked)} of {len(seeds)} {kind} functions with {fewest} seeds or more, "
            f"{sum(map(len, checked))} checks, {unexpected} {'accused' if is_right else 'missed'}"
        )
    return f"{framework}: {'; '.join(lines)}"


def main(arguments: list[str]) -> int:
    """Check the functions with many seeds, a few seeds of all functions first; return 1 after a false alarm or miss."""
    parser = argparse.ArgumentParser(prog="python -m tests.user_code.foreign", description=main.__doc__)
    parser.add_argument("frameworks", nargs="+", choices=FRAMEWORKS)
    parser.add_argument("--right", type=int, default=100, metavar="N", help="seeds for right functions (default: 100)")
    parser.add_argument("--wrong", type=int, default=20, metavar="N", help="seeds for wrong functions (default: 20)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="check only these functions")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append each verdict; skip those recorded before")
    options = parser.parse_args(arguments)
    entries = [
        (framework, entry)
        for framework in options.frameworks
        for entry in collection(framework)
        if not options.only or entry.name in options.only
    ]
    verdicts = read_record(options.record)
    for start, stop in pairwise(ROUNDS):
        for framework, entry in sorted(entries, key=lambda pair: not pair[1].is_right):
            began, seen = time.process_time(), verdicts[framework, entry.name]
            limit = options.right if entry.is_right else options.wrong
            seeds = [seed for seed in range(start, min(stop, limit)) if seed not in seen]
            for seed in seeds:
                seen[seed] = verdict(entry, seed)
                if options.record:
                    with options.record.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([framework, entry.name, seed, seen[seed]]) + "\n")
            if seeds:
                unexpected = [f"seed {seed}: {seen[seed]}" for seed in seeds if seen[seed]]
                seconds = (time.process_time() - began) / len(seeds)
                sys.stdout.write(
                    f"{seconds:6.2f} s  {framework:5} {entry.name:24} seeds {seeds[0]} to {seeds[-1]}: "
                    f"{'; '.join(unexpected) or 'as expected'}\n"
                )
                sys.stdout.flush()
    for framework in options.frameworks:
        sys.stdout.write(summary(framework, [e for f, e in entries if f == framework], verdicts) + "\n")
    return int(any(any(verdicts[framework, entry.name].values()) for framework, entry in entries))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
