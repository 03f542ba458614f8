"""Other inputs derived from given ones: what a person would not think of trying, from one array that they did.

Values change and shapes stay (signs, zeros, ties, magnitudes, offsets), of all inputs together, of each alone and of
the parameters; or shapes change (a batch of one and of many, long sequences, wide rows, squares), of whatever shares
the axis. Whether a function is made for such an input is found by trying, unless its domain is declared.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.saved import captured
from autograd.testing.problem import REFUSALS, Problem, is_array, is_float, nodes, quiet
from npx import Array

MANY = 2600  # rows: more than the blocks that people choose
LONG = 70  # positions: more than the windows that people choose, where each costs operations of its own
ENTRIES = 1 << 17  # of an array with many rows, at most
Domain = tuple[float, float] | None


def normal(shape: Sequence[int], seed: int) -> Array:
    return npx.to_host(npx.random.normal(npx.Key(seed, 5, 0), tuple(shape), "float64"))


def size(x: Array) -> float:
    """The typical magnitude of x's numbers: 1 where all are 0."""
    return float(abs(x[npx.isfinite(x)]).mean()) or 1.0 if x.size else 1.0


def every_third(x: Array, value: float) -> Array:
    """x with `value` at every third place."""
    y = x.copy()
    y.reshape(-1)[::3] = value
    return y


def overflowing(x: Array, size: float) -> Array:
    """x with numbers of `size` and of -size among it."""
    return every_third(every_third(x.reshape(-1), size)[::-1], -size)[::-1].reshape(x.shape)


def spread(x: Array) -> Array:
    """Numbers of both signs, from 1e-5 to 1e5 of x's size."""
    magnitudes = 10.0 ** (5 * npx.sin(npx.host.arange(1.0, x.size + 1)).reshape(x.shape))
    return npx.sign(normal(x.shape, 3)) * magnitudes * size(x)


