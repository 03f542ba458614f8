"""Derived inputs that a function may accept although neither its domain nor its reference covers them.

These are integers and masks with other meanings, empty arrays, fewer axes, and inputs whose lengths differ.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import npx
from autograd.testing.problem import Problem, have_equal_values, is_array
from autograd.testing.variants import (
    Variant,
    every_third,
    resized,
    with_changed_rows,
    with_changed_value,
    with_resized_axis,
    with_values,
)
from npx import Array

# For each kind of dtype: indices that count from the end or mark padding, ids without entries, and masks that select
# everything or nothing.
CHANGES: dict[str, dict[str, Callable[[Array], Array]]] = {
    "i": {
        "some -1": lambda x: every_third(x, -1),
        "some -100": lambda x: every_third(x, -100),
        "a gap": lambda x: x + (x > x.min()),
    },
    "b": {"all False": lambda x: x & False, "all True": lambda x: x | True, "the inverse": lambda x: ~x},
}


def values(problem: Problem, options: Sequence[int] = ()) -> Iterator[Variant]:
    """Yield problems with integers and booleans that the declared domain and the reference do not cover.

    `options` are the integer options of the function. One of them may be an index that marks padding.
    On a GPU, integers are not changed: operations do not check indices there, because a check would wait for the GPU.
    """
    changes = CHANGES | {"i": CHANGES["i"] | {f"some {n}": partial(every_third, value=n) for n in options if n}}
    kinds = "ib" if npx.device() == "cpu" else "b"
    for i, x in enumerate(problem.values):
        if is_array(x) and x.size and x.dtype.kind in kinds:
            for name, apply in changes[x.dtype.kind].items():
                label = f"{name} in {problem.name_of(i)}"
                yield Variant(label, with_changed_value(problem, i, apply), is_declared=False)


def shapes(problem: Problem) -> Iterator[Variant]:
    """Yield problems without rows, with fewer axes (only the first row), and with other lengths in some inputs.

    Two inputs may have equal lengths by coincidence, so an axis of the first input is also resized alone. Lengths that
    do not occur in the first input are increased by 1. If the function broadcasts, one input gets an axis of length 1.
    """
    x = problem.values[problem.float_indices[0]] if problem.float_indices else None
    if x is None or not x.ndim or not x.size:
        return
    empty = with_resized_axis(problem, 0, 0)
    if empty:
        yield Variant("0 rows", empty, is_declared=False)
    fewer = problem
    for k, n in enumerate(x.shape):
        fewer = with_changed_rows(fewer, n, lambda a: a[0])
        yield Variant(f"{k + 1} {'axes' if k else 'axis'} fewer", fewer, is_declared=False)
    others = [i for i in problem.float_indices[1:] if problem.values[i].ndim]
    for axis, n in enumerate(x.shape):  # twice the length, in case it has to be a multiple
        if n > 1 and any(problem.values[i].shape[axis : axis + 1] == (n,) for i in others):
            alone = with_resized_axis(problem, axis, 2 * n, floats=False)
            if alone:
                name = f"axis {axis} of only {problem.name_of(problem.float_indices[0])} doubled"
                yield Variant(name, alone, is_declared=False)
    for n in sorted({n for i in others for n in problem.values[i].shape if n > 1} - {*x.shape}):
        yield Variant(f"length {n + 1} instead of {n}", with_longer_axes(problem, n), is_declared=False)
    broadcast = [i for i, y in enumerate(problem.values) if is_array(y) and y.dtype.kind in "fb"]
    for i in broadcast if others else ():
        x = npx.to_host(problem.values[i])
        for axis in {0, x.ndim - 1} if x.ndim else ():
            if x.shape[axis] > 1:
                first = npx.take(x, [0], axis=axis)
                repeated = npx.repeat(first, x.shape[axis], axis=axis)
                lists = [problem.values[:i] + [npx.from_host(y)] + problem.values[i + 1 :] for y in (first, repeated)]
                other, equivalent = (with_values(problem, values) for values in lists)
                if have_equal_values(other, equivalent):
                    name = f"{problem.name_of(i)} of length 1 along axis {axis}"
                    yield Variant(name, other, is_declared=False)


def with_longer_axes(problem: Problem, n: int) -> Problem:
    """Return the problem with each axis of length n one entry longer, in every argument."""

    def longer(x: Any) -> Any:
        for axis in [k for k, length in enumerate(x.shape) if length == n] if is_array(x) else ():
            x = npx.from_host(resized(x, axis, n + 1))
        return x

    return with_values(problem, [longer(x) for x in problem.values])
