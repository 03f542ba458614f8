"""What a case is, and how it is checked.

A case draws a `Call`; its edges are calls picked by hand: the ends of the domain, and what may go wrong at one value or
shape alone. `check` hands them to the kit (autograd/testing), which knows what has to hold. The entries come from the
registries, so whatever is added to them without a case and edges here is named by the tests. tests/mutants/ looks for
planted mistakes with the same cases.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

import models
import npx
from autograd import OPERATIONS, gradcheck
from autograd.testing import CheckError, check_kernel, check_layer, check_operation
from autograd.testing import strategies as s
from npx.dispatch import KERNELS


def kinds_of(base):
    """Every layer of models/ below `base`, by name, that has a forward."""
    for kind in base.__subclasses__():
        if kind is models.SequenceModel:  # of whole models: ARCHITECTURES
            continue
        yield from kinds_of(kind)
        if kind.__module__.startswith("models.") and kind.forward is not models.Module.forward:
            yield kind.__name__, kind


LAYERS = dict(kinds_of(models.Module))
OURS = {  # name of a function -> name in the registry, of the operations of our packages
    function.__name__: name
    for name, function in OPERATIONS.items()
    if function.__module__.startswith(("autograd.", "models."))
}
NAMES = {"operation": OURS, "kernel": KERNELS, "layer": LAYERS, "model": models.ARCHITECTURES, "expression": ("any",)}
ENTRIES = [f"{kind} {name}" for kind, names in NAMES.items() for name in names]
CASES: dict[str, st.SearchStrategy["Call"]] = {}
EDGES: dict[str, Callable[[], Iterable["Call"]]] = {}
REAL = -npx.inf, npx.inf  # the domain of what is defined everywhere, and finite
EXAMPLES = 2  # times those of the profile: 40 in ci, 1,000 in thorough


@dataclass
class Call:
    """What to call an entry with.

    `saved`: bytes that it may keep for backward beyond inputs and output; `float32`: whether it is near float64 there;
    `domain`: where it must be finite; `dtype`: the output's where it is not the inputs'; `gradient`: options of a
    kernel's gradient; `derive`: whether other edges than the first are varied; `modes` of a layer; `same`: functions of
    the inputs, by what they are, that must give the same value and the same gradient of every parameter.
    """

    inputs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    saved: int = 0
    float32: bool = True
    domain: Any = None
    dtype: Any = None
    layer: Any = None
    directions: int | None = None
    gradient: dict[str, Any] = field(default_factory=dict)
    derive: bool = False
    modes: tuple[str, ...] = ("train", "eval")
    same: dict[str, Callable[..., Any]] = field(default_factory=dict)


def thoroughly(profile: settings) -> settings:
    """The settings that entries are checked with under a profile."""
    return settings(profile, max_examples=EXAMPLES * profile.max_examples)


def check(entry: str, data: Any) -> None:
    """Check the edges of an entry, which is the simplest example there is and so the first; or else a drawn call.

    AssertionError naming an entry that has no case or no edges.
    """
    assert entry in CASES, f"{entry} has no case in tests/cases"
    assert entry in EDGES, f"{entry} has no edges in tests/cases"
    if data.draw(st.booleans(), label="drawn"):
        check_drawn(entry, data)
    else:
        check_edges(entry)


def check_edges(entry: str) -> None:
    """Check the hand-picked calls, at last the first: an ordinary one, from which others are derived."""
    first, *others = EDGES[entry]()
    for call in others:
        check_call(entry, call, derive=call.derive)
    check_call(entry, first, derive=True)


def check_drawn(entry: str, data: Any) -> None:
    """Check a drawn call."""
    check_call(entry, data.draw(CASES[entry], label=entry), derive=False)


def check_call(entry: str, call: Call, derive: bool) -> None:
    """Hand a call to the check of its kind."""
    kind, name = entry.split()
    rules = {"float32": call.float32, "derive": derive, "domain": call.domain}
    if kind == "operation":
        rules |= {"max_saved_bytes": call.saved, "directions": call.directions, "dtype": call.dtype}
        check_operation(OPERATIONS[OURS[name]], *call.inputs, **rules, **call.options)
    elif kind == "kernel":
        check_kernel(KERNELS[name], *call.inputs, gradient=call.gradient, derive=derive, **call.options)
    elif kind in ("layer", "model"):
        rules |= {"directions": call.directions, "modes": call.modes}
        check_same(entry, call)
        check_layer(call.layer, *call.inputs, **rules, **call.options)
    else:
        gradcheck(*call.inputs)


def check_same(entry: str, call: Call) -> None:
    """Hold a layer to the functions that are the `same`, to 10 digits."""

    def results(function: Callable[..., Any]) -> dict[str, Any]:
        for _, p in call.layer.named_parameters():
            p.grad = None
        with npx.keyed(0, 1):
            y = function(*call.inputs)
        y.backward(npx.random.normal(npx.Key(1, 0, 0), y.shape, y.dtype))
        named = call.layer.named_parameters()
        gradients = {f"gradient of {n}": npx.zeros_like(p.data) if p.grad is None else p.grad for n, p in named}
        return {"value": y.data} | gradients

    found = results(call.layer) if call.same else {}
    for what, function in call.same.items():
        for name, expected in results(function).items():
            off = float(abs(found[name] - expected).max())
            if not off <= 1e-10 * max(1.0, float(abs(expected).max())):
                rule = f"expected the {name} to be that of {what}; off by {off:.3g}"
                refused = CheckError(f"{entry}: {rule}\nrule: reference")
                refused.rule = "reference"
                raise refused


def case(function):
    """Enter the case `kind_name(draw)`, a function that draws a Call."""
    kind, name = function.__name__.split("_", 1)
    CASES[f"{kind} {name}"] = st.composite(function)()
    return function


def edges(entry, domain=None):
    """Enter the decorated generator of hand-picked calls of an entry, with a domain for those that declare none."""

    def enter(function):
        EDGES[entry] = lambda: (replace(call, domain=call.domain or domain) for call in function())
        return function

    return enter


def array(*numbers):
    """The numbers, or rows of them, in float64."""
    return npx.asarray(numbers, "float64")


def some(*shape, style="normal", seed=0):
    """Numbers of a style, always the same."""
    return npx.asarray(s.numbers(shape, style, seed))


def size(most=3, least=1):
    return s.sides(most, least)


def leading(draw):
    """0 to 2 leading axes, some of them perhaps empty."""
    return draw(s.shapes(max_dims=2, max_side=3))


@edges("expression any")
def expression_edges():
    """Each step on shared values; inputs of every shape that is drawn."""
    for name in (*s.UNARY, *s.BINARY):
        expression = s.Expression([(name, 0, 1), (name, 2, 0)], 2)
        yield Call((expression, 0.5 * some(2, 2), 0.5 * some(2, 2, seed=1)))
        yield Call((expression, 0.5 * some(1, 3), 0.5 * some(2, 1, seed=1)))


CASES["expression any"] = s.expressions().map(lambda drawn: Call((drawn[0], *drawn[1])))
