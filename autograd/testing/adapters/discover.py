"""Find the custom gradients of a module, and choose the adapter for an object."""

import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from autograd.engine import OPERATIONS
from autograd.testing.adapters.base import ForeignOperation
from autograd.testing.adapters.guess import accepts, guess_inputs
from autograd.testing.adapters.jax import from_jax
from autograd.testing.adapters.pair import from_pair
from autograd.testing.adapters.torch import from_torch
from autograd.testing.checks import check_layer, check_operation
from autograd.testing.report import Report

# The names of a forward function and its backward function, with `{}` for their common part.
PAIRS = (("{}_forward", "{}_backward"), ("forward_{}", "backward_{}"), ("{}", "{}_backward"), ("{}", "{}_grad"))


class CustomGradient(NamedTuple):
    """A custom gradient: its name, its kind (shown in tables), and the operation or layer to check."""

    name: str
    kind: str
    operation: Any

    def check(self, *inputs: Any, seed: int = 0, **options: Any) -> Report:
        """Check the gradient with `check_layer` or `check_operation`, at guessed inputs if none are given."""
        check = check_layer if hasattr(self.operation, "named_parameters") else check_operation
        return check(self.operation, *(inputs or guess_inputs(self.operation, seed)), seed=seed, **options)


def check_gradient(subject: Any, *inputs: Any, **options: Any) -> Report:
    """Check a custom gradient of any framework.

    Args:
        subject: a forward function, with its backward function as the next argument; a `torch.autograd.Function`, a
            `torch.nn.Module`, a function with JAX's custom_vjp, an operation on Tensors, a layer, or any function on
            arrays of a framework that has been imported.
        inputs: arrays and other arguments. Default: arrays of common shapes that the function accepts.
        options: passed on to `check_operation` or `check_layer`.
    """
    backward = None
    if inputs and callable(inputs[0]) and not hasattr(inputs[0], "dtype"):
        backward, *inputs = inputs  # type: ignore[assignment]
    gradient = adapt(subject, backward) or adapt_by_trial(subject, inputs)
    if gradient is None:
        name = getattr(subject, "__name__", type(subject).__name__)
        raise TypeError(
            f"check_gradient: expected a function with a gradient; got {name}; try its backward function as the second "
            "argument, or from_torch or from_jax"
        )
    return gradient.check(*inputs, **options)


def find_imported(framework: str) -> Any:
    """Return a framework if it has been imported, else None."""
    return sys.modules.get(framework)


def adapt(subject: Any, backward: Any = None) -> CustomGradient | None:
    """Wrap an object as an operation or layer if its type shows how to check it; return None for plain functions.

    Args:
        backward: the backward function of a pair.
    """
    name = getattr(subject, "__name__", type(subject).__name__)
    torch, jax = find_imported("torch"), find_imported("jax")
    if backward is not None:
        return CustomGradient(name, "pair", from_pair(subject, backward))
    if isinstance(subject, ForeignOperation):
        return CustomGradient(name, subject.adapter.removeprefix("from_"), subject)
    if any(subject is operation for operation in OPERATIONS.values()) or hasattr(subject, "named_parameters"):
        if torch is None or not isinstance(subject, torch.nn.Module):
            return CustomGradient(name, "Tensor", subject)
    if torch is not None:
        function = getattr(torch.autograd, "Function", ())
        owner = getattr(subject, "__self__", subject)
        if isinstance(owner, type) and issubclass(owner, function):
            return CustomGradient(owner.__name__, "torch", from_torch(owner.apply))  # type: ignore[attr-defined]
        if isinstance(subject, torch.nn.Module):
            return CustomGradient(name, "torch", from_torch(subject))
    if jax is not None and isinstance(subject, (jax.custom_vjp, jax.custom_jvp)):
        return CustomGradient(name, "jax", from_jax(subject))
    return None


def adapt_by_trial(function: Any, inputs: Sequence[Any] = ()) -> CustomGradient | None:
    """Wrap a plain function in the adapter of the first imported framework whose arrays it accepts."""
    if not callable(function) or isinstance(function, type):
        return None
    name = getattr(function, "__name__", type(function).__name__)
    for framework, adapter in (("Tensor", None), ("torch", from_torch), ("jax", from_jax)):
        if adapter is None or find_imported(framework):
            operation = adapter(function) if adapter else function
            try:
                if not inputs:
                    guess_inputs(operation)
                elif not accepts(operation, [*inputs]):
                    continue
                return CustomGradient(name, framework, operation)
            except ValueError:
                continue
    return None


def custom_gradients(module: ModuleType) -> Iterator[CustomGradient]:
    """Yield the custom gradients that a module defines, in the order of their definition.

    These are subclasses of `torch.autograd.Function`, functions with a custom_vjp or custom_jvp of JAX, pairs of
    functions whose names match `PAIRS`, and operations on Tensors.
    """
    members = ((name, value) for name, value in vars(module).items() if callable(value))
    names = {name: value for name, value in members if getattr(value, "__module__", None) == module.__name__}
    for name, value in names.items():
        backward = matching_backward(name, names)
        if name.startswith("_") and backward is None:
            continue
        gradient = adapt(value, backward)
        if gradient is not None:
            yield gradient._replace(name=name)


def matching_backward(name: str, names: dict[str, Any]) -> Any:
    """Return the backward function whose name matches that of a forward function, or None."""
    if not is_plain(names[name]):
        return None
    for forward, backward in PAIRS:
        before, after = forward.split("{}")
        stem = name[len(before) : len(name) - len(after)]
        if stem and name == forward.format(stem) and is_plain(names.get(backward.format(stem))):
            return names[backward.format(stem)]
    return None


def is_plain(value: Any) -> bool:
    """Return whether a value is a plain Python function."""
    return hasattr(value, "__code__")
