"""Shrink failing inputs to the smallest ones at which the same rule is still broken."""

from collections.abc import Callable, Iterator

import npx
from autograd.testing.problem import Problem
from autograd.testing.report import REJECTIONS, CheckError, GradientError
from autograd.testing.variants import with_resized_axis

SHRINKABLE = ("gradient", "kink", "tie", "finite gradient")  # inputs that break other rules are not shrunk


def smallest(problem: Problem, error: GradientError, check: Callable[[Problem], object]) -> GradientError:
    """Return the error that `check` raises at the smallest inputs that break the same rule as `error`."""
    smaller: GradientError | None = error
    while smaller:
        error = smaller
        smaller = None
        for candidate in candidates(problem, error.index):
            try:
                check(candidate)
            except GradientError as failure:
                if failure.rule == error.rule:
                    problem = candidate
                    smaller = failure
                    break
            except (CheckError, RuntimeError, *REJECTIONS):
                continue
    return error


def candidates(problem: Problem, index: tuple[int, ...]) -> Iterator[Problem]:
    """Yield simpler problems: with one axis of the first input cut to the failing entry, and with rounded numbers."""
    x = problem.values[problem.float_indices[0]] if problem.float_indices else npx.asarray(0.0)
    for axis in (0, *range(1 - x.ndim, 0)) if x.ndim else ():
        start = index[axis] if len(index) == x.ndim else 0
        for length in (1, 2):
            if x.shape[axis] > length and (other := with_resized_axis(problem, axis, length, start=start)):
                yield other
    arrays = [npx.to_host(a) for a in problem.arrays]
    if any((a != npx.host.round(a, 3)).any() for a in arrays):
        yield problem.with_arrays([npx.from_host(npx.host.round(a, 1)) for a in arrays])
