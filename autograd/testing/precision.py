"""The rules of precision: float64 is float64 all the way, and float32 as exact as float32 can be."""

from collections.abc import Sequence

import npx
from autograd.testing.problem import REFUSALS, quiet
from autograd.testing.rules import Truth, back, run
from npx import Array


def keeps_precision(truth: Truth) -> None:
    """float64 is float64 all the way: moved by 1e-10 of its size, output and gradients move as their slopes say.

    Rounded to float32 on the way, they would not move at all, or by a whole step.
    """
    arrays, here = [npx.to_host(a) for a in truth.problem.arrays], [truth.y, *truth.gradients]
    if {x.dtype.name for x in (*arrays, *here)} != {"float64"}:
        return
    largest = max(1.0, *(float(abs(a[npx.isfinite(a)]).max(initial=0.0)) for a in (*arrays, truth.y)))
    rounding = [npx.host.full(truth.y.shape, 2e-14 * largest, "float64")]  # also of 1 + tiny
    terms = float(abs(truth.c).max(initial=0.0))  # that may cancel
    rounding += [npx.host.full(g.shape, 1e-13 * float(abs(g).max(initial=terms)), "float64") for g in truth.gradients]
    labels = ["output", *(f"gradient of {label}" for label in truth.problem.labels)]
    in_steps = [True] * len(here)
    for trial in range(2):
        keys = [npx.Key(trial, 9, i) for i in range(len(arrays))]
        moves = [
            a * npx.to_host(npx.random.uniform(key, a.shape, "float64", 0.5, 1.5))
            for a, key in zip(arrays, keys, strict=True)
        ]
        rates = []
        for t in (1e-10, 1e-6, 1e-5):
            beside = truth.problem.at([npx.from_host(a + t * m) for a, m in zip(arrays, moves, strict=True)])
            y, gradients = run(truth, beside, truth.c)
            rates.append([(there - x) / t for there, x in zip((y, *gradients), here, strict=True)])
        for k, (small, middle, large, unsure) in enumerate(zip(*rates, rounding, strict=True)):
            straight = abs(large - middle) <= 0.3 * abs(large)  # finite, and no turning point
            told = npx.isfinite(small) & straight & (abs(large) * 1e-10 > unsure)
            wrong = told & (abs(small) < 0.5 * abs(large))  # what jumps, at a tie, moves by more
            in_steps[k] &= bool(told.any() and wrong.sum() > 0.5 * told.sum())
    for label, steps in zip(labels, in_steps, strict=True):
        if steps:
            what = f"expected the {label} to be computed in float64; it moves in steps, as if of fewer digits"
            truth.refuse("precision", what)


def float32(truth: Truth, declared: bool, least: Sequence[float] = (), loose: float = 1.0) -> bool:
    """In float32 the results are as near to those in float64 as float32 can have them; whether it could be compared.

    Numbers that float32 has are computed with in both. What rounding them once would do to the result in float64 is
    allowed, several times over: that is how well-conditioned the function is there. `least`: what output and gradients
    are as large as elsewhere; `loose`: how much more is allowed.
    """
    eps, host = 1.2e-7, [npx.to_host(a) for a in truth.problem.arrays]
    if not host or any(a.dtype.name != "float64" for a in host) or truth.y.dtype.name != "float64":
        return False
    narrow = [a.astype("float32") for a in host]
    if not all(npx.isfinite(a).all() for a in narrow):
        return False

    def results(arrays: list[Array]) -> list[Array]:
        output, leaves = truth.problem.run(list(map(npx.from_host, arrays)))
        y = npx.to_host(output.data).copy()
        return [y, *back(truth, output, leaves, truth.c.astype(y.dtype))]

    with quiet():
        try:
            single = results(narrow)
            if not (declared or npx.isfinite(single[0]).all()):
                return False
        except REFUSALS:
            return False
        if single[0].dtype.name != "float32":
            truth.refuse("dtype", f"expected float32 from float32 inputs; got {single[0].dtype}")
        wide = [a.astype("float64") for a in narrow]
        right = results(wide)
        spread = [npx.zeros_like(x) for x in right]
        labels = ["output", *(f"gradient of {label}" for label in truth.problem.labels)]
        sizes = [float(abs(a[npx.isfinite(a)]).max(initial=0.0)) for a in right]
        terms = 0.1 * max([float(abs(truth.c).max(initial=0.0)), *sizes[1:]])  # that may cancel
        sizes = [max(size, 0.1 if i == 0 else terms, *least[i : i + 1]) for i, size in enumerate(sizes)]
        for trial in range(4):
            for label, a, b, s, size in zip(labels, right, single, spread, sizes, strict=True):
                finite = npx.isfinite(a) & (abs(a) < 1e37)
                allowed = loose * (300 * eps * size + 30 * float(s.max(initial=0.0)))
                off = npx.where(finite, abs(a - b), 0)
                # A few entries may be differences of much larger numbers; digits that are lost on the way miss in many.
                many = (off > allowed).sum() > 0.25 * off.size
                if many or not (off <= 100 * allowed).all():
                    if trial < 3:  # see first how far rounding of the inputs moves it
                        break
                    worst = npx.unravel_index(int(npx.argmax(npx.where(off == off, off, npx.inf))), off.shape)
                    truth.refuse(
                        "float32",
                        f"expected the {label} in float32 near that in float64; got {b[worst]!r} for {a[worst]!r} at "
                        f"{tuple(map(int, worst))}, where {allowed:.3g} would be float32's own rounding",
                    )
            else:
                return True
            for k in range(2 + 4 * trial):
                key = [npx.Key(k, 7 + trial, i) for i in range(len(wide))]
                moved = [
                    a * (1 + eps * 2**trial * npx.to_host(npx.random.uniform(key[i], a.shape, "float64", -1.0, 1.0)))
                    for i, a in enumerate(wide)
                ]
                for s, a, b in zip(spread, right, results(moved), strict=True):
                    off = abs(a - b)
                    npx.copyto(s, npx.maximum(s, npx.where(off == off, off, npx.inf)))
    return True
