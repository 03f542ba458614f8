"""Recognize mistakes that can occur in any exercise, by comparing a wrong result with the correct one.

Examples are a flipped sign, a constant factor, swapped gradients, an ignored g and a wrong shape.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np

from book.exercise import kind


class Pair(NamedTuple):
    """A wrong result and the right one.

    Attributes:
        yours, right: the wrong part of the learner's result, and the same part of the right result.
        doubled: the learner's part for an incoming gradient twice as large; None if there is no incoming gradient.
        all_yours, all_right: the complete results.
        rows: the right parts for the first and the last row of the incoming gradient; empty if there is only one row.
    """

    yours: Any
    right: Any
    doubled: Any
    all_yours: Any
    all_right: Any
    rows: tuple[Any, ...] = ()


SPECIAL: dict[tuple[str, Any], str] = {
    ("nan", np.isnan): "nan, the result of 0 / 0, inf / inf or inf - inf. Which of these occurs here",
    ("inf", np.isposinf): "inf, the result of exp above 709 or of a division by 0. Which of these occurs here",
    ("-inf", np.isneginf): "-inf. Is it the logarithm of 0, or a start that is never replaced",
}


def relation(pairs: list[Pair], part: int | None) -> tuple[str, str]:
    """Return the name and text of the first relation that holds, or two empty strings.

    The report shows the first pair, so a hint about a single result describes this pair. A relation between wrong and
    correct results must hold for every pair.
    """
    which = "The result" if part is None else f"Number {part + 1} of the returned values"
    if isinstance(pairs[0].yours, BaseException):
        return exception_hint(pairs[0].yours)
    if all(exchanged(pair) for pair in pairs):
        return "exchanged", "The values are right, but in the wrong order. Return them in the order of the inputs."
    pairs = [pair._replace(yours=unwrapped(pair.yours), right=unwrapped(pair.right)) for pair in pairs]
    shown = pairs[0]
    if isinstance(shown.right, (tuple, list)):  # its items differ in shape, so the relations below do not apply
        n = len(shown.right)
        if isinstance(shown.right, list) or isinstance(shown.yours, (tuple, list)) and len(shown.yours) == n:
            return "", ""
        return "number of values", f"Return {n} values, as a tuple; yours returns {kind(shown.yours)}."
    try:
        arrays = [(np.asarray(pair.yours), np.asarray(pair.right)) for pair in pairs]
    except ValueError:  # lists of unequal lengths
        return "", ""
    a, b = arrays[0]
    if a.dtype.kind not in "biuf" or b.dtype.kind not in "biuf":
        return "", ""
    for axes in [*itertools.permutations(range(b.ndim))][1:]:
        if all(y.ndim == len(axes) and identical(x, y.transpose(axes)) for x, y in arrays):
            how = "is transposed" if b.ndim == 2 else "has the right numbers, but its axes are in another order"
            shapes = f": expected the shape {b.shape}; got {a.shape}" if a.shape != b.shape else ""
            return "transposed", f"{which} {how}{shapes}."
    for i, place in enumerate(("first", "last")):
        if all(pair.rows and identical(pair.yours, unwrapped(pair.rows[i])) for pair in pairs):
            return "one row", (
                f"{which} is that of the {place} row of g alone, but each row adds to it. Is a sum or a += missing?"
            )
    if a.shape != b.shape:
        return "shape", f"{which} has the wrong shape: expected {b.shape}; got {a.shape}."
    if is_bool(a) != is_bool(b):
        return "dtype", f"{which} has the wrong type: expected {b.dtype}; got {a.dtype}."
    for (name, is_special), origin in SPECIAL.items():
        if a.dtype.kind == "f" and is_special(a).any() and not is_special(b).any():
            return name, f"{which} contains {origin}?"
    if any(a.dtype.kind not in "biuf" or a.shape != b.shape or is_bool(a) != is_bool(b) for a, b in arrays):
        return "", ""
    if all(pair.doubled is not None and identical(pair.yours, unwrapped(pair.doubled)) for pair in pairs):
        return "g ignored", f"{which} does not change when g doubles. By the chain rule, a gradient is multiplied by g."
    if shown.doubled is not None and not identical(2 * a, unwrapped(shown.doubled)):
        return "not linear", f"{which} does not double when g doubles. A vjp multiplies by g, once, in every term."
    arrays = [(a, b) for a, b in arrays if not is_bool(a)]
    offset = float((a - b).flat[0]) if arrays and a.size else np.nan
    if len(arrays) > 1 and all(identical(a - b, np.full(b.shape, offset)) for a, b in arrays):
        return "offset", f"{which} is always {abs(offset):.4g} too {'large' if offset > 0 else 'small'}."
    return factor(arrays, which)


def exception_hint(error: BaseException) -> tuple[str, str]:
    """Return a hint for exceptions that are caused by wrong shapes or indices."""
    if isinstance(error, ValueError) and ("broadcast" in str(error) or "mismatch" in str(error)):
        return "shapes", "Two shapes do not fit. Write the shape of each array next to its line, then compare."
    if isinstance(error, ValueError) and "cannot reshape" in str(error):
        return "reshape", "A reshape keeps the number of entries. Write the shape of each array next to its line."
    if isinstance(error, ValueError) and "unpack" in str(error):
        return "unpack", "The number of names differs from the number of values. How many axes does the input have?"
    if isinstance(error, ValueError) and str(error).startswith("attention: expected"):
        return (
            "heads",
            "attention takes q, k and v as (B, T, H, D / H), with the heads after the positions. Print the shapes.",
        )
    if isinstance(error, ValueError) and "empty" in str(error):
        return "empty", "A list is empty in this case. What should have been put into it?"
    if isinstance(error, RecursionError):
        return "recursion", "Python stops at about 1,000 nested calls. Use a loop over a list of what is still to do."
    if isinstance(error, TypeError) and "ufunc" not in str(error) and "NoneType" in str(error):
        return "None", "A value is None here: nothing was returned or assigned in this case."
    return "", ""


def exchanged(pair: Pair) -> bool:
    """Return whether the values are the right ones in another order."""
    yours, right = pair.all_yours, pair.all_right
    if not isinstance(yours, tuple) or not isinstance(right, tuple) or len(yours) != len(right) or len(right) < 2:
        return False
    rest = list(right)
    for value in yours:
        match = next((i for i, other in enumerate(rest) if identical(value, other)), None)
        if match is None:
            return False
        del rest[match]
    return True


def factor(arrays: list[tuple[Any, Any]], which: str) -> tuple[str, str]:
    """Return the hint for results that equal the right ones up to a factor: -1, a constant, or a size."""
    ratios = []
    for a, b in arrays:
        at = np.unravel_index(np.abs(b).argmax(), b.shape)
        ratio = float(a[at] / b[at]) if b[at] else 0.0
        if not ratio or not np.isfinite(ratio) or not identical(a, ratio * b):
            return "", ""
        ratios.append(ratio)
    enough = sum(b.size for _, b in arrays) >= 3  # a single number is a multiple of any other
    if not ratios or not enough or max(abs(ratio - 1) for ratio in ratios) < 0.01:  # only rounding errors
        return "", ""
    if identical(ratios, -np.ones(len(ratios))):
        return "sign", f"{which} has the wrong sign, and nothing else is wrong with it."
    if len(ratios) > 1 and identical(ratios, np.full(len(ratios), ratios[0])):
        return "constant factor", f"{which} is always {ratios[0]:.4g} times the right one: a constant factor is wrong."
    if any(b.size == 1 for _, b in arrays):
        return "", ""
    for axis, name in ((-1, "columns"), (0, "rows")):
        sizes = [float(b.shape[axis]) for _, b in arrays]
        for sign, words in ((1, "too large by"), (-1, "too small by")):
            if identical(ratios, np.power(sizes, sign)):
                return (
                    "size",
                    f"{which} is {words} a factor that is the number of {name}, as if a sum and a mean were exchanged.",
                )
    if len(ratios) > 1:
        return "scale", f"{which} has the right direction, but its size is wrong by a factor that depends on the input."
    return "", ""


def is_bool(a: Any) -> bool:
    return bool(a.dtype.kind == "b")


def unwrapped(value: Any) -> Any:
    """Return the element of a one-element tuple; return any other value unchanged."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def identical(a: Any, b: Any) -> bool:
    """Return whether two arrays are equal up to rounding."""
    try:
        x, y = np.asarray(a, float), np.asarray(b, float)
    except (TypeError, ValueError):
        return False
    scale = float(np.abs(np.where(np.isfinite(y), y, 0)).max(initial=0.0))
    return x.shape == y.shape and bool(np.allclose(x, y, rtol=1e-9, atol=1e-9 * scale, equal_nan=True))
