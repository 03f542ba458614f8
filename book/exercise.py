"""Building blocks of a `check.py`: stages of cases, smallest first, and the standard stages of an operation.

A stage runs the answer on a case and compares the result with the real code's result. The learner sees only the first
difference, so the cases that are easiest to understand come first.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from autograd.engine import OPERATIONS, differentiable
from autograd.testing import CheckError, GradientError, check_operation


class Rejected(Exception):
    """Raised if an answer has the wrong form; the message says what was expected and what was found."""


class Stage(NamedTuple):
    """One requirement on an answer.

    Attributes:
        complaint: printed for an answer that fails.
        cases: `cases(seed)` yields tuples.
        yours: `yours(module, *case)` is the answer's result.
        right: `right(*case)` is the correct result.
        call: `call(*case)` is the Python expression that a learner can type.
        linear: True if the first item of a case is an incoming gradient, in which the result is linear.
        compared: `compared(module, *case)` is the outcome to compare with those of known mistakes; default: `yours`.
        explain: `explain(yours, right, *case)` describes the error in a result that no hint recognizes.
    """

    complaint: str
    cases: Callable[[int], Iterable[tuple[Any, ...]]]
    yours: Callable[..., Any]
    right: Callable[..., Any]
    call: Callable[..., str]
    close: float = 1e-9
    linear: bool = False
    explain: Callable[..., str] | None = None
    compared: Callable[..., Any] | None = None


def draw(seed: int, *shape: int) -> Any:
    """Return reproducible random numbers, rounded to two decimals so that they are easy to read."""
    return np.asarray(np.round(np.random.default_rng([seed, *shape]).normal(size=shape), 2) + 0.0)


def counted(shape: tuple[int, ...]) -> Any:
    """Return an array of this shape that counts 1, 2, 3, ...: an incoming gradient whose entries all differ."""
    return np.arange(1.0, np.prod(shape) + 1).reshape(shape)


def text(value: Any) -> str:
    """Return a value as Python source."""
    if isinstance(value, np.ndarray):
        inside = str(value.tolist()).replace("inf", "np.inf").replace("nan", "np.nan")
        return f"np.array({inside})" if value.size else f"np.zeros({value.shape})"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(text, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return repr(value.item() if isinstance(value, np.generic) else value)


def pair(module: Any, name: str, *args: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return the output and vjp of an answer."""
    result = getattr(module, name)(*args)
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
        raise Rejected(f"expected {name} to return two things, the output and its vjp; got {kind(result)}")
    return result


def gradients(vjp: Callable[[Any], Any], g: Any, number: int) -> tuple[Any, ...]:
    """Return the gradients of a vjp for g. Raises Rejected unless the vjp returns `number` gradients."""
    result = vjp(g)
    if not isinstance(result, tuple) or len(result) != number:
        raise Rejected(f"expected the vjp to return a tuple of {number}, a gradient for each input; got {kind(result)}")
    return result


def kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return "None" if value is None else f"a {type(value).__name__}"


def which_are_right(yours: Any, right: Any, *_: Any) -> str:
    """Describe which of several gradients are right, and which are wrong."""
    good = [f"number {i + 1}" for i, (a, b) in enumerate(zip(yours, right, strict=True)) if close_to(a, b)]
    bad = [f"number {i + 1}" for i, (a, b) in enumerate(zip(yours, right, strict=True)) if not close_to(a, b)]
    if not good:
        return ""
    verb = "is" if len(good) == 1 else "are"
    return f"Of the gradients, {' and '.join(good)} {verb} right. Derive {' and '.join(bad)} again, on paper."


def changed(names: list[str], before: Iterable[Any], after: Iterable[Any]) -> list[str]:
    """Return the names of the arrays that differ."""
    return [n for n, a, b in zip(names, before, after, strict=True) if not np.array_equal(a, b, equal_nan=True)]


def who_overwrites(yours: Any, *_: Any) -> str:
    """Describe which arrays the function or its vjp overwrites."""
    for culprit in ("function", "vjp"):
        arrays = yours[f"the {culprit} changes"]
        if arrays:
            return f"The {culprit} changes {' and '.join(arrays)} in place, as -=, *= and out= do. Make a new array."
    return "The second call to the vjp returns something else: the first one changed an array that both use."


