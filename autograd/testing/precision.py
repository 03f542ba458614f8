"""Rules of precision: float64 is float64 throughout; float32 and float16 are as accurate as they can be."""

from collections.abc import Sequence

import npx
from autograd.testing.expected import Expected
from autograd.testing.problem import Problem, quiet
from autograd.testing.report import REJECTIONS, CheckError, GradientError
from npx import Array

FLOAT32_EPS = 1.2e-7
FLOAT16_EPS = 9.8e-4


def result_labels(expected: Expected) -> list[str]:
    """Return the names of the output and of the gradients."""
    return ["output", *(f"gradient of {label}" for label in expected.problem.labels)]


def float64_precision(expected: Expected) -> None:
    """Inputs moved by 1e-10 of their size change output and gradients as larger moves predict.

    A result that is rounded to float32 on the way would not change, or by a whole unit in the last place of float32.
    """
    arrays, here = [npx.to_host(a) for a in expected.problem.arrays], [expected.y, *expected.gradients]
    if {x.dtype.name for x in (*arrays, *here)} != {"float64"}:
        return
    largest = max(1.0, *(float(abs(a[npx.isfinite(a)]).max(initial=0.0)) for a in (*arrays, expected.y)))
    rounding = [npx.host.full(expected.y.shape, 2e-14 * largest, "float64")]  # also of 1 + tiny
    terms = float(abs(expected.c).max(initial=0.0))  # that may cancel
    rounding += [
        npx.host.full(g.shape, 1e-13 * float(abs(g).max(initial=terms)), "float64") for g in expected.gradients
    ]
    moves_in_steps = [True] * len(here)
    for trial in range(2):
        moves = [
            a * npx.to_host(npx.random.uniform(npx.Key(trial, 9, i), a.shape, "float64", 0.5, 1.5))
            for i, a in enumerate(arrays)
        ]
        rates = []
        for t in (1e-10, 1e-6, 1e-5):
            neighbor = expected.problem.at([npx.from_host(a + t * m) for a, m in zip(arrays, moves, strict=True)])
            y, gradients = neighbor.evaluate(expected.c)
            rates.append([(new - old) / t for new, old in zip((y, *gradients), here, strict=True)])
        for k, (small, middle, large, error) in enumerate(zip(*rates, rounding, strict=True)):
            is_straight = abs(large - middle) <= 0.3 * abs(large)  # finite, and no extremum
            resolved = npx.isfinite(small) & is_straight & (abs(large) * 1e-10 > error)
            too_small = resolved & (abs(small) < 0.5 * abs(large))  # a jump at a tie would be too large instead
            moves_in_steps[k] &= bool(resolved.any() and too_small.sum() > 0.5 * resolved.sum())
    for label, in_steps in zip(result_labels(expected), moves_in_steps, strict=True):
        if in_steps:
            text = f"expected the {label} to be computed in float64; it changes in steps, as if rounded to fewer digits"
            raise expected.problem.failure("float64 precision", text)


