"""Compare analytic gradients with numerical derivatives, and report the wrong entries.

For a function f and a fixed random c, backward gives the gradient of phi(x) = sum(c * f(x)). Along a direction d, phi
has the derivative (gradient . d), which `numerical.py` estimates with a bound on the error. If there are few
entries, each is a separate direction; otherwise random directions through all arrays at once reveal an error in
any entry.

At a kink of phi there is no single gradient, but a range of acceptable values. Tied entries stay tied when they are
moved together, so phi has a derivative along that direction, with which the gradient is compared.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing.arguments import Arguments
from autograd.testing.conventions import Moves, Neighborhood
from autograd.testing.diagnosis import comparison, likely_cause, side_by_side
from autograd.testing.expected import Expected
from autograd.testing.numerical import EPS, LEVELS, RTOL, STEP, Scale, Verdict, judge, noise, on_a_stair
from autograd.testing.problem import Problem, nodes, quiet, require_floats
from autograd.testing.report import REJECTIONS, GradientError, NonFiniteError, Report
from autograd.testing.reproduction import literal, reproduction
from npx import Array

MAX_PRINTED = 64  # gradients with at most this many entries are printed in full
MAX_ENTRIES = 1500  # up to this many entries, each is perturbed separately
SAMPLED_ENTRIES = 12  # entries to perturb separately if there are more
DIRECTIONS = 3  # random directions through all arrays, in addition to sampled entries
MAX_CONFIRMED = 3  # wrong entries to confirm in full; the rest get a quick estimate for the printed table


def gradcheck(
    function: Callable[..., Tensor],
    *inputs: Any,
    directions: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `function(*inputs, **options)` with respect to its floating inputs.

    Args:
        function: takes Tensors in place of the floating inputs and returns one Tensor of any shape.
        inputs: arrays or Tensors, float64 preferred. Integers, booleans and other values are passed on unchanged.
        directions: None: compare every entry or, above 1,500 entries, a sample of entries and random directions. An
            integer: compare along that many random directions through all inputs, which is faster, and single entries
            only after a failure.
        rtol, atol: the relative and absolute tolerance, in addition to the error bound of the numerical derivative.
            None: a default for the dtype.
        seed: selects the weights c of the outputs and the random directions.
        options: passed on to `function`.

    Raises GradientError with both gradients side by side and a line that reproduces it. Raises TypeError if no input is
    floating-point or the function does not return a Tensor, and ValueError if the function is not deterministic,
    returns a non-finite value, or rtol is below what the dtype can resolve.
    """
    arguments, report = Arguments(inputs, options), Report()
    name = f"gradcheck: {getattr(function, '__name__', type(function).__name__)}"
    require_floats(name, arguments.values)
    problem = Problem(
        name,
        lambda values: arguments.adapt(function)(*values),
        arguments.values,
        reproduce=lambda at: reproduction("gradcheck", function, *arguments.restore(at.values)),
        names=arguments.names,
    )
    problem.constants = arguments.constants(problem, report.notes)
    check_gradients(problem, report, directions, rtol, atol, seed)
    return report


