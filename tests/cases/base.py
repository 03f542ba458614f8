"""What a case is, and how it is checked.

A case draws a `Call`; `check` hands it to the kit (autograd/testing), which knows what has to hold. The entries come
from the registries, so whatever is added to them without a case here is named by the tests. tests/mutants/ looks for
planted mistakes with the same cases.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

import models
from autograd import OPERATIONS, gradcheck
from autograd.testing import check_kernel, check_layer, check_operation
from autograd.testing import strategies as s
from npx.registry import KERNELS


def kinds_of(base):
    """Every class of models/ below `base`, by name, that has a forward."""
    for kind in base.__subclasses__():
        yield from kinds_of(kind)
        if kind.__module__.startswith("models.") and kind.forward is not models.Module.forward:
            yield kind.__name__, kind


LAYERS = dict(kinds_of(models.Module))
OURS = {  # name of a function -> name in the registry, of the operations of our packages
    function.__name__: name
    for name, function in OPERATIONS.items()
    if function.__module__.startswith(("autograd.", "models."))
}
NAMES = {"operation": OURS, "kernel": KERNELS, "layer": LAYERS, "expression": ("any",)}
ENTRIES = [f"{kind} {name}" for kind, names in NAMES.items() for name in names]
CASES: dict[str, st.SearchStrategy["Call"]] = {}
EXAMPLES = 2  # times those of the profile: 40 in ci, 1,000 in thorough


@dataclass
class Call:
    """What to call an entry with.

    `saved`: bytes that it may keep for backward beyond inputs and output; `gradient`: options of a kernel's gradient.
    """

    inputs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    saved: int = 0
    float32: bool = True
    layer: Any = None
    directions: int | None = None
    gradient: dict[str, Any] = field(default_factory=dict)


def thoroughly(profile: settings) -> settings:
    """The settings that entries are checked with under a profile."""
    return settings(profile, max_examples=EXAMPLES * profile.max_examples)


def check(entry: str, data: Any) -> None:
    """Draw a call of the entry and check it; AssertionError naming an entry that has no case."""
    assert entry in CASES, f"{entry} has no case in tests/cases"
    kind, name = entry.split()
    call = data.draw(CASES[entry], label=entry)
    if kind == "operation":
        rules = {"max_saved_bytes": call.saved, "float32": call.float32}
        check_operation(OPERATIONS[OURS[name]], *call.inputs, **rules, **call.options)
    elif kind == "kernel":
        check_kernel(KERNELS[name], *call.inputs, gradient=call.gradient, **call.options)
    elif kind == "layer":
        check_layer(call.layer, *call.inputs, directions=call.directions, **call.options)
    else:
        gradcheck(*call.inputs)


def case(function):
    """Enter the case `kind_name(draw)`, a function that draws a Call."""
    kind, name = function.__name__.split("_", 1)
    CASES[f"{kind} {name}"] = st.composite(function)()
    return function


def size(most=3, least=1):
    return s.sides(most, least)


def leading(draw):
    """0 to 2 leading axes, some of them perhaps empty."""
    return draw(s.shapes(max_dims=2, max_side=3))


CASES["expression any"] = s.expressions().map(lambda drawn: Call((drawn[0], *drawn[1])))
