"""`Expected`: the output and gradients that every other evaluation of a problem is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import npx
from autograd.testing.problem import Problem, quiet
from npx import Array


@dataclass
class Expected:
    """A problem, an incoming gradient c, and the output and gradients for it, on the host."""

    problem: Problem
    y: Array
    c: Array
    gradients: list[Array]

    @classmethod
    def evaluate(cls, problem: Problem, c: Array) -> "Expected":
        """Evaluate a problem on protected arrays."""
        y, gradients = problem.evaluate(c)
        return cls(problem, y, c, gradients)

    @property
    def norm(self) -> float:
        """The norm of output * c, the size that numerical derivatives are compared with."""
        with quiet():
            return float(npx.host.linalg.norm((self.y.astype("float64") * self.c.astype("float64")).reshape(-1)))

    def equals(self, other: "Expected") -> bool:
        """Return whether outputs and gradients are bitwise equal, as for a layer that ignores its mode."""
        pairs = zip([self.y, *self.gradients], [other.y, *other.gradients], strict=True)
        return all(npx.array_equal(a, b, equal_nan=True) for a, b in pairs)

    def compare(
        self,
        rule: str,
        condition: str,
        y: Array | None,
        gradients: Sequence[Array | None],
        factor: float = 1.0,
        tolerance: float = 1e-9,
    ) -> None:
        """Raise CheckError unless an output and gradients are the expected ones; None is not compared.

        condition: how they were computed, for the message. factor: multiplies the expected gradients.
        """
        dtypes = {self.y.dtype.name, *(g.dtype.name for g in self.gradients)}
        tolerance *= 1 if dtypes == {"float64"} else 1e6
        if y is not None and not close(self.y, y, tolerance, 1e-3):
            raise self.problem.failure(
                rule, f"expected the same output {condition}; it differs by {distance(self.y, y):.3g}"
            )
        # Terms as large as c may cancel and leave their rounding errors.
        terms = abs(factor) * float(abs(self.c).max(initial=0.0))
        for label, right, g in zip(self.problem.labels, self.gradients, gradients, strict=True):
            if g is not None and not close(factor * right, g, tolerance, terms):
                off = distance(factor * right, g)
                raise self.problem.failure(
                    rule, f"expected the same gradient of {label} {condition}; it differs by {off:.3g}"
                )


def close(a: Array, b: Array, tolerance: float, scale: float = 0.0) -> bool:
    """Return whether b equals a, relative to the largest finite magnitude of a, at least `scale`.

    Non-finite values have to be the same.
    """
    if a.shape != b.shape:
        return False
    finite = npx.isfinite(a)
    size = float(abs(a[finite]).max(initial=scale))
    identical = (a == b) | ((a != a) & (b != b))
    with quiet():
        return bool((npx.where(finite, abs(a - b) <= tolerance * size, identical)).all())


def distance(a: Array, b: Array) -> float:
    """Return the largest difference; infinity for NaN or another shape."""
    if a.shape != b.shape or not a.size:
        return npx.inf
    with quiet():
        off = abs(a.astype("float64") - b)
    return float(npx.where(off == off, off, npx.inf).max())
