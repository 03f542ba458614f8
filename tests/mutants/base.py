"""A mutant, how it is installed, and how the checker searches for it.

Each `Mutant` replaces part of an operation, a kernel, a layer or a model. The search uses the case that tests/cases
registers for that entry, which is also the one that test_registry_checks.py uses; no mutant has a case of its own.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

import npx
from autograd import OPERATIONS, differentiable
from autograd.testing import problem_check
from autograd.testing.gradcheck import GradientCheck
from tests import cases

Patch = pytest.MonkeyPatch
KINDS = {
    "formula": "a wrong formula",
    "blocks": "wrong across a block boundary or between threads",
    "domain": "wrong on part of the domain",
    "not finite": "NaN or infinity",
    "incoming gradient": "wrong for some incoming gradients",
    "state": "state left from an earlier call, or overwritten",
    "dtype": "wrong dtype or precision",
    "special value": "wrong at one special value or shape",
    "model": "layers assembled wrongly",
}


@dataclass
class Mutant:
    """A bug: its name, family, kind, the entry of tests/cases that must detect it, and its installer."""

    name: str
    family: str
    kind: str
    entry: str
    install: Callable[[Patch], None]


class Detection(NamedTuple):
    """A detected mutant: the number of examples tried, the CPU seconds of the search, and the checker's report."""

    examples: int
    seconds: float
    report: str

    @property
    def rule(self) -> str:
        """The violated rule, as the report names it."""
        match = re.search(r"^rule: (.*)$", self.report, re.MULTILINE)
        return match[1] if match else ""


MUTANTS: list[Mutant] = []
# The number of edges to try before the one that detects a mutant. These searches are expensive, so they run last.
POSTPONED_EDGES = {
    "memory gradient from the first decoder layer only": 13,
    "memory gradient sent to the first encoder layer": 6,
    "gradient skips the final norm": 6,
    "dropout masks shared by equal shapes": 17,
    "attention_grad: dropout mask not applied (attention)": 26,
    "attention_grad: rotation not inverted (attention)": 6,
    "attention_grad: key rotation not inverted (attention)": 6,
    "attention_grad: only the first pair rotated back (attention)": 6,
    "attention_grad: dropout mask not applied (self_attention)": 17,
    "attention_grad: dropout mask not applied (cross_attention)": 26,
    "attention_grad: value gradient in float16 for float32 (self_attention)": 21,
    "attention_grad: value gradient in float16 for float32 (cross_attention)": 30,
    "cross_entropy: padding alone not treated as no tokens": 63,
    "cross_entropy: rows with probability above 0.99 skipped": 37,
    "cross_entropy: maximum not subtracted": 37,
    "max: values within 1e-3 count as tied": 46,
    "attention: scores clipped to 100": 13,
    "linear_cross_entropy: first panel's maximum used for all": 11,
}


def raw(name: str) -> Callable[..., Any]:
    """Return the correct operation on arrays."""
    return OPERATIONS[cases.REGISTRY_NAMES[name]].__wrapped__  # type: ignore[attr-defined]


def mutant(name: str, family: str, kind: str, entry: str) -> Callable[[Callable[[Patch], None]], None]:
    """Register the decorated function as the installer of a mutant."""
    return lambda install: MUTANTS.append(Mutant(name, family, kind, entry, install))


def operation(
    name: str, bug: str, family: str, function: Callable[..., Any], kind: str = "formula", stateful: bool = False
) -> None:
    """Register a mutant that replaces an operation; `function` takes arrays and returns the output and a vjp.

    A `stateful` mutant keeps data between calls: `function()` returns a new operation with empty state.
    """

    def install(patch: Patch) -> None:
        wrong = function() if stateful else function
        registered = cases.REGISTRY_NAMES[name]
        patch.setitem(OPERATIONS, registered, OPERATIONS[registered])  # so that undo() restores it
        wrong.__name__ = wrong.__qualname__ = name
        wrong.__module__ = OPERATIONS[registered].__module__
        differentiable(wrong)

    MUTANTS.append(Mutant(f"{name}: {bug}", family, kind, f"operation {name}", install))


