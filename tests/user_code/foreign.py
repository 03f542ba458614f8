"""Functions with a hand-written gradient for NumPy, PyTorch and JAX, right and wrong: `collection(framework)`.

The formulas are those of formulas.py; each framework adds wrong functions with bugs that only it can have.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograd.testing import check_operation, from_jax, from_pair, from_torch
from tests.user_code.formulas import FORMULAS, Formula

FRAMEWORKS = ("pair", "torch", "jax")


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


def main(arguments: list[str]) -> int:
    """Check the functions of one framework with many seeds; return 1 after a false alarm or a missed bug."""
    parser = argparse.ArgumentParser(prog="python -m tests.user_code.foreign", description=main.__doc__)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--right", type=int, default=100, help="seeds for right functions")
    parser.add_argument("--wrong", type=int, default=20, help="seeds for wrong functions")
    options, failed = parser.parse_args(arguments), 0
    for entry in collection(options.framework):
        start, bad = time.process_time(), []
        seeds = options.right if entry.is_right else options.wrong
        for seed in range(seeds):
            try:
                entry.check(seed)
                text = ""
            except AssertionError as error:
                text = str(error)
            if bool(text) == entry.is_right:
                bad.append((seed, text))
        seconds = (time.process_time() - start) / max(1, seeds)
        result = f"{len(bad)} of {seeds} seeds: {bad[0][1] or 'missed'}" if bad else "as expected"
        sys.stdout.write(f"{seconds:6.2f} s  {entry.name:24} {result}\n")
        sys.stdout.flush()
        failed += bool(bad)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
