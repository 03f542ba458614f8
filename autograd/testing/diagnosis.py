"""The text of a report on a wrong gradient: the numbers side by side, and what the wrong entries have in common."""

import npx
from autograd.testing.numerical import Verdict
from npx import Array


def comparison(analytic: float, verdict: Verdict, difference: float | None = None) -> list[str]:
    """Return lines that show an analytic derivative and what was expected."""
    expected = repr(verdict.numerical)
    if verdict.is_kink:
        expected = f"from {verdict.low!r} to {verdict.high!r}, the left and right derivatives at a kink"
    off = abs(analytic - verdict.numerical) if difference is None else difference
    return [
        f"    analytic   {analytic!r}",
        f"    numerical  {expected}",
        f"    difference {off:.3g}; the numerical derivative is accurate to {verdict.bound:.2g}",
    ]


def side_by_side(left: Array, right: Array) -> list[str]:
    """Return the lines of two arrays of one shape next to each other."""

    def lines(x: Array) -> list[str]:
        formatter = {"float_kind": lambda value: f"{value:>11.5g}"}  # the same line breaks for both arrays
        return npx.host.array2string(x, max_line_width=200, formatter=formatter).splitlines()  # type: ignore

    first, second = lines(left), lines(right)
    width = max(map(len, first))
    return [f"    {a:<{width}}  |  {b}" for a, b in zip(first, second, strict=True)]


def likely_cause(shape: tuple[int, ...], entries: list[tuple[tuple[int, ...], float, float]]) -> str:
    """Return what the wrong entries, given as (index, analytic, numerical), have in common; "" if nothing."""
    if all(analytic == 0 for _, analytic, _ in entries):
        return "the gradient is 0: the input is detached from the graph, or the vjp drops its gradient"
    ratios = [analytic / numerical for _, analytic, numerical in entries if numerical]
    first = ratios[0] if len(ratios) == len(entries) else npx.nan
    if len(entries) > 1 and first == first and all(abs(ratio - first) <= 1e-4 * abs(first) for ratio in ratios):
        if abs(first + 1) <= 1e-4:
            return "the sign is wrong: every wrong entry is the negative of the numerical derivative"
        return f"a factor is wrong: every wrong entry is {first:.4g} times the numerical derivative"
    for axis, length in enumerate(shape):
        positions = {index[axis] for index, _, _ in entries}
        if length > 1 and len(positions) == 1 and len(entries) > 1:
            return (
                f"a boundary or a single slice is wrong: all wrong entries have index {positions.pop()} on axis {axis}"
            )
    return ""