def vjp(name: str, bug: str, family: str, change: Callable[..., Any], kind: str = "formula") -> None:
    """Register a mutant of an operation's gradient; change(correct vjp, g, y, *inputs) returns the wrong gradients."""
    correct_operation = raw(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        y, correct = correct_operation(*args, **kwargs)
        return y, lambda g: change(correct, g, y, *args, **kwargs)

    operation(name, bug, family, function, kind)


def kernel(name: str, bug: str, family: str, function: Callable[..., Any], entry: str, kind: str = "formula") -> None:
    """Register a mutant that replaces the kernel `npx.<name>` where operations call it."""
    mutant(f"{name}: {bug}", family, kind, entry)(lambda patch: patch.setattr(npx, name, function))


def fast(name: str, bug: str, change: Callable[..., Any], kind: str = "formula") -> None:
    """Register a mutant of all fast versions of a kernel or gradient; change(correct version, *args) is wrong."""
    versions = getattr(npx, name).versions

    @mutant(f"{name}: {bug}", "fast kernel", kind, f"kernel {name.removesuffix('_grad')}")
    def install(patch: Patch) -> None:
        for key, correct in list(versions.items()):
            patch.setitem(versions, key, lambda *args, correct=correct, **options: change(correct, *args, **options))


def layer(name: str, bug: str, forward: Callable[..., Any], kind: str = "formula") -> None:
    """Register a mutant that replaces a layer's forward."""
    target = cases.LAYERS[name]
    register = mutant(f"{name}: {bug}", "layer", kind, f"layer {name}")
    register(lambda patch: patch.setattr(target, "forward", forward))


# Building blocks of several mutants


@differentiable
def with_vjp(*inputs, output, vjp):
    """Return `output` as an operation on the inputs with the given vjp."""
    return output, vjp


def reroute_gradient(value, through):
    """Return the value of one Tensor whose gradient flows into another."""
    return through + (value - through).detach()


def scale_in_place(g, factor):
    """Overwrite g with g * factor and return it."""
    g *= factor
    return g


def scatter_overwriting(shape, index, g):
    """Scatter g to `index` without accumulation: if indices repeat, the last one wins."""
    gx = npx.zeros(shape, g.dtype)
    gx[index] = g
    return gx


def with_extra_array_saved(y, extra, grad):
    """Return output y with the gradient grad(g, y), whose closure also holds an unused array."""
    return y, lambda g: (grad(g, y) + 0 * extra.sum(),)


def rounded(x, dtype="float32"):
    """Round x to a narrower dtype and convert it back."""
    return x.astype(dtype).astype(x.dtype)


# The search


class Stop(BaseException):
    """Ends a search at its first failure; hypothesis would repeat an example that raises an Exception."""


def find(mutant: Mutant, number: int | None = None) -> Detection | None:
    """Search for a mutant under the `ci` profile; return None if no example detects it.

    Args:
        number: the seed of the random examples; None uses the examples of derandomized tests.
    """
    examples, failure = 0, ""
    profile = cases.case_settings(mutant.entry, settings.get_profile("ci"))

    @settings(profile, derandomize=number is None, phases=[Phase.generate])
    @given(data=st.data())
    def search(data):
        nonlocal examples, failure
        examples += 1
        try:
            cases.check(mutant.entry, data, POSTPONED_EDGES.get(mutant.name, 0))
        except AssertionError as error:
            failure = f"{type(error).__name__}: {error}"
            raise Stop from None

    start = time.process_time()
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        mutant.install(patch)
        patch.setattr(problem_check, "smallest", lambda problem, error, check: error)  # any inputs will do
        patch.setattr(GradientCheck, "find_entry", lambda check, direction: None)  # so will any entry
        try:
            (search if number is None else seed(number)(search))()
        except Stop:
            return Detection(examples, time.process_time() - start, failure)
    return None
