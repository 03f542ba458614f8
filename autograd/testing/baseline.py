"""`Baseline`: the output and gradients that every other evaluation of a problem is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import npx
from autograd.testing.problem import Problem, floating_point_warnings_ignored
from npx import Array


@dataclass
class Baseline:
    """The output and the gradients of a problem for an incoming gradient c, as host arrays."""

    problem: Problem
    y: Array
    c: Array
    gradients: list[Array]

    @classmethod
    def evaluate(cls, problem: Problem, c: Array) -> "Baseline":
        """Evaluate a problem on write-protected arrays."""
        y, gradients = problem.output_and_gradients(c)
        return cls(problem, y, c, gradients)

    @property
    def norm(self) -> float:
        """The norm of output * c, which sets the scale of numerical derivatives."""
        with floating_point_warnings_ignored():
            return float(npx.host.linalg.norm((self.y.astype("float64") * self.c.astype("float64")).reshape(-1)))

    def digest(self) -> bytes:
        """Return a hash of the output and the gradients."""
        digest = sha256()
        for x in (self.y, *self.gradients):
            digest.update(f"{x.shape} {x.dtype}".encode())
            digest.update(npx.host.ascontiguousarray(x).data)
        return digest.digest()

    def compare(
        self,
        rule: str,
        condition: str,
        y: Array | None,
        gradients: Sequence[Array | None],
        factor: float = 1.0,
        tolerance: float = 1e-9,
        cause: str = "",
    ) -> None:
        """Raise CheckError unless an output and gradients match the expected ones. Results that are None are skipped.

        Args:
            condition: how the results were computed, for the message.
            factor: multiplies the expected gradients.
            cause: the likely cause of a difference, if it is not the one that the rule names.
        """
        dtypes = {self.y.dtype.name, *(g.dtype.name for g in self.gradients)}
        tolerance *= 1 if dtypes == {"float64"} else 1e6
        if y is not None and not close(self.y, y, tolerance, 1e-3):
            text = f"expected the same output {condition}; {difference(self.y, y)}"
            raise self.problem.failure(rule, text, cause=cause)
        # Terms as large as c may cancel and leave their rounding errors.
        term_size = abs(factor) * float(abs(self.c).max(initial=0.0))
        for label, expected, g in zip(self.problem.labels, self.gradients, gradients, strict=True):
            if g is not None and not close(factor * expected, g, tolerance, term_size):
                gradient = f"the gradient of {label} to be {factor:g} times as large"
                if factor == 1:
                    gradient = f"the same gradient of {label}"
                text = f"expected {gradient} {condition}; {difference(factor * expected, g)}"
                raise self.problem.failure(rule, text, cause=cause)


def close(a: Array, b: Array, tolerance: float, scale: float = 0.0) -> bool:
    """Return whether b equals a within `tolerance` times the largest finite magnitude of a.

    Non-finite values must be the same in both.

    Args:
        scale: replaces the largest magnitude of a if that is smaller.
    """
    if a.shape != b.shape:
        return False
    finite = npx.isfinite(a)
    size = float(abs(a[finite]).max(initial=scale))
    is_identical = (a == b) | ((a != a) & (b != b))
    with floating_point_warnings_ignored():
        return bool((npx.where(finite, abs(a - b) <= tolerance * size, is_identical)).all())


def difference(expected: Array, actual: Array) -> str:
    """Describe the largest difference between an expected and an actual array."""
    if expected.shape != actual.shape:
        return f"got shape {actual.shape} instead of {expected.shape}"
    with floating_point_warnings_ignored():
        error = abs(expected.astype("float64") - actual)
    index = npx.unravel_index(int(npx.argmax(npx.where(error == error, error, npx.inf))), error.shape)
    position = f" at {tuple(map(int, index))}" if expected.ndim else ""
    return f"got {float(actual[index])!r} instead of {float(expected[index])!r}{position}"
