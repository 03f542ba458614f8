"""Is a gradient right? Compare it with numeric slopes, and say which entry is wrong.

For a function f and a fixed random c, backward gives the gradient of phi(x) = sum(c * f(x)). Moving x along a direction
d changes phi at the rate (gradient . d), which `slopes.py` measures with a bound on its error. Directions are single
entries, where there are few, or random ones through all arrays at once, which an error in any entry shows in.

Where phi has a kink there is no gradient to compare with, but a range. Moved together, entries that tie stay tied:
along that direction there is a slope again, and the gradient is held to it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing.problem import (
    REFUSALS,
    GradientError,
    NotFinite,
    Problem,
    Report,
    forward,
    gradients_of,
    nodes,
    quiet,
    refuse_without_floats,
)  # fmt: skip
from autograd.testing.slopes import EPS, LEVELS, RTOL, STEP, Scale, Verdict, judge, noise, on_a_stair
from autograd.testing.writing import literal, reproduction
from npx import Array

SHOWN = 64  # entries up to which gradients are printed whole
MOST = 1500  # entries up to which each is moved alone
SAMPLED = 12  # of more: so many of them, and
DIRECTIONS = 3  # random ones through all
SURE = 3  # wrong entries after which others are only shown beside their slopes


def gradcheck(
    function: Callable[..., Tensor],
    *inputs: Any,
    directions: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `function(*inputs, **options)` with respect to its floating inputs, at these inputs.

    inputs: arrays or Tensors, float64 preferred; integers, booleans and everything else are passed on as they are.
    directions None: every entry (of more than MOST a sample, and random directions); k: k random directions through all
    inputs at once, then, if one is wrong, the entries. rtol, atol: what is allowed beside the bound of the numeric
    slope; for each dtype they have a default that fits its rounding.
    Raises GradientError with both gradients side by side and a line to reproduce it; TypeError for no floating input,
    or a function that returns no Tensor; ValueError for a function that is not the same twice, a value that is not
    finite, or a tolerance that the dtype cannot reach.
    """
    values = [x.data if isinstance(x, Tensor) else x for x in inputs]
    name = f"gradcheck: {getattr(function, '__name__', type(function).__name__)}"
    refuse_without_floats(name, values)
    problem = Problem(
        name,
        lambda given: function(*given, **options),
        values,
        reproduce=lambda at: reproduction("gradcheck", function, at.values, options),
    )
    report = Report()
    check_gradients(problem, report, directions, rtol, atol, seed)
    return report


