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


def expected_value(reference: Reference, values: Sequence[Any], options: dict[str, Any]) -> Array:
    """What the reference gives, on the host and in float64. TypeError where that is no array of numbers."""
    with no_grad():
        y = reference(*[x.copy() if hasattr(x, "copy") else x for x in values], **options)
    host = npx.to_host(npx.asarray(y.data if isinstance(y, Tensor) else y))
    if host.dtype.kind not in "biuf":
        raise TypeError(f"reference: expected it to return an array of numbers; got {type(y).__name__}")
    return host.astype("float64")


def compare_value(
    problem: Problem, reference: Reference, options: dict[str, Any], close: float, given: bool = False
) -> None:
    """CheckError (rule `value`) where the reference has a finite value and the operation another, or none.

    given: at the user's own inputs, which the reference has to be made for: what it raises comes through, and it has
    to give finite numbers, of the output's shape. Elsewhere it may refuse, or give what is not finite.
    """
    try:
        expected = expected_value(reference, problem.values, options)
    except REFUSALS:
        if given:
            raise
        return
    if not npx.isfinite(expected).all():
        if not given:
            return
        bad = expected[~npx.isfinite(expected)].reshape(-1)[0]
        raise ValueError(
            f"{problem.name}: expected finite numbers of the reference at the given inputs; got {bad}; try other inputs"
        )
    shape: tuple[int, ...] = expected.shape
    expected = expected.reshape(-1)
    try:
        output = forward(problem, shaped=True)
        yours: Array | None = output.reshape(-1)
        found = f"got {output.size} numbers" if output.size != expected.size else ""
        if given and output.shape != shape:
            found = f"got shape {output.shape} where the reference gives {shape}"
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