VALUES: dict[str, Callable[[Array], Array]] = {
    "other numbers": lambda x: size(x) * normal(x.shape, 1),
    "positive numbers": lambda x: abs(x) + 0.1 * size(x),
    "negative numbers": lambda x: -abs(x) - 0.1 * size(x),
    "zeros": lambda x: 0 * x,
    "some zeros": lambda x: every_third(x, 0.0),
    "one zero": lambda x: npx.where(npx.host.arange(x.size).reshape(x.shape) == x.size // 2, 0.0, x),
    "ties": lambda x: npx.sign(x) + (x == 0),
    "one number everywhere": lambda x: 0 * x + 0.7,
    "equal rows": lambda x: npx.broadcast_to(x[:1], x.shape).copy() if x.ndim else x,
    "tiny numbers": lambda x: 1e-4 * x,
    "very tiny numbers": lambda x: 1e-7 * x,
    "numbers ten times as large": lambda x: 10 * x,
    "large numbers": lambda x: 60 * x / size(x),
    "very large numbers": lambda x: 1e5 * x / size(x),
    "an offset": lambda x: x + 1e4,
    "a large offset": lambda x: x + 1e6,
    "numbers from -5 to 5": lambda x: npx.host.linspace(-5.03, 5.01, x.size).reshape(x.shape),
    "numbers of all magnitudes": spread,
    "some numbers that overflow in float64": lambda x: overflowing(x, 800.0),
    "some numbers that overflow in float32": lambda x: overflowing(x, 95.0),
}
PARAMETERS = (
    *("other numbers", "positive numbers", "negative numbers", "tiny numbers", "numbers ten times as large", "zeros"),
)
ALONE = (
    *("other numbers", "negative numbers", "zeros", "tiny numbers", "very large numbers"),
    "numbers of all magnitudes",
)
# Where float32 is compared too: where it rounds as everywhere; and not where it overflows, or keeps no digits.
FLOAT32 = ("other numbers", "positive numbers", "negative numbers")
NARROW = (
    *("very large numbers", "an offset", "a large offset", "numbers of all magnitudes"),
    "some numbers that overflow in float64",
)
INTEGERS: dict[str, Callable[[Array], Array]] = {
    "some zeros": lambda x: every_third(x, 0),
    "one number everywhere": lambda x: 0 * x + x.reshape(-1)[:1].sum(),
    "the other way round": lambda x: x.reshape(-1)[::-1].reshape(x.shape),
}
# What a function may take, and neither its domain nor its reference is given for: places counted from the end, masks
# of all and of nothing.
UNASKED: dict[str, dict[str, Callable[[Array], Array]]] = {
    "i": {"some -1": lambda x: every_third(x, -1)},
    "b": {"all False": lambda x: x & False, "all True": lambda x: x | True, "each the other": lambda x: ~x},
}


def inside(x: Array, domain: Domain) -> bool:
    """Whether every number lies in the open interval."""
    return domain is None or bool(((x > domain[0]) & (x < domain[1])).all())


def domains(problem: Problem, domain: Any) -> list[Domain]:
    """The domain of each floating input: one for all, or one for each. ValueError for what is no interval."""
    number = len(problem.floats)
    several = [*domain] if hasattr(domain, "__len__") else []
    alike = domain is None or (len(several) == 2 and all(isinstance(x, (int, float)) for x in several))
    found: list[Any] = [domain] * number if alike else several
    if len(found) != number or not all(each is None or (len(each) == 2 and each[0] < each[1]) for each in found):
        raise ValueError(
            f"{problem.name}: expected domain=(low, high) with low < high, or such a pair or None for each of "
            f"{number} floating inputs; got {domain!r}; try (0, np.inf)"
        )
    return found


def refuse_outside(problem: Problem, domain: Any) -> None:
    """ValueError where the given inputs are not in the domain: then nothing that is derived from them would be."""
    for i, limit in zip(problem.floats, domains(problem, domain), strict=True):
        if not inside(npx.to_host(problem.values[i]), limit):
            raise ValueError(
                f"{problem.name}: expected input {i} inside of its domain {limit}; got numbers outside; try others"
            )


def folded(x: Array, domain: Domain) -> Array:
    """x, brought to the right side of a domain that has one side only, 0: (0, inf) or (-inf, 0)."""
    if domain is not None and domain[0] == 0 and domain[1] == npx.inf:
        return abs(x)
    if domain is not None and domain[1] == 0 and domain[0] == -npx.inf:
        return -abs(x)
    return x


def values(problem: Problem, domain: Any = None) -> Iterator[tuple[str, Problem]]:
    """Problems with other numbers in arrays of the same shapes."""
    arrays, inputs = [npx.to_host(a) for a in problem.arrays], len(problem.floats)
    allowed = [*domains(problem, domain), *[None] * len(problem.parameters)]

    def changed(name: str, which: Sequence[int]) -> Problem | None:
        new = list(arrays)
        for i in which:
            new[i] = folded(VALUES[name](arrays[i]), allowed[i])
            if not inside(new[i], allowed[i]):
                return None
        return problem.at([npx.from_host(a) for a in new])

    tried: list[tuple[str, str, Sequence[int]]] = [(name, "", range(inputs)) for name in VALUES if inputs]
    if inputs > 1:
        tried += [(name, f" in input {problem.floats[i]}", [i]) for name in ALONE for i in range(inputs)]
    if problem.parameters:
        own = range(inputs, len(arrays))
        tried += [(name, " in the parameters", own) for name in PARAMETERS]
    for name, where, which in tried:
        other = changed(name, which)
        if other is not None:
            yield name + where, other
    for i, x in enumerate(problem.values):
        if is_array(x) and x.dtype.kind in "iu" and x.size:
            for name, change in INTEGERS.items():
                other = problem.at(problem.arrays)
                other.values[i] = npx.from_host(change(npx.to_host(x)).astype(x.dtype))
                yield f"{name} in the integers of input {i}", other


def unasked(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems with other integers and booleans, outside of what the domain and the reference are said for."""
    for i, x in enumerate(problem.values):
        if is_array(x) and x.size:
            for name, change in UNASKED.get(x.dtype.kind, {}).items():
                other = problem.at(problem.arrays)
                other.values[i] = npx.from_host(change(npx.to_host(x)).astype(x.dtype))
                yield f"{name} in input {i}", other


def resized(x: Array, axis: int, length: int) -> Array:
    """x with `length` places along an axis: the first ones, or repeated, floating numbers moved a little."""
    index = npx.host.arange(length) % max(1, x.shape[axis])
    y = npx.take(npx.to_host(x), index, axis=axis)
    if is_float(x) and length > x.shape[axis]:
        y = (y + 0.5 * size(npx.to_host(x)) * normal(y.shape, 2)).astype(x.dtype)
    return y


def along(problem: Problem, axis: int, length: int, both: bool = True) -> Problem | None:
    """The problem with an axis of its first floating input resized, and of every argument (or floating one) like it.

    None where an array of that length stays, which a single place would be broadcast against: nobody asked for that.
    """
    x = problem.values[problem.floats[0]]
    n, back = x.shape[axis], axis if axis < 0 else axis - x.ndim

    def fits(y: Any) -> bool:
        return is_array(y) and len(y.shape) > max(axis, -axis - 1) and y.shape[axis] == n

    chosen = [fits(y) and (both or is_float(y)) for y in problem.values]
    stay = [y for y, change in zip(problem.values, chosen, strict=True) if not change]
    for y in (*stay, *problem.parameters.values()):
        if length == 1 and hasattr(y, "shape") and len(y.shape) >= -back and y.shape[back] == n:
            return None
    values = [npx.from_host(resized(y, axis, length)) if c else y for y, c in zip(problem.values, chosen, strict=True)]
    other = problem.at([*(values[i] for i in problem.floats), *problem.parameters.values()])
    other.values = values
    return other


def shapes(problem: Problem, domain: Any = None) -> Iterator[tuple[str, Problem]]:
    """Problems with other lengths of the axes of the first floating input, and of whatever shares them."""
    limits = domains(problem, domain)
    for name, other in resized_problems(problem):
        arrays = [folded(npx.to_host(other.values[i]), limit) for i, limit in zip(problem.floats, limits, strict=True)]
        if all(map(inside, arrays, limits)):
            yield name, other.at([*map(npx.from_host, arrays), *problem.parameters.values()])


def resized_problems(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Whatever the domain is."""
    if not problem.floats:
        return
    x = problem.values[problem.floats[0]]
    for axis, name in ((0, "rows"), (1, "positions"), (-1, "columns")):
        if x.ndim <= (2 if axis == 1 else -axis) or not x.size:
            continue
        n, dear = x.shape[axis], False
        for length in (1, LONG, min(MANY if axis == 0 else 1100, max(LONG, ENTRIES * n // x.size))):
            if length == n or (dear and length > LONG):
                continue
            for both in (True, False):
                other = along(problem, axis, length, both)
                if other is not None and (both or length > 1):
                    if length == LONG:
                        dear = dear or dearer(problem, other, length / n)
                    yield f"{length} {name}", other
    if x.ndim in (1, 2) and x.size:
        yield "another axis in front", each_row(problem, len(x), lambda a: resized(a[None], 0, 2))
    least = min(x.shape, default=0)
    if x.ndim == 2 and x.size and x.shape[0] != x.shape[1]:
        rows = along(problem, 0, least)
        square = rows and along(rows, -1, least)
        if square:
            yield "a square", square


def each_row(problem: Problem, n: int, change: Callable[[Array], Array]) -> Problem:
    """The problem with every argument of n rows changed."""
    rows = [is_array(x) and len(x.shape) > 0 and len(x) == n for x in problem.values]
    pairs = zip(problem.values, rows, strict=True)
    values = [npx.from_host(npx.asarray(change(npx.to_host(x)))) if row else x for x, row in pairs]
    other = problem.at([*(values[i] for i in problem.floats), *problem.parameters.values()])
    other.values = values
    return other


def unasked_shapes(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems with no rows, with their first row alone as one axis less, and with inputs that are repeated.

    Those are the floating inputs of the first one's shape: one of them has a single place along an axis.
    """
    x = problem.values[problem.floats[0]] if problem.floats else None
    if x is None or not x.ndim or not x.size:
        return
    none = along(problem, 0, 0)
    if none:
        yield "0 rows", none
    fewer = problem
    for k, n in enumerate(x.shape):
        fewer = each_row(fewer, n, lambda a: a[0])
        yield f"{k + 1} axes fewer", fewer
    alike = [i for i in problem.floats if problem.values[i].shape == problem.values[problem.floats[0]].shape]
    for i in alike if len(alike) > 1 else ():
        x = problem.values[i]
        for axis in {0, x.ndim - 1}:
            if x.shape[axis] > 1:
                values = list(problem.values)
                values[i] = npx.take(x, npx.asarray([0]), axis=axis)
                yield (
                    f"input {i} of length 1 along axis {axis}",
                    problem.at([*(values[k] for k in problem.floats), *problem.parameters.values()]),
                )


def dearer(problem: Problem, other: Problem, times: float) -> bool:
    """Whether a longer problem costs more than `times` as much: an operation for each position, or for each pair."""
    try:
        with quiet():
            (calls, numbers), (more_calls, more_numbers) = (cost(p.run()[0]) for p in (problem, other))
    except REFUSALS:
        return False
    return more_calls > calls or more_numbers > 1.2 * times * numbers


def cost(output: Tensor) -> tuple[int, int]:
    """How many operations an output is computed by, and how many numbers they keep."""
    found = nodes(output)
    made = sum(math.prod(node.shape) for node in found)
    return len(found), made + sum(x.size for node in found for x in captured(node.vjp))
