"""Tensors that require gradients but are neither inputs nor parameters of a checked function.

Such a Tensor gets a gradient in every backward pass, but no check compares this gradient and no optimizer updates the
Tensor. A parameter is such a Tensor if its module does not find it, or if it is a plain Tensor instead of a Parameter.
"""

from collections.abc import Iterator
from typing import Any

from autograd.engine import Tensor
from autograd.testing.implicit_state import modules_of
from autograd.testing.problem import Problem, nodes


def stray_tensors(problem: Problem, layer: Any = None) -> list[Tensor]:
    """Return the leaves of one call's graph that are neither inputs nor parameters.

    Parameters that the layer creates during the call are not returned either.
    """
    output, leaves = problem.output_and_leaves()
    parameters = [p for _, p in layer.named_parameters()] if layer else []
    checked = {id(t) for t in (*leaves, *parameters)}
    strays: dict[int, Tensor] = {}
    for node in nodes(output):
        strays.update({id(t): t for t in node.parents if isinstance(t, Tensor) and id(t) not in checked})
    return list(strays.values())


def note_unchecked_tensors(strays: list[Tensor], notes: list[str]) -> None:
    """Record that the gradients of Tensors in options and closures are not compared."""
    for t in strays:
        note = f"not compared: the gradient of a Tensor {t.shape} that is not an input; try passing it as an input"
        if note not in notes:
            notes.append(note)


def require_registered(problem: Problem, layer: Any, options: dict[str, Any], notes: list[str]) -> None:
    """Raise CheckError if a layer holds an unregistered Tensor; record those that its inputs and options contain."""
    passed = {id(value) for _, value in nested("", [problem.values, options])}
    strays = stray_tensors(problem, layer)
    note_unchecked_tensors([t for t in strays if id(t) in passed], notes)
    for t in strays:
        if id(t) not in passed:
            text = (
                f"expected every Tensor that requires a gradient to be an input or one of the layer's "
                f"named_parameters(); got {attribute_path(layer, t)} {t.shape}, which is neither; "
                "try making it a Parameter in a separate attribute"
            )
            raise problem.failure("registered parameters", text, reproduce=False)


def nested(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value and everything in its lists, tuples and dicts, each with its path."""
    yield path, value
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from nested(f"{path}[{key!r}]", item)


def attribute_path(layer: Any, t: Tensor) -> str:
    """Return the attribute that holds a Tensor, such as `Linear.weights['out']`."""
    for module in modules_of(layer):
        for attribute, content in vars(module).items():
            for path, value in nested(attribute, content):
                if value is t:
                    return f"{type(module).__name__}.{path}"
    return "a Tensor"
