"""Cases: calls to registered entries, drawn or picked by hand, and how they are checked.

A case draws a `Call`. The edges of an entry are calls picked by hand: the ends of the domain, and the values and shapes
that expose special bugs. `check` passes them to autograd.testing. The entries come from the registries, so that a test
fails for an entry without a case or edges. tests/mutants/ searches for planted bugs with the same cases.
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
from autograd.testing.report import explain
from npx.dispatch import KERNELS
from tests.helpers.expressions import BINARY, UNARY, Expression, expressions


def layer_classes(base):
    """Yield (name, class) of every subclass of `base` in models/ that defines forward."""
    for subclass in base.__subclasses__():
        if subclass is models.SequenceModel:  # complete models are in ARCHITECTURES
            continue
        yield from layer_classes(subclass)
        if subclass.__module__.startswith("models.") and subclass.forward is not models.Module.forward:
            yield subclass.__name__, subclass


LAYERS = dict(layer_classes(models.Module))
REGISTRY_NAMES = {  # function name -> name in the registry, for the operations of these packages
    function.__name__: name
    for name, function in OPERATIONS.items()
    if function.__module__.startswith(("autograd.", "models."))
}
NAMES = {
    "operation": REGISTRY_NAMES,
    "kernel": KERNELS,
    "layer": LAYERS,
    "model": models.ARCHITECTURES,
    "expression": ("any",),
}
ENTRIES = [f"{kind} {name}" for kind, names in NAMES.items() for name in names]
CASES: dict[str, st.SearchStrategy["Call"]] = {}
EDGES: dict[str, Callable[[], Iterable["Call"]]] = {}
UNDERIVED: set[str] = set()  # entries whose edges are checked without deriving further inputs
REAL = -npx.inf, npx.inf  # the domain of functions that are finite everywhere
# Multiples of the profile's number of examples, which is 20 in ci. They are small because the edges alone detect every
# mutant, and `python -m tests.soak` tries new examples. Layers and models cost 20 times as much to check.
EXAMPLES = {"operation": 0.5, "kernel": 0.5, "expression": 1, "layer": 0.1, "model": 0.1}


@dataclass
class Call:
    """The arguments of an entry, and how to check the call.

    Attributes:
        inputs, options: positional and keyword arguments.
        saved: the bytes that may be saved for backward beyond inputs and output.
        compare_float32, domain, output_dtype, n_directions, modes: as for `check_operation` and `check_layer`.
        layer: the layer to call.
        gradient_options: options of a kernel's gradient.
        vary_inputs: whether to derive inputs from this edge; they are always derived from the first edge.
        equivalents: functions of the inputs, by name, with the same value and the same gradient of every parameter.
    """

    inputs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    saved: int = 0
    compare_float32: bool = True
    domain: Any = None
    output_dtype: Any = None
    layer: Any = None
    n_directions: int | None = None
    gradient_options: dict[str, Any] = field(default_factory=dict)
    vary_inputs: bool = False
    modes: tuple[str, ...] = ("train", "eval")
    equivalents: dict[str, Callable[..., Any]] = field(default_factory=dict)


def case_settings(entry: str, profile: settings) -> settings:
    """Return the settings for checking an entry under a profile."""
    return settings(profile, max_examples=max(1, round(EXAMPLES[entry.split()[0]] * profile.max_examples)))


def check_registration(entry: str) -> None:
    """Raise AssertionError that names the entry unless it has a case and edges."""
    assert entry in CASES, f"{entry} has no case in tests/cases/"
    assert entry in EDGES, f"{entry} has no edges in tests/cases/"


def check(entry: str, data: Any, start: int = 0) -> None:
    """Check the edges of an entry, or a drawn call; hypothesis tries the edges first, as the simplest example.

    Args:
        start: as for `check_edges`.
    """
    check_registration(entry)
    if data.draw(st.booleans(), label="drawn"):
        check_drawn(entry, data)
    else:
        check_edges(entry, start)


def check_edges(entry: str, start: int = 0) -> None:
    """Check the hand-picked calls; the first one, from which others may be derived, is checked last.

    Args:
        start: the number of calls to postpone until after the others.
    """
    first, *others = EDGES[entry]()
    calls = [(call, call.vary_inputs) for call in others] + [(first, entry not in UNDERIVED)]
    for call, vary_inputs in calls[start:] + calls[:start]:
        check_call(entry, call, vary_inputs=vary_inputs)


def check_drawn(entry: str, data: Any) -> None:
    """Check a drawn call."""
    check_call(entry, data.draw(CASES[entry], label=entry), vary_inputs=False)


def check_call(entry: str, call: Call, vary_inputs: bool) -> None:
    """Check a call with the checker's function for this kind of entry."""
    kind, name = entry.split()
    rules = {"compare_float32": call.compare_float32, "vary_inputs": vary_inputs, "domain": call.domain}
    if kind == "operation":
        rules |= {"max_saved_bytes": call.saved, "n_directions": call.n_directions, "output_dtype": call.output_dtype}
        check_operation(OPERATIONS[REGISTRY_NAMES[name]], *call.inputs, **rules, **call.options)
    elif kind == "kernel":
        check_kernel(
            KERNELS[name], *call.inputs, gradient_options=call.gradient_options, thorough=vary_inputs, **call.options
        )
    elif kind in ("layer", "model"):
        rules |= {"n_directions": call.n_directions, "modes": call.modes}
        check_equivalents(entry, call)
        check_layer(call.layer, *call.inputs, **rules, **call.options)
    else:
        gradcheck(*call.inputs)


