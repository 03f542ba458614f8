"""Precision rules: float64 stays float64 throughout, and narrower dtypes are as accurate as their rounding allows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import npx
from autograd.testing.baseline import Baseline
from autograd.testing.problem import Problem, floating_point_warnings_ignored
from autograd.testing.report import REJECTIONS, CheckError, GradientError
from npx import Array

FLOAT32_EPS = 1.2e-7

# A few entries may be differences of much larger numbers, but lost digits are visible in many entries.
MANY_ENTRIES = 0.25  # a result is inaccurate if a larger fraction of its entries exceeds the accepted difference
MAX_EXCESS = 100  # in float32, no entry may exceed the accepted difference by more than this factor


class NarrowDtype(NamedTuple):
    """The settings for comparing a 16-bit dtype with float64.

    Attributes:
        rule: a key of `RULES`.
        eps: the unit of rounding.
        fraction, factor: the accepted difference is `fraction` times the largest entry plus `factor` times the change
            that rounding the inputs causes.
    """

    rule: str
    eps: float
    fraction: float
    factor: float


NARROW = {
    "float16": NarrowDtype("float16 accuracy", 9.8e-4, 0.1, 30),
    "bfloat16": NarrowDtype("bfloat16 accuracy", 7.8e-3, 0.15, 10),
}


def result_labels(baseline: Baseline) -> list[str]:
    """Return the names of the output and of the gradients."""
    return ["output", *(f"gradient of {label}" for label in baseline.problem.labels)]


def check_float64_precision(baseline: Baseline) -> None:
    """Check that output and gradients change in proportion when the inputs change by only 1e-10 of their size.

    A result that was rounded to float32 in any step either does not change at all or changes by a full unit in the
    last place of float32.
    """
    arrays = [npx.to_host(a) for a in baseline.problem.arrays]
    results = [baseline.y, *baseline.gradients]
    if {x.dtype.name for x in (*arrays, *results)} != {"float64"}:
        return
    largest = max(1.0, *(float(abs(a[npx.isfinite(a)]).max(initial=0.0)) for a in (*arrays, baseline.y)))
    rounding = [npx.host.full(baseline.y.shape, 2e-14 * largest, "float64")]  # includes the rounding error of 1 + tiny
    term_size = float(abs(baseline.c).max(initial=0.0))  # terms of this size may cancel
    rounding += [
        npx.host.full(g.shape, 1e-13 * float(abs(g).max(initial=term_size)), "float64") for g in baseline.gradients
    ]
    changes_in_steps = [True] * len(results)
    for trial in range(2):
        perturbations = [
            a * npx.to_host(npx.random.uniform(npx.Key(trial, 9, i), a.shape, "float64", 0.5, 1.5))
            for i, a in enumerate(arrays)
        ]
        rates = []
        for t in (1e-10, 1e-6, 1e-5):
            neighbor = baseline.problem.with_arrays(
                [npx.from_host(a + t * p) for a, p in zip(arrays, perturbations, strict=True)]
            )
            y, gradients = neighbor.output_and_gradients(baseline.c)
            rates.append([(new - old) / t for new, old in zip((y, *gradients), results, strict=True)])
        for k, (small, middle, large, error) in enumerate(zip(*rates, rounding, strict=True)):
            is_straight = abs(large - middle) <= 0.3 * abs(large)  # False for non-finite rates and at an extremum
            is_resolved = npx.isfinite(small) & is_straight & (abs(large) * 1e-10 > error)
            is_too_small = is_resolved & (abs(small) < 0.5 * abs(large))  # at a tie, `small` is too large instead
            changes_in_steps[k] &= bool(is_resolved.any() and is_too_small.sum() > 0.5 * is_resolved.sum())
    for label, in_steps in zip(result_labels(baseline), changes_in_steps, strict=True):
        if in_steps:
            text = f"expected the {label} to be computed in float64; it changes in steps, as if rounded to fewer digits"
            raise baseline.problem.failure("float64 precision", text)


def check_float32_accuracy(
    baseline: Baseline, has_domain: bool, magnitudes: Sequence[float] = (), factor: float = 1.0
) -> bool:
    """Compare float32 results with float64 results at the same inputs, which float32 represents exactly.

    The accepted difference is several times the change that rounding the inputs causes in float64. This change measures
    how well-conditioned the function is at this point.

    Args:
        has_domain: whether a domain is declared; float32 results must then be finite within it.
        magnitudes: the magnitudes of the output and the gradients at the given inputs. A smaller result gets the
            same accepted difference as a result of this magnitude.
        factor: multiplies the accepted difference.

    Returns False if no comparison was possible.
    """
    problem = replace(baseline.problem, name=f"{baseline.problem.name}, inputs cast to float32")
    arrays = [npx.to_host(a) for a in problem.arrays]
    if not arrays or any(a.dtype.name != "float64" for a in arrays) or baseline.y.dtype.name != "float64":
        return False
    narrow = [a.astype("float32") for a in arrays]
    if not all(npx.isfinite(a).all() for a in narrow):
        return False

    with floating_point_warnings_ignored():
        try:
            output, leaves = problem.output_and_leaves(list(map(npx.from_host, narrow)))
            y = npx.to_host(output.data).copy()
            computed = [y, *problem.protected_gradients(output, leaves, baseline.c.astype(y.dtype))]
            if not (has_domain or npx.isfinite(computed[0]).all()):
                return False
        except REJECTIONS:
            return False
        if computed[0].dtype.name != "float32":
            raise problem.failure("dtype", f"expected a float32 output for float32 inputs; got {computed[0].dtype}")
        wide = problem.with_arrays([npx.from_host(a.astype("float64")) for a in narrow])
        y, gradients = wide.output_and_gradients(baseline.c)
        exact = [y, *gradients]
        sensitivity = [npx.zeros_like(x) for x in exact]
        sizes = [float(abs(a[npx.isfinite(a)]).max(initial=0.0)) for a in exact]
        term_size = 0.1 * max([float(abs(baseline.c).max(initial=0.0)), *sizes[1:]])  # such terms may cancel
        sizes = [max(size, 0.1 if i == 0 else term_size, *magnitudes[i : i + 1]) for i, size in enumerate(sizes)]
        for trial in range(4):
            for label, a, b, s, size in zip(result_labels(baseline), exact, computed, sensitivity, sizes, strict=True):
                finite = npx.isfinite(a) & (abs(a) < 1e37)
                allowed = factor * (300 * FLOAT32_EPS * size + 30 * float(s.max(initial=0.0)))
                errors = npx.where(finite, abs(a - b), 0)
                has_many = (errors > allowed).sum() > MANY_ENTRIES * errors.size
                has_many |= factor == 1 and has_lost_digits(a, b, s / 2**trial, size)
                if has_many or not (errors <= MAX_EXCESS * allowed).all():
                    if trial < 3:  # first measure how much rounding the inputs changes the result
                        break
                    raise accuracy_failure(problem, "float32 accuracy", label, a, b, errors, allowed)
            else:
                return True
            for k in range(2 + 4 * trial):
                rounded = rounded_results(wide, baseline.c, FLOAT32_EPS * 2**trial, sample=100 * trial + k)
                for s, a, b in zip(sensitivity, exact, rounded, strict=True):
                    change = abs(a - b)
                    npx.copyto(s, npx.maximum(s, npx.where(change == change, change, npx.inf)))
    return True


def has_lost_digits(exact: Array, computed: Array, sensitivity: Array, size: float) -> bool:
    """Return whether most entries of a float32 result are only as accurate as float16.

    Args:
        sensitivity: the change of each entry that rounding the inputs causes.
        size: the magnitude of the largest entry, or of terms that cancel. Smaller entries may differ by the
            rounding error of a number of this size.
    """
    counted = npx.isfinite(exact) & (abs(exact) > 1e-3 * size)
    allowed = 200 * FLOAT32_EPS * abs(exact) + 30 * sensitivity + 8 * FLOAT32_EPS * size
    is_inaccurate = abs(exact - computed)[counted] > allowed[counted]
    return bool(is_inaccurate.size >= 4 and is_inaccurate.mean() > 0.5)


def check_16_bit_accuracy(baseline: Baseline, dtype: str) -> None:
    """Check that gradients in a 16-bit dtype have a few correct digits, if they and the output are finite.

    bfloat16 is tried if ml_dtypes, which adds it to NumPy, is installed.
    """
    problem = baseline.problem
    arrays = [npx.to_host(a) for a in problem.arrays]
    if not arrays or any(a.dtype.name != "float64" for a in arrays) or baseline.y.dtype.name != "float64":
        return
    if not all(1e-2 <= abs(a).max(initial=0.0) <= 30 for a in arrays):  # larger inputs soon exceed the range of float16
        return
    failure: CheckError | GradientError | None = None
    try:
        with floating_point_warnings_ignored():
            narrow = [a.astype(npx.precision.dtype_named(dtype)) for a in arrays]
            output, leaves = problem.output_and_leaves(list(map(npx.from_host, narrow)))
            y = npx.to_host(output.data).copy()
            if y.dtype.name != dtype or not npx.isfinite(y).all():
                return
            computed = [y, *problem.gradients(output, leaves, baseline.c.astype(dtype))]
            wide = problem.with_arrays([npx.from_host(a.astype("float64")) for a in narrow])
            y, gradients = wide.output_and_gradients(baseline.c)
            exact = [y, *gradients]
            changes = [0.0 for _ in exact]
            for sample in range(9):  # first measure how much rounding the inputs changes the result
                unit = NARROW[dtype].eps * (1 if sample == 0 else 4)
                for k, (z, a) in enumerate(zip(rounded_results(wide, baseline.c, unit, sample), exact, strict=True)):
                    changes[k] = max(changes[k], float(abs(z - a).max(initial=0.0)))
                failure = failure_in_16_bits(baseline, dtype, exact, computed, changes)
                if failure is None:
                    return
    except (AttributeError, RuntimeError, GradientError, *REJECTIONS):  # for example, for a gradient in a wider dtype
        return
    if failure is not None:
        raise failure


def rounded_results(problem: Problem, c: Array, unit: float, sample: int) -> list[Array]:
    """Return output and gradients for inputs whose entries are perturbed by a relative amount of up to `unit`."""
    arrays = []
    for i, a in enumerate(map(npx.to_host, problem.arrays)):
        noise = npx.to_host(npx.random.uniform(npx.Key(sample, 11, i), a.shape, "float64", -1.0, 1.0))
        arrays.append(npx.from_host(a * (1 + unit * noise)))
    y, gradients = problem.with_arrays(arrays).output_and_gradients(c)
    return [y, *gradients]


def failure_in_16_bits(
    baseline: Baseline, dtype: str, exact: list[Array], computed: list[Array], changes: list[float]
) -> CheckError | GradientError | None:
    """Return an error if many entries of a result differ from the float64 result, otherwise None.

    Args:
        exact, computed: the results in float64 and in the 16-bit dtype.
        changes: how much each result changes if the inputs are rounded.
    """
    term_size = float(abs(baseline.c).max(initial=0.0))  # terms of this size may cancel
    rule, _, fraction, factor = NARROW[dtype]
    for label, a, b, change in zip(result_labels(baseline), exact, computed, changes, strict=True):
        allowed = fraction * max(term_size, float(abs(a).max(initial=0.0))) + factor * change
        with floating_point_warnings_ignored():
            errors = npx.where(abs(a) < 1e4, abs(a - b.astype("float64")), 0)
        if (errors > allowed).sum() > MANY_ENTRIES * errors.size or not npx.isfinite(errors).all():
            return accuracy_failure(baseline.problem, rule, label, a, b, errors, allowed)
    return None


def accuracy_failure(
    problem: Problem, rule: str, label: str, exact: Array, computed: Array, errors: Array, allowed: float
) -> CheckError | GradientError:
    """Return the error for a result whose differences from float64 (`errors`) exceed `allowed`."""
    dtype = rule.split()[0]
    k = int(npx.argmax(npx.where(errors == errors, errors, npx.inf)))
    index = tuple(map(int, npx.unravel_index(k, errors.shape)))
    return problem.failure(
        rule,
        f"expected the {label} in {dtype} to be close to that in float64, {float(exact[index])!r}; got "
        f"{float(computed[index])!r} at {index}, where {dtype} rounding explains {allowed:.3g}",
    )