class GradientCheck:
    """The analytic gradient of one problem, and its comparison with numerical derivatives.

    Arguments: see `check_gradients`. Raises NonFiniteError, TypeError and ValueError like `gradcheck`.
    """

    def __init__(
        self, problem: Problem, report: Report, rtol: float | None, atol: float | None, seed: int, least: float = 0.0
    ) -> None:
        self.report, self.seed = report, seed
        self.arrays = [npx.to_host(a).copy() for a in problem.arrays]
        self.problem = problem.at(self.arrays)
        dtypes = {a.dtype.name for a in self.arrays}
        output, leaves = problem.run([npx.from_host(a.copy()) for a in self.arrays])
        lowest = next((d for d in (*dtypes, output.dtype.name) if d != "float64"), "float64")
        if lowest not in STEP:
            raise TypeError(
                f"{problem.name}: expected inputs in float64 or float32; got {lowest}; try .astype('float64')"
            )
        if rtol is not None and rtol < RTOL[lowest] / 100:
            raise ValueError(
                f"{problem.name}: expected an rtol of at least {RTOL[lowest] / 100:g} for {lowest}; got {rtol:g}; "
                "try .astype('float64') on the inputs"
            )
        self.y = npx.to_host(output.data).copy()
        here = self.y.astype("float64").reshape(-1)
        if not npx.isfinite(here).all():
            index = tuple(int(k[0]) for k in npx.nonzero(~npx.isfinite(npx.host.atleast_1d(self.y))))
            value = npx.host.atleast_1d(self.y)[index]
            raise NonFiniteError(f"{problem.name}: expected finite outputs; got {value} at {index}; try other inputs")
        self.c = npx.to_host(npx.random.normal(npx.Key(seed, 0, 0), self.y.shape, self.y.dtype))
        self.weights = self.c.astype("float64").reshape(-1)
        self.is_composed = len(nodes(output)) > 1
        self.gradients = problem.gradients(output, leaves, self.c)
        repeated = problem.value([npx.from_host(a.copy()) for a in self.arrays]).reshape(-1)
        # Some frameworks compute a function in another order when no input requires a gradient.
        rounding = 8 * EPS[lowest] * float(abs(here).max(initial=0.0))
        if not npx.host.allclose(here, repeated, rtol=0, atol=rounding, equal_nan=True):
            raise ValueError(
                f"{problem.name}: expected the same output for the same input; two calls differ; "
                "try giving its random numbers a fixed key (npx.Key, or `with npx.keyed(...)` inside the function)"
            )
        self.n_wrong = 0
        # the unit of the steps in each array
        self.sizes = [float(abs(a[npx.isfinite(a)]).max(initial=0.0)) or 1.0 for a in self.arrays]
        self.largest = [
            size * float(abs(g[npx.isfinite(g)]).max(initial=0.0))
            for g, size in zip(self.gradients, self.sizes, strict=True)
        ]
        with quiet():
            errors = noise(self.outputs(self.random_moves(10**6)), here, lowest)
        self.scale = Scale(lowest, here, errors, RTOL[lowest] if rtol is None else rtol, atol, least)

    @property
    def expected(self) -> Expected:
        """The output and gradients, for further comparisons."""
        return Expected(self.problem, self.y, self.c, self.gradients)

    # Directions

    def arrays_at(self, moves: Moves, t: float, sizes: list[float] | dict[int, Array] | None = None) -> list[Array]:
        """Return the arrays at distance t along a direction, in units of `sizes`."""
        units = self.sizes if sizes is None else sizes
        return [
            a + (t * units[i] * moves[i]).astype(a.dtype) if i in moves else a.copy() for i, a in enumerate(self.arrays)
        ]

    def outputs(self, moves: Moves) -> Callable[[float], Array]:
        """Return the output as a function of the distance along a direction; NaN where it is undefined."""

        def at(t: float) -> Array:
            undefined = npx.host.full(self.y.size, npx.nan, "float64")
            try:
                y = self.problem.value(list(map(npx.from_host, self.arrays_at(moves, t)))).reshape(-1)
            except REJECTIONS:  # outside the domain
                return undefined
            return y if y.size == self.y.size else undefined

        return at

    def random_moves(self, number: int) -> Moves:
        """Return a random direction through all arrays."""
        return {
            i: npx.to_host(npx.random.normal(npx.Key(self.seed, 1 + number, i), a.shape, "float64"))
            for i, a in enumerate(self.arrays)
        }

    def along(self, moves: Moves, step: float = 0.0, levels: int = LEVELS) -> tuple[float, Verdict]:
        """Return the analytic derivative along a direction, and the verdict on it."""
        parts = [(self.gradients[i].astype("float64") * move, self.sizes[i]) for i, move in moves.items()]
        analytic = sum(
            size * float(npx.sum(npx.where(moves[i] != 0, part, 0)))
            for i, (part, size) in zip(moves, parts, strict=True)
        )
        # The rounding errors of the largest entries can affect every entry of the gradient.
        largest = max((self.largest[i] * float(abs(moves[i]).max(initial=0.0)) for i in moves), default=0.0)
        slack = self.scale.rtol * (0.1 * largest + 0.01 * max(self.largest, default=0.0))
        # Inputs that cancel each other leave their rounding errors in the output.
        slack += 4e3 * EPS[self.scale.dtype] * max(self.sizes) * float(abs(self.weights).max(initial=0.0))
        scale = replace(self.scale, slack=slack)
        verdict = judge(self.outputs(moves), self.weights, analytic, scale, step or STEP[self.scale.dtype], levels)
        if verdict.kind == "wrong" and abs(analytic - verdict.numerical) <= 10 * self.rounding_along(moves):
            verdict = verdict._replace(kind="inconclusive", reason="rounding the inputs changes the gradient itself")
        reach = max(self.sizes[i] * float(abs(moves[i]).max(initial=0.0)) for i in moves)
        if verdict.kind == "wrong" and reach > 1 and self.scale.dtype == "float64":
            if on_a_stair(self.outputs(moves), self.weights, analytic, verdict.numerical, self.scale.here):
                reason = "the function is a staircase whose stairs are narrower than the step size"
                verdict = verdict._replace(kind="inconclusive", reason=reason)
        self.report.compared += 1
        if verdict.kind == "right":
            unit = self.scale.tolerance(self.weights, analytic, verdict.numerical) / self.scale.rtol
            self.report.worst = max(self.report.worst, abs(analytic - verdict.numerical) / (unit or 1.0))
        return analytic, verdict

    # Inconclusive cases

    def rounding_along(self, moves: Moves) -> float:
        """Return how much rounding of the inputs changes the analytic derivative along a direction.

        This is 0 unless the output loses digits to rounding as well (for example, when a linear system is nearly
        singular), because a gradient must be as accurate as its output. Large changes come from broken ties and are
        ignored.
        """
        if self.output_rounding <= 1e3 * EPS[self.scale.dtype]:
            return 0.0
        rounding = self.gradient_rounding
        return sum(self.sizes[i] * float(npx.sum(rounding[i] * abs(move))) for i, move in moves.items())

    @property
    def output_rounding(self) -> float:
        """The rounding error of the output, relative to its largest value."""
        return float(self.scale.noise.max(initial=0.0) / (abs(self.scale.here).max(initial=0.0) or 1.0))

    @cached_property
    def gradient_rounding(self) -> list[Array]:
        """The change of each entry of the gradients that rounding the inputs causes."""
        rounding = [npx.zeros_like(g, dtype="float64") for g in self.gradients]
        units = {k: EPS[self.scale.dtype] * abs(a) for k, a in enumerate(self.arrays)}
        for sign in (-2.0, 1.0, 2.0):
            signs = {k: sign * npx.sign(move) for k, move in self.random_moves(10**6 + 1).items()}
            neighbor = self.neighbor(signs, 1.0, units)
            for most, g, other in zip(rounding, self.gradients, neighbor.gradients if neighbor else [], strict=False):
                off = abs(g.astype("float64") - other)
                is_small = self.output_rounding > 1e-3 or off <= 1e-2 * abs(g[npx.isfinite(g)]).max(initial=0.0)
                npx.copyto(most, npx.maximum(most, npx.where(is_small, off, 0)))
        return rounding

    @cached_property
    def neighborhood(self) -> Neighborhood:
        """The function near this point."""
        return Neighborhood(self.problem, self.arrays, self.sizes, self.c, self.gradients)

    def convention(self, moves: Moves, analytic: float, verdict: Verdict) -> str:
        """Return why a gradient that differs from the numerical derivative is defensible, or "" if it is wrong.

        In a composition, each operation chooses its value at its own kink: relu(x) - relu(-x) / 10 has the slopes 1/10
        and 1 at 0, but the gradient 0. No single operation can correct that. This excuse does not apply to an operation
        with a single vjp, or to a composition that has a derivative at this point.
        """
        if not npx.isfinite(analytic):
            return ""
        if reason := self.neighborhood.convention(moves, analytic, verdict.numerical):
            return reason
        if not (self.is_composed and verdict.is_kink):
            return ""
        for t in (-0.011, 0.013):
            neighbor = self.neighbor(moves, t)
            if not neighbor or neighbor.along(moves)[1].kind not in ("right", "kink"):
                return ""
        return "each operation of a composition chooses its value at its own kink"

    def neighbor(self, moves: Moves, t: float, sizes: dict[int, Array] | None = None) -> "GradientCheck | None":
        """Return the check at a nearby point; None where the function is undefined."""
        scale = self.scale
        problem = self.problem.at(self.arrays_at(moves, t, sizes))
        try:
            return GradientCheck(problem, Report(), scale.rtol, scale.atol, self.seed, scale.least)
        except REJECTIONS:
            return None

    # Comparisons

    def check_entries(self, limit: int = MAX_ENTRIES) -> None:
        """Compare every entry, or a sample if there are more than `limit`; raise GradientError for a wrong one."""
        total = sum(a.size for a in self.arrays)
        tied: set[float] = set()
        for i, a in enumerate(self.arrays):
            positions = range(a.size)
            if total > limit:
                positions = range(0, a.size, max(1, -(-a.size * len(self.arrays) // SAMPLED_ENTRIES)))
            numerical, wrong = npx.host.full(a.shape, npx.nan, "float64"), []
            for position in positions:
                index, analytic, verdict = self.check_entry(i, position)
                numerical[index] = verdict.numerical
                if verdict.kind in ("kink", "convention"):
                    tied.add(float(a[index]))
                elif verdict.kind == "wrong":
                    off = abs(analytic - verdict.numerical)
                    wrong.append((off if off == off else npx.inf, index, verdict))
            if wrong:
                raise self.entry_failure(i, numerical, wrong)
        for value in sorted(tied):
            self.check_tied(value)

    def check_entry(self, i: int, position: int) -> tuple[tuple[int, ...], float, Verdict]:
        """Return the index, analytic derivative and verdict of one entry of array i, per unit of the entry."""
        index = tuple(int(k) for k in npx.unravel_index(position, self.arrays[i].shape))
        move = npx.zeros_like(self.arrays[i], dtype="float64")
        size = abs(float(self.arrays[i][index]))  # the step of a zero entry is relative to the array's largest entry
        move[index] = size / self.sizes[i] if 1e-12 < size / self.sizes[i] < npx.inf else 1
        quick = self.n_wrong >= MAX_CONFIRMED
        along, verdict = self.along({i: move}, levels=2 if quick else LEVELS)
        if verdict.kind == "wrong":
            reason = "" if quick else self.convention({i: move}, along, verdict)
            verdict = verdict._replace(kind="convention" if reason else "wrong", reason=reason)
            self.n_wrong += not reason
        numerical, bound, low, high = (x / (self.sizes[i] * float(move[index])) for x in verdict[1:5])
        verdict = Verdict(verdict.kind, numerical, bound, low, high, verdict.reason)
        entry = f"{self.problem.labels[i]} {index}"
        if verdict.kind == "kink":
            jump = verdict.high - verdict.low
            self.report.kinks.append(f"{entry}: kink; left and right derivatives differ by {jump:.3g}")
        elif verdict.kind == "convention":
            self.report.conventions.append(f"{entry}: {verdict.reason}")
        elif verdict.kind == "inconclusive":
            self.report.inconclusive.append(f"{entry}: {verdict.reason}")
        return index, float(self.gradients[i][index]), verdict

    def check_tied(self, value: float) -> None:
        """Compare along the direction that moves all entries equal to `value`, of all inputs, together."""
        moves = {i: (a == value).astype("float64") / self.sizes[i] for i, a in enumerate(self.arrays)}
        analytic, verdict = self.along(moves)
        if verdict.kind == "wrong" and not self.convention(moves, analytic, verdict):
            text = f"wrong gradient of tied entries; all entries equal to {value!r} were moved together:"
            raise self.failure("tie", "\n".join([text, *comparison(analytic, verdict)]))

    def check_directions(self, number: int) -> None:
        """Compare along random directions; raise GradientError for a wrong one."""
        for k in range(number):
            moves = self.random_moves(k)
            analytic, verdict = self.along(moves)
            if verdict.kind == "inconclusive":
                self.report.inconclusive.append(f"random direction {k}: {verdict.reason}")
            may_have_kink = verdict.is_kink or self.is_composed  # the parts of a composition may have hidden kinks
            inputs = self.arrays[: len(self.problem.floats)]
            has_ties = may_have_kink and any(npx.unique(a).size < a.size for a in inputs)
            if verdict.kind == "wrong" and not has_ties and not self.convention(moves, analytic, verdict):
                self.find_entry(moves)
                text = f"wrong gradient along random direction {k} through all inputs:"
                raise self.failure("gradient", "\n".join([text, *comparison(analytic, verdict)]))

    def find_entry(self, moves: Moves) -> None:
        """Bisect a direction and raise GradientError for a wrong entry; return if no single entry is wrong."""
        if sum(a.size for a in self.arrays) <= MAX_PRINTED:
            self.check_entries()
            return
        ends = npx.host.cumsum([0, *(a.size for a in self.arrays)])
        flat = npx.concatenate([moves[i].reshape(-1) for i in moves])

        def excess(start: int, stop: int) -> float:
            """Return how far the derivative along entries [start, stop) lies outside its bound."""
            part = npx.zeros_like(flat)
            part[start:stop] = flat[start:stop]
            part_moves = {i: part[ends[i] : ends[i + 1]].reshape(a.shape) for i, a in enumerate(self.arrays)}
            analytic, verdict = self.along(part_moves, levels=2)
            off = abs(analytic - verdict.numerical) - verdict.bound
            return off if off == off else npx.inf

        low, high = 0, flat.size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if excess(low, middle) >= excess(middle, high) else (middle, high)
        i = int(npx.host.searchsorted(ends, low, side="right")) - 1
        index, analytic, verdict = self.check_entry(i, low - int(ends[i]))
        if verdict.kind == "wrong":
            numerical = npx.host.full(self.arrays[i].shape, npx.nan, "float64")
            numerical[index] = verdict.numerical
            raise self.entry_failure(i, numerical, [(abs(analytic - verdict.numerical), index, verdict)])

    # Failures

    def failure(self, rule: str, text: str, cause: str = "") -> GradientError:
        """Return a GradientError at these inputs."""
        failure = self.problem.failure(rule, text, GradientError, cause)
        assert isinstance(failure, GradientError)
        return failure

    def entry_failure(
        self, i: int, numerical: Array, wrong: list[tuple[float, tuple[int, ...], Verdict]]
    ) -> GradientError:
        """Return a GradientError for array i.

        Args:
            wrong: (difference, index, verdict) of each wrong entry.
        """
        difference, index, verdict = max(wrong, key=lambda entry: entry[0])
        a, g, label = self.arrays[i], self.gradients[i], self.problem.labels[i]
        lines = [
            f"wrong gradient of {label}, {a.shape} {a.dtype}, in {len(wrong)} of {a.size} entries; the largest "
            f"error is at {index}:",
            *comparison(float(g[index]), verdict, difference),
        ]
        if a.size <= MAX_PRINTED:
            for other, array in zip(self.problem.labels, self.arrays, strict=True):
                lines.append(f"{other} = {literal(array)}")
            lines.append(f"gradient of {label}, analytic | numerical:")
            lines += side_by_side(g, numerical)
        is_finite = npx.isfinite(g[index])
        rule = "kink" if verdict.is_kink and is_finite else "gradient" if is_finite else "finite gradient"
        entries = [(index, float(g[index]), verdict.numerical) for _, index, verdict in wrong]
        cause = likely_cause(a.shape, entries) if rule == "gradient" else ""
        failure = self.failure(rule, "\n".join(lines), cause)
        failure.index = index if i < len(self.problem.floats) else ()
        return failure


def check_gradients(
    problem: Problem,
    report: Report,
    directions: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    limit: int = MAX_ENTRIES,
    least: float = 0.0,
) -> Expected:
    """Compare the gradients of a problem with numerical derivatives; return the output and gradients.

    Args:
        report: collects the statistics.
        directions, rtol, atol, seed: as for `gradcheck`.
        limit: above this number of entries, only a sample is moved separately.
        least: smaller numerical derivatives are treated as 0.
    """
    check = GradientCheck(problem, report, rtol, atol, seed, least)
    with quiet():
        if directions is None:
            check.check_entries(limit)
        if directions or sum(a.size for a in check.arrays) > limit:
            check.check_directions(directions or DIRECTIONS)
    return check.expected