def check_equivalents(entry: str, call: Call) -> None:
    """Compare a layer with its equivalents, to 10 digits."""

    def results(function: Callable[..., Any]) -> dict[str, Any]:
        for _, p in call.layer.named_parameters():
            p.grad = None
        with npx.keyed(0, 1):
            y = function(*call.inputs)
        y.backward(npx.random.normal(npx.Key(1, 0, 0), y.shape, y.dtype))
        named = call.layer.named_parameters()
        gradients = {f"gradient of {n}": npx.zeros_like(p.data) if p.grad is None else p.grad for n, p in named}
        return {"value": y.data} | gradients

    actual = results(call.layer) if call.equivalents else {}
    for description, function in call.equivalents.items():
        for name, expected in results(function).items():
            difference = float(abs(actual[name] - expected).max())
            if not difference <= 1e-10 * max(1.0, float(abs(expected).max())):
                text = f"{entry}: expected the {name} to equal that of {description}; it differs by {difference:.3g}"
                error = CheckError(explain(text, "reference"))
                error.rule = "reference"
                raise error


def case(function):
    """Register the case `kind_name(draw)`, a function that draws a Call."""
    kind, name = function.__name__.split("_", 1)
    CASES[f"{kind} {name}"] = st.composite(function)()
    return function


def edges(entry, domain=None, vary_inputs=True):
    """Register a generator of hand-picked calls to an entry.

    Args:
        domain: the domain of the calls that do not declare one.
        vary_inputs: whether other inputs are derived from the first call; False for a layer composed of operations that
            have such checks.
    """

    def register(function):
        if not vary_inputs:
            UNDERIVED.add(entry)
        EDGES[entry] = lambda: (replace(call, domain=call.domain or domain) for call in function())
        return function

    return register


def array(*numbers):
    """Return a float64 array of the given numbers or rows."""
    return npx.asarray(numbers, "float64")


def sample(*shape, style="normal", seed=0):
    """Return numbers of a style of `strategies.numbers`, the same for every call."""
    return npx.asarray(s.numbers(shape, style, seed))


def packing(*lengths):
    """Return the packing of sentences with these lengths, on the current device."""
    return npx.Packing.from_lengths(lengths).to_device()


def size(max_side=3, min_side=1):
    """Draw the length of an axis."""
    return s.sides(max_side, min_side)


def leading(draw):
    """Draw 0 to 2 leading axes, possibly empty."""
    return draw(s.shapes(max_dims=2, max_side=3))


@edges("expression any")
def expression_edges():
    """Yield every step on shared values, with inputs of all shapes that `expressions` draws."""
    for name in (*UNARY, *BINARY):
        expression = Expression([(name, 0, 1), (name, 2, 0)], 2)
        yield Call((expression, 0.5 * sample(2, 2), 0.5 * sample(2, 2, seed=1)))
        yield Call((expression, 0.5 * sample(1, 3), 0.5 * sample(2, 1, seed=1)))


CASES["expression any"] = expressions().map(lambda drawn: Call((drawn[0], *drawn[1])))
