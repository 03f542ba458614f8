"""Tensors that want a gradient, and that nobody asked about: neither inputs nor parameters.

Such a one gets a gradient in every backward and is held to no slope here; in a layer no optimizer moves it either. A
parameter is lost like this where its module does not look for it, or where it is a plain Tensor.
"""

from collections.abc import Iterator
from typing import Any

from autograd.engine import Tensor
from autograd.testing.problem import nodes
from autograd.testing.rules import CheckError, Truth


def unasked(truth: Truth, layer: Any = None) -> list[Tensor]:
    """The leaves of one call's graph that are neither inputs nor parameters, of which a call may have made some."""
    output, leaves = truth.problem.run()
    made = [p for _, p in layer.named_parameters()] if layer else []
    known: set[int] = {id(t) for t in (*leaves, *made)}
    found: dict[int, Tensor] = {}
    for node in sorted(nodes(output), key=lambda node: node.number):
        found.update({id(t): t for t in node.parents if isinstance(t, Tensor) and id(t) not in known})
    return list(found.values())


def note_unasked(found: list[Tensor], notes: list[str]) -> None:
    """Options and closures may have such Tensors: their gradients are not looked at, which is said."""
    for t in found:
        note = f"not compared: the gradient of a Tensor {t.shape} that is no input; try handing it over as one"
        if note not in notes:
            notes.append(note)


def refuse_unasked(truth: Truth, layer: Any, options: dict[str, Any], notes: list[str]) -> None:
    """CheckError (rule `leaf`) where a layer has such a Tensor; one that it is given in another way is noted."""
    given = {id(value) for _, value in inside("", [truth.problem.values, options])}
    found = unasked(truth, layer)
    note_unasked([t for t in found if id(t) in given], notes)
    for t in found:
        if id(t) not in given:
            error = CheckError(
                f"{truth.problem.name}: expected every Tensor that wants a gradient to be an input or one of the "
                f"layer's named_parameters(); got {name_of(layer, t)} {t.shape}, which is neither; try a Parameter as "
                "an attribute of its own\nrule: leaf"
            )
            error.rule = "leaf"
            raise error


def inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value and what lists, tuples and dicts in it hold, each with how it is reached."""
    yield name, value
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from inside(f"{name}[{key!r}]", item)


def name_of(layer: Any, t: Tensor) -> str:
    """The attribute that holds a Tensor, as `weights['out']`."""
    for module in layer.modules() if hasattr(layer, "modules") else [layer]:
        for attribute, held in vars(module).items() if hasattr(module, "__dict__") else ():
            for name, value in inside(attribute, held):
                if value is t:
                    return f"{type(module).__name__}.{name}"
    return "a Tensor"