class Checked:
    """The gradient of one problem, and slopes to compare it with."""

    def __init__(
        self, problem: Problem, report: Report, rtol: float | None, atol: float | None, seed: int, least: float = 0.0
    ) -> None:
        self.problem, self.report, self.seed = problem, report, seed
        self.arrays = [npx.to_host(a).copy() for a in problem.arrays]
        dtypes = {a.dtype.name for a in self.arrays}
        output, leaves = problem.run([npx.from_host(a.copy()) for a in self.arrays])
        lowest = next((d for d in (*dtypes, output.dtype.name) if d != "float64"), "float64")
        if lowest not in STEP:
            raise TypeError(f"{problem.name}: expected float64 or float32; got {lowest}; try .astype('float64')")
        if rtol is not None and rtol < RTOL[lowest] / 100:
            raise ValueError(
                f"{problem.name}: expected rtol of at least {RTOL[lowest] / 100:g} for {lowest}; got {rtol:g}; "
                "try .astype('float64') on the inputs"
            )
        self.y = npx.to_host(output.data).copy()
        here = self.y.astype("float64").reshape(-1)
        if not npx.isfinite(here).all():
            place = tuple(int(k[0]) for k in npx.nonzero(~npx.isfinite(npx.host.atleast_1d(self.y))))
            found = npx.host.atleast_1d(self.y)[place]
            raise NotFinite(f"{problem.name}: expected finite values; got {found} at {place}; try other inputs")
        self.c = npx.to_host(npx.random.normal(npx.Key(seed, 0, 0), self.y.shape, self.y.dtype))
        self.weights = self.c.astype("float64").reshape(-1)
        self.composed = len(nodes(output)) > 1
        self.gradients = gradients_of(problem, output, leaves, self.c)
        again = forward(problem, [npx.from_host(a.copy()) for a in self.arrays])
        if not npx.array_equal(here, again, equal_nan=True):
            raise ValueError(
                f"{problem.name}: expected the same output for the same input; got another; "
                "try giving its random numbers a fixed key (npx.Key, or `with npx.keyed(...)` inside the function)"
            )
        self.rounding: list[Array] | None = None
        self.refuted = 0  # entries found wrong
        # How far an array is moved: as far as its numbers are large.
        self.sizes = [float(abs(a[npx.isfinite(a)]).max(initial=0.0)) or 1.0 for a in self.arrays]
        self.largest = [
            n * float(abs(g[npx.isfinite(g)]).max(initial=0.0)) for g, n in zip(self.gradients, self.sizes, strict=True)
        ]
        with quiet():
            along = self.random(10**6)
            rounding = noise(self.outputs(along), here, lowest)
        self.scale = Scale(lowest, here, rounding, RTOL[lowest] if rtol is None else rtol, atol, least)
        with quiet():
            self.size = float(npx.host.linalg.norm(here * self.weights))

    def outputs(self, moves: dict[int, Array]) -> Callable[[float], Array]:
        """The output along a direction: NaN where there is none."""

        def at(t: float) -> Array:
            moved = [
                a + (t * self.sizes[i] * moves[i]).astype(a.dtype) if i in moves else a.copy()
                for i, a in enumerate(self.arrays)
            ]
            try:
                y = forward(self.problem, list(map(npx.from_host, moved)))
            except REFUSALS:  # outside of its domain
                y = npx.host.full(self.y.size, npx.nan, "float64")
            return y if y.size == self.y.size else npx.host.full(self.y.size, npx.nan, "float64")

        return at

    def random(self, number: int) -> dict[int, Array]:
        """A random direction through all arrays."""
        return {
            i: npx.to_host(npx.random.normal(npx.Key(self.seed, 1 + number, i), a.shape, "float64"))
            for i, a in enumerate(self.arrays)
        }

    def along(self, moves: dict[int, Array], step: float = 0.0, levels: int = LEVELS) -> tuple[float, Verdict]:
        """The analytic slope along a direction, and what is to be said of it."""
        parts = [(self.gradients[i].astype("float64") * move, self.sizes[i]) for i, move in moves.items()]
        analytic = sum(size * float(npx.sum(npx.where(moves[i] != 0, part, 0)))
                       for i, (part, size) in zip(moves, parts, strict=True))  # fmt: skip
        # An entry's gradient is known no better than the largest ones allow: their rounding reaches it.
        largest = max((self.largest[i] * float(abs(moves[i]).max(initial=0.0)) for i in moves), default=0.0)
        slack = self.scale.rtol * (0.1 * largest + 0.01 * max(self.largest, default=0.0))
        # And what rounding of numbers as large as the inputs leaves, where they cancel, is no slope.
        slack += 4e3 * EPS[self.scale.dtype] * max(self.sizes) * float(abs(self.weights).max(initial=0.0))
        scale = replace(self.scale, slack=slack)
        verdict = judge(self.outputs(moves), self.weights, analytic, scale, step or STEP[self.scale.dtype], levels)
        if verdict.what == "wrong" and abs(analytic - verdict.numeric) <= 10 * self.rounding_along(moves):
            verdict = verdict._replace(what="unjudged", reason="the gradient itself is known to fewer digits")
        reach = max(self.sizes[i] * float(abs(moves[i]).max(initial=0.0)) for i in moves)
        if verdict.what == "wrong" and reach > 1 and self.scale.dtype == "float64":
            if on_a_stair(self.outputs(moves), self.weights, analytic, verdict.numeric, self.scale.here):
                verdict = verdict._replace(what="unjudged", reason="it moves in stairs, which the steps pass over")
        self.report.compared += 1
        if verdict.what == "right":
            unit = self.scale.tolerance(self.weights, analytic, verdict.numeric) / self.scale.rtol
            self.report.worst = max(self.report.worst, abs(analytic - verdict.numeric) / (unit or 1.0))
        return analytic, verdict

    def rounding_along(self, moves: dict[int, Array]) -> float:
        """How far the rounding of inputs moves the gradient along a direction, where it does so by little.

        By much it does at a tie, which is broken, and that is no matter of digits; but where the output is lost to
        rounding too (a nearly singular matrix is solved with), it is. Where the output keeps its digits a gradient has
        to as well.
        """
        lost = self.scale.noise.max(initial=0.0) / (abs(self.scale.here).max(initial=0.0) or 1.0)
        if lost <= 1e3 * EPS[self.scale.dtype]:
            return 0.0
        if self.rounding is None:
            self.rounding = [npx.zeros_like(g, dtype="float64") for g in self.gradients]
            for way in (-2.0, 1.0, 2.0):
                signs = {k: way * npx.sign(move) for k, move in self.random(10**6 + 1).items()}
                beside = self.moved_by(
                    signs, 1.0, {k: EPS[self.scale.dtype] * abs(a) for k, a in enumerate(self.arrays)}
                )
                for total, g, other in zip(
                    self.rounding, self.gradients, beside.gradients if beside else [], strict=False
                ):
                    off = abs(g.astype("float64") - other)
                    small = (lost > 1e-3) | (off <= 1e-2 * abs(g[npx.isfinite(g)]).max(initial=0.0))
                    npx.copyto(total, npx.maximum(total, npx.where(small, off, 0)))
        return sum(self.sizes[i] * float(npx.sum(self.rounding[i] * abs(move))) for i, move in moves.items())

    def excused(self, moves: dict[int, Array], verdict: Verdict) -> bool:
        """Whether the gradient, wrong at this very point, is one of those around it.

        Where entries tie, the gradient of one way to break the tie is as good as any (that of a sort is one of its
        permutations), though moving one entry alone shows another. And in a composition each part takes its own value
        at its kink (relu(x) - relu(-x) / 10 gives 0 at 0, beside 1 and 1/10), which no part can mend; an operation with
        one vjp has no such excuse, nor a composition that has a slope there.
        """
        apart = 1e-4 / max(a.size for a in self.arrays)
        if any(beside.along(moves, apart / 4)[1].what in ("right", "kink") for beside in self.ways):
            return True
        if not (self.composed and verdict.low < verdict.high):
            return False
        for t in (-0.011, 0.013):
            beside = self.moved_by(moves, t)
            if not beside or beside.along(moves)[1].what not in ("right", "kink"):
                return False
        return True

    @cached_property
    def ways(self) -> list["Checked"]:
        """The gradients where ties are broken, in order and in the other one, if they are the same as here."""
        numbers = [npx.host.arange(1.0, a.size + 1).reshape(a.shape) / max(1, a.size) for a in self.arrays]
        found = [self.moved_by({i: way * x for i, x in enumerate(numbers)}, 1e-4) for way in (1.0, -1.0)]
        return [beside for beside in found if beside and all(map(self.like, self.gradients, beside.gradients))]

    def moved_by(self, moves: dict[int, Array], t: float, sizes: Any = None) -> "Checked | None":
        """The gradients beside this point, if there are any."""
        sizes = sizes or self.sizes
        arrays = [a + (t * sizes[i] * moves[i]).astype(a.dtype) if i in moves else a for i, a in enumerate(self.arrays)]
        try:
            scale = self.scale
            return Checked(self.problem.at(arrays), Report(), scale.rtol, scale.atol, self.seed, scale.least)
        except REFUSALS:
            return None

    @staticmethod
    def like(a: Array, b: Array) -> bool:
        """Whether two gradients are nearly the same."""
        return bool((abs(a - b) <= 1e-2 * abs(a).max(initial=0.0)).all())

    def entry(self, i: int, position: int) -> tuple[tuple[int, ...], float, Verdict]:
        """The index, analytic slope and verdict of one entry of array i; slopes in units of the entry."""
        index = tuple(int(k) for k in npx.unravel_index(position, self.arrays[i].shape))
        move = npx.zeros_like(self.arrays[i], dtype="float64")
        size = abs(float(self.arrays[i][index]))  # 0 has none: that of the others
        move[index] = size / self.sizes[i] if 1e-12 < size / self.sizes[i] < npx.inf else 1
        sure = self.refuted >= SURE
        _, verdict = self.along({i: move}, levels=2 if sure else LEVELS)
        if verdict.what == "wrong":
            # Of entries that tie another may be moved in its place; together they are held to the slope they have.
            tied = verdict.low < verdict.high and (self.arrays[i] == self.arrays[i][index]).sum() > 1
            finite = npx.isfinite(self.gradients[i][index])
            if finite and (tied or (not sure and self.excused({i: move}, verdict))):
                verdict = verdict._replace(what="kink")
            else:
                self.refuted += 1
        numeric, bound, low, high = (x / (self.sizes[i] * float(move[index])) for x in verdict[1:5])
        verdict = Verdict(verdict.what, numeric, bound, low, high, verdict.reason)
        where = f"{self.problem.labels[i]} {index}"
        if verdict.what == "kink":
            self.report.kinks.append(f"{where}: kink, one-sided slopes differ by {verdict.high - verdict.low:.3g}")
        elif verdict.what == "unjudged":
            self.report.unjudged.append(f"{where}: {verdict.reason}")
        return index, float(self.gradients[i][index]), verdict

    def check_entries(self, most: int = MOST) -> None:
        """Raise for an entry whose gradient is wrong, of all, or if there are more than `most` of a sample."""
        total = sum(a.size for a in self.arrays)
        tied: set[float] = set()
        for i, a in enumerate(self.arrays):
            positions = range(a.size)
            if total > most:
                positions = range(0, a.size, max(1, -(-a.size * len(self.arrays) // SAMPLED)))
            numeric, wrong = npx.host.full(a.shape, npx.nan, "float64"), []
            for position in positions:
                index, analytic, verdict = self.entry(i, position)
                numeric[index] = verdict.numeric
                if verdict.what == "kink":
                    tied.add(float(a[index]))
                elif verdict.what == "wrong":
                    off = abs(analytic - verdict.numeric)
                    wrong.append((off if off == off else npx.inf, index, verdict))
            if wrong:
                self.fail(i, numeric, wrong)
        for value in sorted(tied):
            self.check_tied(value)

    def check_tied(self, value: float) -> None:
        """Compare along the direction that moves every entry equal to `value`, of all inputs, together."""
        moves = {i: (a == value).astype("float64") / self.sizes[i] for i, a in enumerate(self.arrays)}
        analytic, verdict = self.along(moves)
        if verdict.what == "wrong" and not self.excused(moves, verdict):
            self.refuse(
                "tie",
                f"wrong gradient where entries tie: moving all that equal {value!r} together\n"
                f"    analytic   {analytic!r}\n    numeric    {verdict.numeric!r}",
            )

    def check_directions(self, number: int) -> None:
        """Raise where the gradient is wrong along one of some random directions."""
        for k in range(number):
            moves = self.random(k)
            analytic, verdict = self.along(moves)
            if verdict.what == "unjudged":
                self.report.unjudged.append(f"random direction {k}: {verdict.reason}")
            at_kink = verdict.low < verdict.high or self.composed  # where parts may have kinks that do not show
            inputs = self.arrays[: len(self.problem.floats)]
            ties = at_kink and any(npx.unique(a).size < a.size for a in inputs)
            if verdict.what == "wrong" and not ties and not self.excused(moves, verdict):
                self.name_entry(moves)
                self.refuse(
                    "slope",
                    f"wrong along random direction {k}\n    analytic   {analytic!r}\n"
                    f"    numeric    {verdict.numeric!r}, known to {verdict.bound:.3g}",
                )

    def name_entry(self, moves: dict[int, Array]) -> None:
        """Raise for an entry that is wrong, where the gradient is wrong along `moves`; none may be, alone."""
        if sum(a.size for a in self.arrays) <= SHOWN:
            self.check_entries()
            return
        ends = npx.host.cumsum([0, *(a.size for a in self.arrays)])
        flat = npx.concatenate([moves[i].reshape(-1) for i in moves])
        low, high = 0, flat.size
        while high - low > 1:  # of two halves one is wrong
            middle = (low + high) // 2
            for start, stop in ((low, middle), (middle, high)):
                part = npx.where((npx.host.arange(flat.size) >= start) & (npx.host.arange(flat.size) < stop), flat, 0)
                own = {i: part[ends[i] : ends[i + 1]].reshape(a.shape) for i, a in enumerate(self.arrays)}
                if self.along(own)[1].what == "wrong":
                    low, high = start, stop
                    break
            else:
                return
        i = int(npx.host.searchsorted(ends, low, side="right")) - 1
        index, analytic, verdict = self.entry(i, low - int(ends[i]))
        if verdict.what == "wrong":
            numeric = npx.host.full(self.arrays[i].shape, npx.nan, "float64")
            numeric[index] = verdict.numeric
            self.fail(i, numeric, [(abs(analytic - verdict.numeric), index, verdict)])

    def refuse(self, rule: str, text: str) -> None:
        lines = [f"{self.problem.name}: {text}", f"rule: {rule}"]
        line = self.problem.reproduce(self.problem.at(self.arrays))
        error = GradientError("\n".join([*lines, f"reproduce: {line}"] if line else lines))
        error.rule = rule
        raise error

    def fail(self, i: int, numeric: Array, wrong: list[tuple[float, tuple[int, ...], Verdict]]) -> None:
        """Say that array i's gradient is wrong in some entries: (difference, index, verdict) of each."""
        worst, index, verdict = max(wrong, key=lambda each: each[0])
        a, g, label = self.arrays[i], self.gradients[i], self.problem.labels[i]
        kink = verdict.low < verdict.high
        sides = f"from {verdict.low!r} to {verdict.high!r}, the slopes to its sides"
        lines = [
            f"wrong gradient of {label}, {a.shape} {a.dtype}, in {len(wrong)} of {a.size} entries; most at {index}:",
            f"    analytic   {float(g[index])!r}",
            f"    numeric    {sides if kink else repr(verdict.numeric)}",
            f"    difference {worst:.3g}; the numeric slope is known to {verdict.bound:.2g}",
        ]
        if a.size <= SHOWN:
            for other, array in zip(self.problem.labels, self.arrays, strict=True):
                lines.append(f"{other} = {literal(array)}")
            lines.append(f"gradient of {label}, analytic | numeric:")
            left, right = str(g).splitlines(), str(numeric.astype(g.dtype)).splitlines()
            width = max(map(len, left))
            lines += [f"    {x:<{width}}  |  {y}" for x, y in zip(left, right, strict=False)]
        finite = npx.isfinite(g[index])
        self.refuse("kink" if kink and finite else "slope" if finite else "finite", "\n".join(lines))


def check_gradients(
    problem: Problem,
    report: Report,
    directions: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    most: int = MOST,
    least: float = 0.0,
) -> Checked:
    """Compare the gradients of a problem with slopes, of which those below `least` are none; returns them."""
    checked = Checked(problem, report, rtol, atol, seed, least)
    with quiet():
        if directions is None:
            checked.check_entries(most)
        if directions or sum(a.size for a in checked.arrays) > most:
            checked.check_directions(directions or DIRECTIONS)
    return checked
