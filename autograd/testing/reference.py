"""Compare the value of an operation with the user's reference, and recognize operations without an implementation.

Numerical derivatives show that a gradient is right for its function, but not that the function is the intended one. A
softmax over the wrong axis has a correct gradient, and a softmax that overflows has no derivative to compare with.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import npx
from autograd.engine import Tensor, no_grad
from autograd.testing.problem import Problem
from autograd.testing.report import REJECTIONS, GradientError, describe_error
from autograd.testing.reproduction import literal
from npx import Array

Reference = Callable[..., Any]  # takes the inputs as arrays, returns the output as an array (or Tensor)


def reference_value(reference: Reference, values: Sequence[Any]) -> Array:
    """Return the output of the reference on the host, in float64.

    Raises TypeError if the output is not an array of numbers.
    """
    with no_grad():
        y = reference(*[x.copy() if hasattr(x, "copy") else x for x in values])
    host = npx.to_host(npx.asarray(y.data if isinstance(y, Tensor) else y))
    if host.dtype.kind not in "biuf":
        raise TypeError(f"expected the reference to return an array of numbers; got {type(y).__name__}")
    return host.astype("float64")


def compare_value(problem: Problem, reference: Reference, tolerance: float, given: bool = False) -> None:
    """Raise CheckError if the operation fails, or returns a different value where the reference is finite.

    Args:
        given: whether these are the inputs that the user gave. If so, exceptions of the reference are propagated, and
            its output must be finite and have the shape of the operation's output. At derived inputs, the reference may
            raise an exception or return non-finite values.
    """
    try:
        expected = reference_value(reference, problem.values)
    except Exception:
        if given:
            raise
        return
    if not npx.isfinite(expected).all():
        if not given:
            return
        value = expected[~npx.isfinite(expected)].reshape(-1)[0]
        raise ValueError(
            f"{problem.name}: expected the reference to be finite at the given inputs; got {value}; try other inputs"
        )
    difference = value_difference(problem, expected, tolerance, given)
    if difference:
        arrays = zip(problem.labels, problem.arrays, strict=True)
        inputs = "\n".join(f"{label} = {literal(npx.to_host(a))}" for label, a in arrays)
        raise problem.failure("reference", f"expected the reference's value; {difference}\n{inputs}")


def value_difference(problem: Problem, expected: Array, tolerance: float, given: bool) -> str:
    """Describe how the output of a problem differs from that of the reference; return "" if it does not."""
    try:
        output = problem.output_value()
    except REJECTIONS as error:
        return f"got {describe_error(error)}"
    if given and output.shape != expected.shape:
        return f"got shape {output.shape} where the reference has {expected.shape}"
    if output.size != expected.size:
        return f"got {output.size} numbers where the reference has {expected.size}"
    output = output.reshape(-1)
    expected = expected.reshape(-1)
    errors = abs(output - expected)
    is_wrong = ~(errors <= tolerance * max(1e-3, float(abs(expected).max(initial=0.0))))
    if not is_wrong.any():
        return ""
    k = int(npx.argmax(npx.where(npx.isfinite(errors), errors, npx.inf) * is_wrong))
    return f"got {float(output[k])!r} where the reference has {float(expected[k])!r}, at flat index {k} of the output"


@contextmanager
def missing_bodies_reported(
    problem: Problem, operation: Any, inputs: Sequence[Any], options: dict[str, Any]
) -> Iterator[None]:
    """Raise CheckError with the rule `not implemented` for errors caused by an operation or vjp without a body."""
    try:
        yield
    except (TypeError, AttributeError, ValueError, GradientError) as error:
        missing = missing_part(operation, inputs, options)
        if missing is None:
            raise
        raise problem.failure("not implemented", missing, reproduce=False) from error


def missing_part(operation: Any, values: Sequence[Any], options: dict[str, Any]) -> str | None:
    """Describe where a function or its vjp returns None or `...` in place of arrays; return None if neither does."""

    blanks = {id(None): "None", id(...): "`...`"}

    function = getattr(operation, "__wrapped__", operation)
    try:
        result = function(*values, **options)
        if id(result) in blanks:
            return f"expected the operation to return its output and a vjp; got {blanks[id(result)]}"
        if not (isinstance(result, tuple) and len(result) == 2):
            return None
        output, vjp = result
        for part, value in (("output", output), ("vjp", vjp)):
            if id(value) in blanks:
                return f"expected the operation to return its output and a vjp; got {blanks[id(value)]} as its {part}"
        gradients = vjp(npx.ones_like(output))
    except Exception:
        return None
    if id(gradients) in blanks:
        return f"expected the vjp to return a tuple with a gradient for each input; got {blanks[id(gradients)]}"
    if isinstance(gradients, tuple) and any(x is ... for x in gradients):
        return "expected the vjp to return a gradient for each input; got `...` in place of one"
    return None
