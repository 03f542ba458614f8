"""What a planted mistake is, how it is planted, and how it is looked for.

Each `Mutant` is planted in an operation, a kernel, a layer or a model, and looked for with that entry's own case in
`tests/cases`, the one that test_registry_checks.py uses: nothing is made for a mutant.
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
    """A mistake: what is wrong, its family and kind, the entry of tests/cases that shows it, and how to plant it."""

    name: str
    family: str
    kind: str
    entry: str
    plant: Callable[[Patch], None]


class Found(NamedTuple):
    """How a mistake was found: `examples` until then, seconds of one core, what the kit says."""

    examples: int
    seconds: float
    report: str

    @property
    def rule(self) -> str:
        """The rule that was broken, as the report names it."""
        named = re.search(r"^rule: (.*)$", self.report, re.MULTILINE)
        return named[1] if named else ""


MUTANTS: list[Mutant] = []


def raw(name: str) -> Callable[..., Any]:
    """The right operation on arrays."""
    return OPERATIONS[cases.REGISTRY_NAMES[name]].__wrapped__  # type: ignore[attr-defined]


def mutant(name: str, family: str, kind: str, entry: str) -> Callable[[Callable[[Patch], None]], None]:
    """Enter the decorated function, which plants the mistake."""
    return lambda plant: MUTANTS.append(Mutant(name, family, kind, entry, plant))


def operation(
    name: str, mistake: str, family: str, function: Callable[..., Any], kind: str = "formula", fresh: bool = False
) -> None:
    """A mutant that replaces an operation; `function` takes arrays and returns the output and a vjp.

    `fresh`: `function` is called without arguments to make that one anew, for what it remembers.
    """

    def plant(patch: Patch) -> None:
        wrong = function() if fresh else function
        entered = cases.REGISTRY_NAMES[name]
        patch.setitem(OPERATIONS, entered, OPERATIONS[entered])  # restored afterwards
        wrong.__name__ = wrong.__qualname__ = name
        wrong.__module__ = OPERATIONS[entered].__module__
        differentiable(wrong)

    MUTANTS.append(Mutant(f"{name}: {mistake}", family, kind, f"operation {name}", plant))


def vjp(name: str, mistake: str, family: str, change: Callable[..., Any], kind: str = "formula") -> None:
    """A mutant of an operation's gradient alone; change(right vjp, g, y, *inputs) gives the wrong gradients."""
    right_one = raw(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        y, right = right_one(*args, **kwargs)
        return y, lambda g: change(right, g, y, *args, **kwargs)

    operation(name, mistake, family, function, kind)


def kernel(
    name: str, mistake: str, family: str, function: Callable[..., Any], entry: str, kind: str = "formula"
) -> None:
    """A mutant that replaces a kernel where the operations call it."""
    mutant(f"{name}: {mistake}", family, kind, entry)(lambda patch: patch.setattr(npx, name, function))


def fast(name: str, mistake: str, change: Callable[..., Any], kind: str = "formula") -> None:
    """A mutant of the fast versions of a kernel or a gradient; change(right version, *args) gives the wrong result."""
    versions = getattr(npx, name).versions

    @mutant(f"{name}: {mistake}", "fast kernel", kind, f"kernel {name.removesuffix('_grad')}")
    def plant(patch: Patch) -> None:
        for key, right in list(versions.items()):
            patch.setitem(versions, key, lambda *args, right=right, **kw: change(right, *args, **kw))


def layer(name: str, mistake: str, forward: Callable[..., Any], kind: str = "formula") -> None:
    """A mutant that replaces a layer's forward."""
    target = cases.LAYERS[name]
    plant = mutant(f"{name}: {mistake}", "layer", kind, f"layer {name}")
    plant(lambda patch: patch.setattr(target, "forward", forward))


# What several mistakes are made of


@differentiable
def forged(*inputs, output, vjp):
    """An output of some Tensors with any vjp."""
    return output, vjp


def routed(value, through):
    """The value of one Tensor with the history of another."""
    return through + (value - through).detach()


def corrupting(g, factor):
    """g times factor, written over g."""
    g *= factor
    return g


def overwritten(shape, index, g):
    """g put where `index` says, the last of several values at one place winning."""
    gx = npx.zeros(shape, g.dtype)
    gx[index] = g
    return gx


def saving_all(y, kept, grad):
    """Output y with the gradient grad(g, y), whose closure keeps an array more than it has to."""
    return y, lambda g: (grad(g, y) + 0 * kept.sum(),)


def rounded(x, dtype="float32"):
    """Through a narrower dtype and back."""
    return x.astype(dtype).astype(x.dtype)


# Looking for it


def find(mutant: Mutant, number: int | None = None) -> Found | None:
    """How the mistake is found with the `ci` profile, by its own examples or those of a seed; None if it is not."""
    examples = failed = 0
    profile = cases.case_settings(settings.get_profile("ci"))

    @settings(profile, derandomize=number is None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(data=st.data())
    def search(data):
        nonlocal examples, failed
        examples += 1
        try:
            cases.check(mutant.entry, data)
        except AssertionError:
            failed = failed or examples  # hypothesis runs the example once more
            raise

    start = time.process_time()
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        mutant.plant(patch)
        try:
            (search if number is None else seed(number)(search))()
        except AssertionError as error:
            return Found(failed, time.process_time() - start, f"{type(error).__name__}: {error}")
    return None