def float32_accuracy(expected: Expected, has_domain: bool, least: Sequence[float] = (), loose: float = 1.0) -> bool:
    """Compare results in float32 with those in float64 at the same, float32-representable inputs.

    The accepted difference is several times the change that rounding the inputs causes in float64, which measures how
    well-conditioned the function is at this point.

    has_domain: whether a domain is declared, in which float32 results have to be finite too. least: typical sizes of
    output and gradients. loose: multiplies the accepted difference. Returns False where no comparison was possible.
    """
    problem, host = expected.problem, [npx.to_host(a) for a in expected.problem.arrays]
    if not host or any(a.dtype.name != "float64" for a in host) or expected.y.dtype.name != "float64":
        return False
    narrow = [a.astype("float32") for a in host]
    if not all(npx.isfinite(a).all() for a in narrow):
        return False

    def results(arrays: list[Array]) -> list[Array]:
        output, leaves = problem.run(list(map(npx.from_host, arrays)))
        y = npx.to_host(output.data).copy()
        return [y, *problem.protected_gradients(output, leaves, expected.c.astype(y.dtype))]

    with quiet():
        try:
            single = results(narrow)
            if not (has_domain or npx.isfinite(single[0]).all()):
                return False
        except REJECTIONS:
            return False
        if single[0].dtype.name != "float32":
            raise problem.failure("dtype", f"expected a float32 output for float32 inputs; got {single[0].dtype}")
        wide = [a.astype("float64") for a in narrow]
        double = results(wide)
        sensitivity = [npx.zeros_like(x) for x in double]
        sizes = [float(abs(a[npx.isfinite(a)]).max(initial=0.0)) for a in double]
        terms = 0.1 * max([float(abs(expected.c).max(initial=0.0)), *sizes[1:]])  # that may cancel
        sizes = [max(size, 0.1 if i == 0 else terms, *least[i : i + 1]) for i, size in enumerate(sizes)]
        for trial in range(4):
            for label, a, b, s, size in zip(result_labels(expected), double, single, sensitivity, sizes, strict=True):
                finite = npx.isfinite(a) & (abs(a) < 1e37)
                allowed = loose * (300 * FLOAT32_EPS * size + 30 * float(s.max(initial=0.0)))
                off = npx.where(finite, abs(a - b), 0)
                # A few entries may be differences of much larger numbers; lost digits show in many entries.
                many = (off > allowed).sum() > 0.25 * off.size
                if many or not (off <= 100 * allowed).all():
                    if trial < 3:  # first measure how much rounding of the inputs changes the result
                        break
                    raise accuracy_failure(problem, "float32 accuracy", label, a, b, off, allowed)
            else:
                return True
            for k in range(2 + 4 * trial):
                unit = FLOAT32_EPS * 2**trial
                noise = [npx.random.uniform(npx.Key(k, 7 + trial, i), a.shape, "float64", -1.0, 1.0)
                         for i, a in enumerate(wide)]  # fmt: skip
                rounded = [a * (1 + unit * npx.to_host(x)) for a, x in zip(wide, noise, strict=True)]
                for s, a, b in zip(sensitivity, double, results(rounded), strict=True):
                    off = abs(a - b)
                    npx.copyto(s, npx.maximum(s, npx.where(off == off, off, npx.inf)))
    return True


def float16_accuracy(expected: Expected) -> None:
    """Where float16 inputs give a finite output and gradients in float16, the gradients have a few correct digits."""
    problem, host = expected.problem, [npx.to_host(a) for a in expected.problem.arrays]
    if not host or any(a.dtype.name != "float64" for a in host) or expected.y.dtype.name != "float64":
        return
    if not all(1e-2 <= abs(a).max(initial=0.0) <= 30 for a in host):  # others soon exceed the range of float16
        return
    narrow = [a.astype("float16") for a in host]
    try:
        with quiet():
            output, leaves = problem.run(list(map(npx.from_host, narrow)))
            y = npx.to_host(output.data).copy()
            if y.dtype.name != "float16" or not npx.isfinite(y).all():
                return
            single = [y, *problem.gradients(output, leaves, expected.c.astype("float16"))]
            wide = [a.astype("float64") for a in narrow]
            waves = [npx.host.sin(npx.host.arange(1.0, a.size + 1)).reshape(a.shape) for a in wide]
            moved = [a * (1 + FLOAT16_EPS * wave) for a, wave in zip(wide, waves, strict=True)]
            pairs = [problem.at(list(map(npx.from_host, arrays))).evaluate(expected.c) for arrays in (wide, moved)]
            double, other = ([y, *gradients] for y, gradients in pairs)
    except (AttributeError, RuntimeError, GradientError, *REJECTIONS):  # also a gradient in a wider dtype
        return
    terms = float(abs(expected.c).max(initial=0.0))  # that may cancel
    for label, a, b, z in zip(result_labels(expected), double, single, other, strict=True):
        size = max(terms, float(abs(a).max(initial=0.0)))
        allowed = 100 * FLOAT16_EPS * size + 30 * float(abs(z - a).max(initial=0.0))
        off = npx.where(abs(a) < 1e4, abs(a - b), 0)
        if (off > allowed).sum() > 0.25 * off.size or not npx.isfinite(off).all():
            raise accuracy_failure(problem, "float16 accuracy", label, a, b, off, allowed)


def accuracy_failure(
    problem: Problem, rule: str, label: str, exact: Array, computed: Array, off: Array, allowed: float
) -> CheckError | GradientError:
    """Return the error for a result whose differences `off` from float64 exceed `allowed`."""
    dtype = rule.split()[0]
    k = int(npx.argmax(npx.where(off == off, off, npx.inf)))
    index = tuple(map(int, npx.unravel_index(k, off.shape)))
    return problem.failure(
        rule,
        f"expected the {label} in {dtype} to be close to that in float64, {float(exact[index])!r}; got "
        f"{float(computed[index])!r} at {index}, where {dtype} rounding explains {allowed:.3g}",
    )
