"""Value first: an operation held to a reference that its user gives; and a blank, recognised before anything is drawn.

Slopes say that a gradient belongs to the function that is there, not that it is the right function. A softmax over the
wrong axis has a right gradient; one that overflows has no value where its user wants one, and no slope to be wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import npx
from autograd.engine import Tensor, no_grad
from autograd.testing.problem import REFUSALS, GradientError, Problem, forward
from autograd.testing.rules import CheckError
from autograd.testing.writing import literal
from npx import Array

Reference = Callable[..., Any]  # of the inputs as arrays, to the output as an array (or Tensor)


def expected_value(reference: Reference, values: Sequence[Any], options: dict[str, Any]) -> Array | None:
    """What the reference gives, flat and on the host; None where it refuses, or is not finite."""
    try:
        with no_grad():
            y = reference(*[x.copy() if hasattr(x, "copy") else x for x in values], **options)
    except REFUSALS:
        return None
    y = npx.to_host(npx.asarray(y.data if isinstance(y, Tensor) else y)).astype("float64").reshape(-1)
    return y if npx.isfinite(y).all() else None


def compare_value(problem: Problem, reference: Reference, options: dict[str, Any], close: float) -> None:
    """CheckError (rule `value`) where the reference has a finite value and the operation another, or none."""
    expected = expected_value(reference, problem.values, options)
    if expected is None:
        return
    try:
        yours: Array | None = forward(problem)
        found = f"got {yours.size} numbers" if yours is not None and yours.size != expected.size else ""
    except REFUSALS as error:
        yours, found = None, f"got {type(error).__name__}: {error}"
    if yours is not None and not found:
        off = abs(yours - expected)
        wrong = ~(off <= close * max(1e-3, float(abs(expected).max(initial=0.0))))
        if not wrong.any():
            return
        k = int(npx.argmax(npx.where(npx.isfinite(off), off, npx.inf) * wrong))
        found = f"got {float(yours[k])!r} where the reference gives {float(expected[k])!r}, output number {k}"
    shown = zip(problem.labels, problem.arrays, strict=True)
    inputs = "\n".join(f"{label} = {literal(npx.to_host(a))}" for label, a in shown)
    refused = CheckError(
        f"{problem.name}: expected the reference's value; {found or 'got another'}\n{inputs}\nrule: value\n"
        f"reproduce: {problem.reproduce(problem)}"
    )
    refused.rule = "value"
    raise refused


@contextmanager
def blanks_recognised(problem: Problem, operation: Any, options: dict[str, Any]) -> Iterator[None]:
    """CheckError (rule `blank`) in the place of what an operation, or vjp, that is not written yet leads to."""
    try:
        yield
    except (TypeError, AttributeError, ValueError, GradientError) as error:
        blank = what_is_blank(operation, problem.values, options)
        if blank is None:
            raise
        refused = CheckError(f"{problem.name}: not written yet: {blank}\nrule: blank")
        refused.rule = "blank"
        raise refused from error


def what_is_blank(operation: Any, values: Sequence[Any], options: dict[str, Any]) -> str | None:
    """Where a function, or its vjp, gives None or `...` in place of arrays; None where it does not."""

    def blank(x: Any) -> bool:
        return x is None or x is ...

    function = getattr(operation, "__wrapped__", operation)
    try:
        result = function(*values, **options)
        if blank(result):
            return f"it returns {'None' if result is None else '...'}; try returning the output and its vjp"
        if not (isinstance(result, tuple) and len(result) == 2):
            return None
        output, vjp = result
        if blank(output) or blank(vjp):
            return f"its {'output' if blank(output) else 'vjp'} is None or `...`"
        gradients = vjp(npx.ones_like(output))
    except Exception:
        return None
    if blank(gradients):
        return f"its vjp returns {'None' if gradients is None else '...'}; try a tuple with a gradient for each input"
    if isinstance(gradients, tuple) and any(x is ... for x in gradients):
        return "its vjp returns `...` in the place of a gradient"
    return None
