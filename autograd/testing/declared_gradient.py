"""Gradients that intentionally differ from the derivative, declared with `expected_gradient=`.

For example, a straight-through estimator passes the gradient through a rounding operation, whose derivative is 0, and a
gradient reversal layer flips the sign of the gradient. The declared gradient replaces the numerical derivative; all
rules except linearity apply as usual.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import npx
from autograd.testing.arguments import Arguments
from autograd.testing.baseline import Baseline, close, difference
from autograd.testing.gradcheck import compare_gradients
from autograd.testing.problem import Problem, floating_point_warnings_ignored
from autograd.testing.report import CheckError, GradientError, NonFiniteError, Report
from npx import Array

NAMED: dict[str, Callable[..., Any]] = {
    "straight-through": lambda g, *inputs: g,
    "reversed": lambda g, *inputs: -g,
}


class DeclaredGradient:
    """A gradient that the user declares, to be expected in place of the derivative.

    Args:
        expected_gradient: a key of `NAMED`; a function that returns the gradients of the floating-point inputs, called
            as `expected_gradient(g, *inputs, **options)`, with the options that it accepts; or a sentence with the
            reason, to accept any gradient. Where the function returns None or fewer gradients, none is declared.
        arguments: the arguments of the checked call.
    """

    def __init__(self, expected_gradient: Any, arguments: Arguments | None = None) -> None:
        self.arguments = arguments or Arguments((), {})
        is_text = isinstance(expected_gradient, str)
        self.reference = NAMED.get(expected_gradient) if is_text else expected_gradient
        if not callable(self.reference) and not (is_text and " " in expected_gradient.strip()):
            raise ValueError(
                f"expected {', '.join(map(repr, NAMED))}, a function of g and the inputs, or a sentence for the option "
                f"`expected_gradient`; got {expected_gradient!r}"
            )
        name = getattr(expected_gradient, "__name__", "a function")
        self.reason = expected_gradient if is_text else f"{name}(g, *inputs)"

    def compare(self, problem: Problem, seed: int) -> tuple[Baseline, Problem]:
        """Compare the gradient with the declared one for several incoming gradients.

        Returns the first results, and the problem with all inputs that have a declared gradient as constants.
        """
        arrays = [npx.to_host(a).copy() for a in problem.arrays]
        problem = problem.with_arrays(arrays)
        y = npx.to_host(problem.output_and_leaves([npx.from_host(a.copy()) for a in arrays])[0].data).copy()
        if not npx.isfinite(y).all():
            raise NonFiniteError(f"{problem.name}: expected finite outputs; got NaN or infinity; try other inputs")
        c = npx.to_host(npx.random.normal(npx.Key(seed, 0, 0), y.shape, y.dtype))
        results = []
        for g in (c, 1e3 * c, -1e-3 * c, npx.host.ones_like(c), 0 * c) if self.reference else (c,):
            g = npx.host.asarray(g, dtype=y.dtype)
            output, leaves = problem.output_and_leaves([npx.from_host(a.copy()) for a in arrays])
            results.append(problem.gradients(output, leaves, g))
            if self.reference:
                declared = self.gradients(g, problem.values)
                self.require(problem, g, declared, results[-1])
        indices = problem.float_indices
        if self.reference:
            indices = [i for i, gx in zip(indices, declared, strict=False) if gx is not None]
        rest = replace(problem, constant_indices=(*problem.constant_indices, *indices))
        return Baseline(problem, y, c, results[0]), rest

    def gradients(self, g: Array, values: list[Any]) -> Sequence[Any]:
        """Return the declared gradients for the incoming gradient g."""
        assert self.reference is not None
        inputs, options = self.arguments.unflatten(values)
        try:
            parameters = [*signature(self.reference).parameters.values()]
        except (TypeError, ValueError):  # the function has no signature
            parameters = []
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            names = {p.name for p in parameters}
            options = {name: x for name, x in options.items() if name in names}
        with floating_point_warnings_ignored():
            declared = self.reference(g.copy(), *inputs, **options)
        return declared if isinstance(declared, (tuple, list)) else [declared]

    def require(self, problem: Problem, g: Array, declared: Sequence[Any], gradients: list[Array]) -> None:
        """Raise GradientError unless the gradients are the declared ones."""
        if len(declared) > len(gradients):
            raise ValueError(
                f"expected_gradient: expected one for each of {len(gradients)} inputs; got {len(declared)}"
            )
        for label, expected, gx in zip(problem.labels, declared, gradients, strict=False):
            if expected is None:
                continue
            expected = npx.host.asarray(expected)
            if not close(expected, gx, 1e-6, float(abs(g).max(initial=0.0)) * 1e-6):
                text = f"expected the declared gradient ({self.reason}) of {label}; {difference(expected, gx)}"
                raise problem.failure("expected gradient", text, GradientError)

    def describe_difference(self, problem: Problem, seed: int) -> str:
        """Describe how the gradient differs from the derivative, as a note for the report."""
        try:
            compare_gradients(problem, Report(), seed=seed)
        except GradientError as error:
            lines = str(error).removeprefix(f"{problem.name}: ").splitlines()
            numbers = " ".join(" ".join(line.split()) for line in lines[1:3])
            return f"intentionally wrong ({self.reason}): {lines[0].rstrip(':')}: {numbers}"
        except CheckError:
            return f"intentionally wrong ({self.reason})"
        return f"the gradient equals the derivative: expected_gradient={self.reason!r} is not needed at these inputs"


def suggest_declaration(problem: Problem, seed: int) -> str:
    """Return source for the option `expected_gradient`, or "" if the gradient does not look intended."""
    try:
        output, leaves = problem.output_and_leaves([npx.from_host(npx.to_host(a).copy()) for a in problem.arrays])
        c = npx.to_host(npx.random.normal(npx.Key(seed, 0, 0), output.shape, output.dtype))
        gx = problem.gradients(output, leaves, c)[0]
    except (RuntimeError, ValueError, AssertionError):
        return ""
    is_used = gx != 0
    if gx.shape != c.shape or is_used.sum() < 2:  # with a single entry, every gradient is a multiple of g
        return ""
    if npx.array_equal(gx[is_used], c[is_used]):
        return (
            'expected_gradient="straight-through"'
            if is_used.all()
            else 'expected_gradient="straight-through where it is not 0"'
        )
    return 'expected_gradient="reversed"' if npx.array_equal(gx, -c) else ""


def with_hint(error: GradientError, problem: Problem, seed: int) -> GradientError:
    """If the gradient of the first input looks intended, add a line to the error that says how to declare it."""
    is_first = f"gradient of {problem.labels[0]}, " in str(error)
    declaration = suggest_declaration(problem, seed) if is_first else ""
    if declaration:
        before, separator, after = str(error).partition("\nreproduce: ")
        error.args = (f"{before}\nif it is intended: {declaration}{separator}{after}",)
    return error
