"""Inputs derived from the given ones: the edge cases of an operation, from one example input.

Some variants change values but not shapes: signs, zeros, ties, magnitudes or offsets, in all inputs together, in one
input or in the parameters. Others change shapes, to a batch of one, a large batch, long sequences, wide rows or
squares. They resize every argument that has the same length along the changed axis. Unless a domain is declared, the
function may reject such an input.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import npx
from autograd.testing.problem import (
    Problem,
    grows_superlinearly,
    is_accepted,
    is_array,
    is_float,
)
from autograd.testing.report import GradientError
from npx import Array

MANY_ROWS = 2600  # maximum length of an extended first axis; exceeds the usual block sizes
LONG = 70  # maximum length of an extended axis if the cost grows faster than the length; exceeds the usual windows
MAX_LENGTH = 1100  # maximum length of an extended axis other than the first
MAX_ENTRIES = 1 << 17  # maximum number of entries after an axis is extended beyond LONG
Domain = tuple[float, float] | None


def normal(shape: Sequence[int], seed: int) -> Array:
    """Return standard normal numbers on the host."""
    return npx.to_host(npx.random.normal(npx.Key(seed, 5, 0), tuple(shape), "float64"))


def mean_magnitude(x: Array) -> float:
    """Return the mean magnitude of the finite numbers in x; 1 if all are 0."""
    return float(abs(x[npx.isfinite(x)]).mean()) or 1.0 if x.size else 1.0


def every_third(x: Array, value: float) -> Array:
    """Return x with every third entry replaced by `value`."""
    y = x.copy()
    y.reshape(-1)[::3] = value
    return y


def with_extremes(x: Array, value: float) -> Array:
    """Return x with some entries replaced by `value` and some by -value."""
    return every_third(every_third(x.reshape(-1), value)[::-1], -value)[::-1].reshape(x.shape)


def all_magnitudes(x: Array) -> Array:
    """Return numbers of both signs, from 1e-5 to 1e5 times the mean magnitude of x."""
    factors = 10.0 ** (5 * npx.sin(npx.host.arange(1.0, x.size + 1)).reshape(x.shape))
    return npx.sign(normal(x.shape, 3)) * factors * mean_magnitude(x)


class Change(NamedTuple):
    """A change of the values of an array.

    Attributes:
        name: describes the new values in messages.
        apply: returns the array with the new values.
        is_magnitude: whether overflow is the only likely error; a check along one random direction then suffices.
        float32_factor: multiplies the tolerance of float32 results; None if float32 overflows or loses all digits.
    """

    name: str
    apply: Callable[[Array], Array]
    is_magnitude: bool = False
    float32_factor: float | None = 1e6  # so large that only an overflow exceeds it


OTHER = Change("other numbers", lambda x: mean_magnitude(x) * normal(x.shape, 1), float32_factor=1)
POSITIVE = Change("positive numbers", lambda x: abs(x) + 0.1 * mean_magnitude(x), float32_factor=1)
NEGATIVE = Change("negative numbers", lambda x: -abs(x) - 0.1 * mean_magnitude(x), float32_factor=1)
ZEROS = Change("zeros", lambda x: 0 * x)
TINY = Change("tiny numbers", lambda x: 1e-4 * x)
LARGER = Change("numbers ten times as large", lambda x: 10 * x)
VERY_LARGE = Change("very large numbers", lambda x: 1e5 * x / mean_magnitude(x), float32_factor=None)
ALL_MAGNITUDES = Change("numbers of all magnitudes", all_magnitudes, float32_factor=None)
# Changes that apply to all inputs together, to one input, to all parameters together, or to one array of either kind.
ALL_INPUTS = (
    OTHER,
    POSITIVE,
    NEGATIVE,
    ZEROS,
    Change("some zeros", lambda x: every_third(x, 0.0)),
    Change("one zero", lambda x: npx.where(npx.host.arange(x.size).reshape(x.shape) == x.size // 2, 0.0, x)),
    Change("ties", lambda x: npx.sign(x) + (x == 0)),
    Change("one number everywhere", lambda x: 0 * x + 0.7),
    Change("equal rows", lambda x: npx.broadcast_to(x[:1], x.shape).copy() if x.ndim else x),
    TINY,
    Change("very tiny numbers", lambda x: 1e-7 * x),
    LARGER,
    Change("large numbers", lambda x: 60 * x / mean_magnitude(x)),
    VERY_LARGE,
    Change("an offset", lambda x: x + 1e4, float32_factor=None),
    Change("a large offset", lambda x: x + 1e6, float32_factor=None),
    Change("numbers from -5 to 5", lambda x: npx.host.linspace(-5.03, 5.01, x.size).reshape(x.shape)),
    ALL_MAGNITUDES,
    *(Change(f"shifted by {s}", partial(operator.add, s), is_magnitude=True) for s in (-100, -40, -15, 15, 40, 100)),
    Change("some numbers whose exp overflows in float64", lambda x: with_extremes(x, 800.0), float32_factor=None),
    Change("some numbers whose exp overflows in float32", lambda x: with_extremes(x, 95.0)),
)
ONE_INPUT = (OTHER, NEGATIVE, ZEROS, TINY, VERY_LARGE, ALL_MAGNITUDES)
PARAMETERS = (OTHER, POSITIVE, NEGATIVE, TINY, LARGER, ZEROS)
ONE_ARRAY = [Change(f"times 1e{n}", partial(operator.mul, 10.0**n), is_magnitude=True) for n in (4, 7)]
MAX_SEPARATE = 6  # maximum number of arrays that are scaled separately
INTEGERS: dict[str, Callable[[Array], Array]] = {
    "some zeros": lambda x: every_third(x, 0),
    "one number everywhere": lambda x: 0 * x + x.reshape(-1)[:1].sum(),
    "reversed order": lambda x: x.reshape(-1)[::-1].reshape(x.shape),
}


class Variant(NamedTuple):
    """A problem derived from the given one.

    Attributes:
        name: describes the difference in messages.
        problem: the derived problem.
        change: the change of values, if any.
        in_parameters: whether only parameters differ.
        is_single_row: whether only the first row is left.
        is_declared: whether the declared domain and the reference apply.
    """

    name: str
    problem: Problem
    change: Change = Change("", lambda x: x)
    in_parameters: bool = False
    is_single_row: bool = False
    is_declared: bool = True


def is_inside(x: Array, domain: Domain) -> bool:
    """Return whether every number lies in the open interval."""
    return domain is None or bool(((x > domain[0]) & (x < domain[1])).all())


def input_domains(problem: Problem, domain: Any) -> list[Domain]:
    """Return the domain of each floating-point input, given one domain for all inputs or a sequence of domains.

    Raises ValueError if `domain` is malformed.
    """
    number = len(problem.float_indices)
    parts = [*domain] if hasattr(domain, "__len__") else []
    is_shared = domain is None or (len(parts) == 2 and all(isinstance(x, (int, float)) for x in parts))
    if not is_shared:  # options have no separate domain
        parts += [None for i in problem.float_indices[len(parts) :] if problem.name_of(i).startswith("option ")]
    result: list[Any] = [domain] * number if is_shared else parts
    if len(result) != number or not all(d is None or (len(d) == 2 and d[0] < d[1]) for d in result):
        raise ValueError(
            f"{problem.name}: expected domain=(low, high) with low < high, or such a pair or None for each of "
            f"{number} floating inputs; got {domain!r}; try (0, np.inf)"
        )
    return result


def require_inside(problem: Problem, domain: Any) -> None:
    """Raise ValueError if the given inputs are outside the declared domain."""
    for i, interval in zip(problem.float_indices, input_domains(problem, domain), strict=True):
        if not is_inside(npx.to_host(problem.values[i]), interval):
            raise ValueError(
                f"{problem.name}: expected {problem.name_of(i)} inside its domain {interval}; got values outside it; "
                "try other inputs or a wider domain"
            )


def reflected(x: Array, domain: Domain) -> Array:
    """Return x with the signs that the domain (0, inf) or (-inf, 0) requires; x itself for other domains."""
    if domain is not None and domain[0] == 0 and domain[1] == npx.inf:
        return abs(x)
    if domain is not None and domain[1] == 0 and domain[0] == -npx.inf:
        return -abs(x)
    return x


def values(problem: Problem, domain: Any = None) -> Iterator[Variant]:
    """Yield problems with other numbers in arrays of the same shapes."""
    arrays = [npx.to_host(a) for a in problem.arrays]
    n_inputs = len(problem.float_indices)
    intervals = [*input_domains(problem, domain), *[None] * len(problem.parameters)]

    def changed(change: Change, positions: Sequence[int]) -> Problem | None:
        new = list(problem.arrays)
        for i in positions:
            x = reflected(change.apply(arrays[i]), intervals[i]).astype(arrays[i].dtype)
            if not is_inside(x, intervals[i]):
                return None
            new[i] = npx.from_host(x)
        return problem.with_arrays(new)

    all_parameters = range(n_inputs, len(arrays))
    changes: list[tuple[Change, str, Sequence[int]]] = []
    if n_inputs:
        changes += [(change, "", range(n_inputs)) for change in ALL_INPUTS]
    if n_inputs > 1:
        names = [f" in {problem.name_of(i)}" for i in problem.float_indices]
        changes += [(change, name, [i]) for change in ONE_INPUT for i, name in enumerate(names)]
    if len(arrays) > 1:
        separate = range(1 if n_inputs else 0, len(arrays))[:MAX_SEPARATE]
        changes += [(change, f" in {problem.labels[i]}", [i]) for change in ONE_ARRAY for i in separate]
    if problem.parameters:
        changes += [(change, " in the parameters", all_parameters) for change in PARAMETERS]
    for change, suffix, positions in changes:
        other = changed(change, positions)
        if other is not None:
            yield Variant(change.name + suffix, other, change, in_parameters=positions is all_parameters)
    for i, x in enumerate(problem.values):
        if is_array(x) and x.dtype.kind in "iu" and x.size:
            for name, apply in INTEGERS.items():
                label = f"{name} in the integers of {problem.name_of(i)}"
                yield Variant(label, with_changed_value(problem, i, apply))


def with_changed_value(problem: Problem, i: int, apply: Callable[[Array], Array]) -> Problem:
    """Return the problem with one argument changed."""
    x = problem.values[i]
    other = problem.with_arrays(problem.arrays)  # a copy
    other.values[i] = npx.from_host(apply(npx.to_host(x)).astype(x.dtype))
    return other


def with_values(problem: Problem, values: list[Any]) -> Problem:
    """Return the problem with other arguments, of any shape."""
    other = problem.with_arrays([*(values[i] for i in problem.float_indices), *problem.parameters.values()])
    other.values = values
    return other


def resized(x: Array, axis: int, length: int, start: int = 0) -> Array:
    """Return x with an axis cut (from `start`) or repeated to `length`; repeated floats vary slightly."""
    index = (start + npx.host.arange(length)) % max(1, x.shape[axis])
    y = npx.take(npx.to_host(x), index, axis=axis)
    if is_float(x) and length > x.shape[axis]:
        y = (y + 0.5 * mean_magnitude(npx.to_host(x)) * normal(y.shape, 2)).astype(x.dtype)
    return y


def with_resized_axis(
    problem: Problem, axis: int, length: int, integers: bool = True, start: int = 0, floats: bool = True
) -> Problem | None:
    """Return the problem with an axis resized in the first floating-point input and in every argument that shares it.

    Returns None if a length of 1 would be broadcast against an argument that is not resized: the function may not
    support that.

    Args:
        integers: whether to resize integers and booleans too.
        start: the first index, if the axis is cut.
        floats: whether to resize the other floating-point inputs too.
    """
    first = problem.float_indices[0]
    x = problem.values[first]
    n = x.shape[axis]
    negative_axis = axis if axis < 0 else axis - x.ndim

    def shares_axis(y: Any) -> bool:
        return is_array(y) and len(y.shape) > max(axis, -axis - 1) and y.shape[axis] == n

    is_resized = [
        shares_axis(y) and (i == first or (floats if is_float(y) else integers)) for i, y in enumerate(problem.values)
    ]
    unchanged = [y for y, change in zip(problem.values, is_resized, strict=True) if not change]
    for y in (*unchanged, *problem.parameters.values()):
        if length == 1 and is_array(y) and len(y.shape) >= -negative_axis and y.shape[negative_axis] == n:
            return None
    pairs = zip(problem.values, is_resized, strict=True)
    values = [npx.from_host(resized(y, axis, length, start)) if change else y for y, change in pairs]
    return with_values(problem, values)


def shapes(problem: Problem, domain: Any = None) -> Iterator[Variant]:
    """Yield problems with other axis lengths in the first floating-point input and every argument that shares them."""
    intervals = input_domains(problem, domain)
    for variant in resized_problems(problem):
        pairs = zip(problem.float_indices, intervals, strict=True)
        arrays = [reflected(npx.to_host(variant.problem.values[i]), interval) for i, interval in pairs]
        if all(map(is_inside, arrays, intervals)):
            new = [*map(npx.from_host, arrays), *problem.parameters.values()]
            yield variant._replace(problem=variant.problem.with_arrays(new))


def resized_problems(problem: Problem) -> Iterator[Variant]:
    """Yield the problems of `shapes`, including those outside the domain."""
    if not problem.float_indices:
        return
    x = problem.values[problem.float_indices[0]]
    for axis, name in ((0, "row"), (1, "position"), (-1, "column")):
        if x.ndim <= (2 if axis == 1 else -axis) or not x.size:
            continue
        n = x.shape[axis]
        is_expensive = False
        longest = min(MANY_ROWS if axis == 0 else MAX_LENGTH, max(LONG, MAX_ENTRIES * n // x.size))
        # If n is even, the long axis is odd, provided that the function accepts odd lengths.
        odd = [with_resized_axis(problem, axis, LONG + 1, integers) for integers in (True, False) if n % 2 == 0]
        long = LONG + any(other is not None and is_accepted(other) for other in odd)
        for length in (1, long, longest):
            if length == n or (is_expensive and length > long):
                continue
            for integers in (True, False):
                other = with_resized_axis(problem, axis, length, integers)
                if other is not None and (integers or length > 1):
                    if length == long:
                        is_expensive = is_expensive or grows_superlinearly(problem, other, length / n)
                    label = f"{length} {name}{'s' if length > 1 else ''}"
                    yield Variant(label, other, is_single_row=length == 1 and axis == 0)
                    if integers and is_accepted(other):
                        break  # integers that are not resized would label only some of the rows
    if x.ndim in (1, 2) and x.size:
        yield Variant("a new first axis", with_changed_rows(problem, len(x), lambda a: resized(a[None], 0, 2)))
    side = min(x.shape, default=0)
    if x.ndim == 2 and x.size and x.shape[0] != x.shape[1]:
        rows = with_resized_axis(problem, 0, side)
        square = rows and with_resized_axis(rows, -1, side)
        if square:
            yield Variant("a square", square)


def guessed_shapes(problem: Problem, other: Problem) -> str:
    """Return which arrays of a derived problem may have unsuitable shapes: "", "inputs" or "all".

    By coincidence, an argument may have the same length as a changed axis of the first argument. A function of matrices
    may happen to accept an array with a different number of axes, and a function of square matrices one with a single
    row, because A + A.T broadcasts.
    """
    x = problem.values[problem.float_indices[0]]
    changed = other.values[problem.float_indices[0]]
    if x.ndim != changed.ndim:
        return "all"
    lengths = {n for n, m in zip(x.shape, changed.shape, strict=True) if n != m}
    if changed.size and 1 in changed.shape and any(x.shape.count(n) > 1 for n in lengths):
        return "inputs"
    arrays = [y for i, y in enumerate(problem.values) if is_array(y) and i != problem.float_indices[0]]
    return "inputs" if any(y.shape != x.shape and lengths & {*y.shape} for y in arrays) else ""


def is_broadcast(given: Problem, other: Problem, error: GradientError) -> bool:
    """Return whether a vjp failed because an array that is not an argument broadcasts an axis of length 1.

    The other array, such as a position table in a buffer, keeps the given length n of the axis. The output then has the
    given shape, and the exception names two shapes, such as those of an input and its gradient, one of which has n
    where the other has 1.
    """
    if other.output_value().shape != given.output_value().shape:
        return False
    x, changed = (problem.values[given.float_indices[0]].shape for problem in (given, other))
    cut = {n for n, m in zip(x, changed, strict=False) if m == 1}
    texts = re.findall(r"\(([\d, ]+)\)", str(error.__cause__))
    shapes = [[int(n) for n in re.findall(r"\d+", text)] for text in texts]
    return any(
        len(a) == len(b) and a != b and all(n == m or (n == 1 and m in cut) for n, m in zip(a, b, strict=True))
        for a in shapes
        for b in shapes
    )


def with_changed_rows(problem: Problem, n: int, change: Callable[[Array], Array]) -> Problem:
    """Return the problem with every argument of n rows changed."""

    def changed(x: Any) -> Any:
        has_n_rows = is_array(x) and len(x.shape) > 0 and len(x) == n
        return npx.from_host(npx.asarray(change(npx.to_host(x)))) if has_n_rows else x

    return with_values(problem, [changed(x) for x in problem.values])