def close_to(a: Any, b: Any) -> bool:
    x, y = np.asarray(a), np.asarray(b)
    return x.shape == y.shape and np.allclose(x, y, rtol=1e-9, atol=1e-9)


Cases = Callable[[int], Iterable[tuple[Any, ...]]]


def operation(
    name: str,
    right: Callable[..., Any],
    edges: Cases,
    drawn: Cases,
    differentiated: int = 1,
    explain: Callable[..., str] | None = None,
) -> list[Stage]:
    """Return the stages of an operation `name`; `right(*args)` returns its correct output and vjp.

    `edges` and `drawn` yield tuples of arguments of the operation. The gradients of the first `differentiated`
    arguments are checked. `explain` describes a wrong gradient; by default, the description names the inputs whose
    gradients are right.
    """

    def both(seed: int) -> Iterator[tuple[Any, ...]]:
        yield from edges(seed)
        yield from drawn(seed)

    def with_gradient(seed: int) -> Iterator[tuple[Any, ...]]:
        for i, args in enumerate(both(seed)):
            y = np.asarray(right(*args)[0])
            yield counted(y.shape) if i % 2 == 0 else draw(seed + i, *y.shape), *args

    def overwriting(module: Any, g: Any, *args: Any) -> dict[str, Any]:
        """Return which arrays the function and its vjp change, and the gradients of two calls to the vjp."""
        g, *given = [a.copy() if isinstance(a, np.ndarray) else a for a in (g, *args)]
        names = [f"argument {i + 1}" for i in range(len(given))]
        y, vjp = pair(module, name, *given)
        by_function = changed(names, args, given)
        before = [np.array(a) for a in (*given, y, g)]
        first = [np.array(x) for x in gradients(vjp, g, differentiated)]
        second = [*gradients(vjp, g, differentiated)]
        by_vjp = changed([*names, "the output", "g"], before, [*given, y, g])
        return {"the function changes": by_function, "the vjp changes": by_vjp, "first": first, "second": second}

    def no_overwriting(g: Any, *args: Any) -> dict[str, Any]:
        expected = [*right(*args)[1](g)]
        return {"the function changes": [], "the vjp changes": [], "first": expected, "second": expected}

    def call(*args: Any) -> str:
        return f"{name}({', '.join(map(text, args))})"

    return [
        Stage("the value is wrong", both, lambda m, *args: pair(m, name, *args)[0], lambda *args: right(*args)[0],
              lambda *args: f"{call(*args)}[0]"),
        Stage("the value is right, but the gradient is wrong", with_gradient,
              lambda m, g, *args: gradients(pair(m, name, *args)[1], g, differentiated),
              lambda g, *args: right(*args)[1](g), lambda g, *args: f"{call(*args)}[1]({text(g)})",
              linear=True, explain=explain or which_are_right),
        Stage("value and gradient are right, but an array that is still needed is overwritten",
              with_gradient, overwriting, no_overwriting, lambda g, *args: f"{call(*args)}[1]({text(g)}), twice",
              explain=who_overwrites),
    ]  # fmt: skip


def gradient_check(
    name: str, *inputs: Any, accepts: Callable[..., bool] | None = None, **options: Any
) -> Callable[[Any, bool], None]:
    """Return the last stage of an operation: `check_operation` on these inputs and on derived ones.

    Derived inputs that `accepts` rejects are outside the exercise's contract and are skipped.
    """

    def check(module: Any, vary_inputs: bool = True) -> None:
        answer = getattr(module, name)

        @wraps(answer)
        def function(*args: Any, **options: Any) -> Any:
            if accepts and not accepts(*args, **options):
                raise ValueError("outside the contract of the exercise")
            return answer(*args, **options)

        before = dict(OPERATIONS)
        try:
            check_operation(
                differentiable(function), *inputs, vary_inputs=vary_inputs, compare_float32=False, **options
            )
        except (GradientError, CheckError, ValueError, TypeError) as error:
            lines = [line for line in str(error).splitlines() if not line.startswith("reproduce")]
            raise Rejected("\n".join(lines[:10])) from error
        finally:
            OPERATIONS.clear()
            OPERATIONS.update(before)

    return check
