"""Format the report on a wrong gradient: the numbers side by side, and the pattern of the wrong entries."""

from collections.abc import Sequence
from math import isnan

import npx
from autograd.testing.numerical import Verdict
from autograd.testing.reproduction import literal
from npx import Array

MAX_PRINTED = 64  # gradients with at most this many entries are printed in full
MAX_WIDTH = 150  # maximum width of two arrays side by side, in characters
# Common ratios of a wrong gradient to the correct one.
SIMPLE_FACTORS = -2, -1, -1 / 2, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 2, 2, 3, 4
MAX_LINES = 12  # wider gradients are listed entry by entry, up to this number of entries


def comparison(analytic: float, verdict: Verdict, error: float | None = None) -> list[str]:
    """Return lines that show an analytic derivative and the expected one."""
    if verdict.reason:
        return [f"    analytic   {analytic!r}", f"    numerical  none; {verdict.reason}"]
    expected = repr(verdict.numerical)
    if verdict.is_kink:
        expected = f"from {verdict.low!r} to {verdict.high!r}, the left and right derivatives at a kink"
    error = abs(analytic - verdict.numerical) if error is None else error
    return [
        f"    analytic   {analytic!r}",
        f"    numerical  {expected}",
        f"    difference {error:.3g}; the numerical derivative is accurate to {verdict.bound:.2g}",
    ]


def describe_entries(
    labels: Sequence[str],
    arrays: Sequence[Array],
    i: int,
    gradient: Array,
    numerical: Array,
    wrong: Sequence[tuple[float, tuple[int, ...], Verdict]],
) -> str:
    """Describe the wrong entries, given as (error, index, verdict), of the gradient of `arrays[i]`.

    Small gradients are printed in full, with all arrays.
    """
    label = labels[i]
    a = arrays[i]
    error, index, verdict = max(wrong, key=lambda entry: entry[0])
    lines = [
        f"wrong gradient of {label}, {a.shape} {a.dtype}, in {len(wrong)} of {a.size} entries; the largest "
        f"error is at {index}:",
        *comparison(float(gradient[index]), verdict, error),
    ]
    if a.size <= MAX_PRINTED:
        lines += [f"{name} = {literal(array)}" for name, array in zip(labels, arrays, strict=True)]
        lines += [f"gradient of {label}, analytic | numerical:", *side_by_side(gradient, numerical)]
    return "\n".join(lines)


def side_by_side(left: Array, right: Array) -> list[str]:
    """Return lines that show two arrays of the same shape side by side, or only the largest differences of wide arrays.

    NaN in `right` stands for an entry that was not compared.
    """

    def lines(x: Array, undefined: str) -> list[str]:
        formatter = {"float_kind": lambda value: f"{value:>11.5g}" if value == value else f"{undefined:>11}"}
        return npx.host.array2string(x, max_line_width=10_000, formatter=formatter).splitlines()  # type: ignore

    left_lines = lines(left, "nan")
    right_lines = lines(right, "-")
    width = max(map(len, left_lines))
    if 2 * width <= MAX_WIDTH:
        return [f"    {a:<{width}}  |  {b}" for a, b in zip(left_lines, right_lines, strict=True)]
    non_finite_error = npx.where(right == right, npx.inf, -1)
    errors = npx.where(npx.isfinite(left - right), abs(left - right), non_finite_error).reshape(-1)
    order = npx.host.argsort(-errors, kind="stable")
    shown = [tuple(map(int, npx.unravel_index(int(k), left.shape))) for k in order[:MAX_LINES]]
    table = [f"    {index!s:<12}{left[index]:>11.5g}  |  {right[index]:>11.5g}" for index in shown]
    return table + [f"    ... and {errors.size - MAX_LINES} more entries"] * (errors.size > MAX_LINES)


def likely_cause(gradient: Array, entries: list[tuple[tuple[int, ...], float, float]], label: str = "") -> str:
    """Describe what the wrong entries, given as (index, analytic, numerical), have in common; return "" if nothing.

    Args:
        gradient: the analytic gradient, with all entries.
        label: the name of a positional input that may be a constant.
    """
    if not gradient.any():
        advice = f"; if {label} is a constant, such as a mask, pass it by name" if label else ""
        return f"the gradient is 0: the input is detached from the graph, or the vjp drops its gradient{advice}"
    ratios = [analytic / numerical for _, analytic, numerical in entries if numerical]
    first = ratios[0] if len(ratios) == len(entries) else npx.nan
    is_simple = min(abs(first - factor) for factor in SIMPLE_FACTORS) <= 1e-4 * abs(first)
    is_plausible = len(entries) > 1 or is_simple  # a single entry is always wrong by some factor
    if first and is_plausible and all(abs(r - first) <= 1e-4 * abs(first) for r in ratios) and not isnan(first):
        if abs(first + 1) <= 1e-4:
            return "the sign is wrong: every wrong entry is the negative of the numerical derivative"
        return f"a factor is wrong: every wrong entry is {first:.4g} times the numerical derivative"
    for axis, length in enumerate(gradient.shape):
        positions = {index[axis] for index, _, _ in entries}
        if length > 1 and len(positions) == 1 and len(entries) > 1:
            return (
                f"a boundary or a single slice is wrong: all wrong entries have index {positions.pop()} on axis {axis}"
            )
    return "the gradient of every wrong entry is 0: the vjp skips or overwrites them" if first == 0 else ""
