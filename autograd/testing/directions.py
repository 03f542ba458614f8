"""Compare the analytic and numerical derivatives of one problem along directions through its arrays.

A direction is a dictionary that maps the index of an array to the distances by which its entries move. The unit of
distance is the magnitude of the array's largest entry. A neighbor is a point at a small distance along a direction.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import npx
from autograd.testing.baseline import Baseline
from autograd.testing.conventions import Direction, Neighborhood
from autograd.testing.numerical import (
    EPS,
    MAX_STEP_SIZES,
    REFINEMENT,
    RTOL,
    STEP,
    Tolerances,
    Verdict,
    is_on_staircase,
    is_step_slope,
    judge,
    noise,
    richardson,
    weighted_sum,
)
from autograd.testing.problem import Problem, floating_point_warnings_ignored, nodes
from autograd.testing.report import REJECTIONS, NonFiniteError, Report
from npx import Array

SMALL = 1e-2  # inputs below this are small compared with constants such as the 1 in 1 - cos(x)


class DirectionalCheck:
    """The analytic gradient of one problem, and its comparison with numerical derivatives along directions.

    Arguments: see `gradcheck.compare_gradients`. Raises NonFiniteError, TypeError and ValueError like `gradcheck`.
    """

    def __init__(
        self,
        problem: Problem,
        report: Report,
        rtol: float | None,
        atol: float | None,
        seed: int,
        min_derivative: float = 0.0,
    ) -> None:
        self.report, self.seed = report, seed
        self.arrays = [npx.to_host(a).copy() for a in problem.arrays]
        self.problem = problem.with_arrays(self.arrays)
        output, leaves = problem.output_and_leaves([npx.from_host(a.copy()) for a in self.arrays])
        dtypes = [x.dtype for x in (*self.arrays, output.data) if x.dtype != "float64"]
        dtype = min(dtypes, key=lambda d: d.itemsize).name if dtypes else "float64"  # the narrowest
        if dtype not in STEP:
            raise TypeError(
                f"{problem.name}: expected inputs in float64 or float32; got {dtype}; try .astype('float64')"
            )
        if rtol is not None and rtol < RTOL[dtype] / 100:
            raise ValueError(
                f"{problem.name}: expected an rtol of at least {RTOL[dtype] / 100:g} for {dtype}; got {rtol:g}; "
                "try .astype('float64') on the inputs"
            )
        self.y = npx.to_host(output.data).copy()
        y0 = self.y.astype("float64").reshape(-1)
        if not npx.isfinite(y0).all():
            index = tuple(int(k[0]) for k in npx.nonzero(~npx.isfinite(npx.host.atleast_1d(self.y))))
            value = npx.host.atleast_1d(self.y)[index]
            raise NonFiniteError(f"{problem.name}: expected finite outputs; got {value} at {index}; try other inputs")
        self.c = npx.to_host(npx.random.normal(npx.Key(seed, 0, 0), self.y.shape, self.y.dtype))
        self.weights = self.c.astype("float64").reshape(-1)
        self.is_composed = len(nodes(output)) > 1
        self.gradients = problem.gradients(output, leaves, self.c)
        repeated = problem.output_value([npx.from_host(a.copy()) for a in self.arrays]).reshape(-1)
        # Rounding may differ: some frameworks compute in another order when no input requires a gradient.
        rounding = 8 * EPS[dtype] * float(abs(y0).max(initial=0.0))
        if not npx.host.allclose(y0, repeated, rtol=0, atol=rounding, equal_nan=True):
            raise ValueError(
                f"{problem.name}: expected the same output for the same input; two calls differ; "
                "try a fixed key for random numbers (npx.Key, or `with npx.keyed(...)` inside the function)"
            )
        # The unit of the steps in each array is the magnitude of its largest entry.
        self.units = [float(abs(a[npx.isfinite(a)]).max(initial=0.0)) or 1.0 for a in self.arrays]
        self.max_derivatives = [  # the largest derivative in each array, per unit of distance
            unit * float(abs(g[npx.isfinite(g)]).max(initial=0.0))
            for g, unit in zip(self.gradients, self.units, strict=True)
        ]
        with floating_point_warnings_ignored():
            ratios = [abs(a.astype("float64")) / unit for a, unit in zip(self.arrays, self.units, strict=True)]
            # In these units, the step of an entry is its own magnitude; for a zero, it is 1.
            self.steps = [npx.where((ratio > 1e-12) & (ratio < npx.inf), ratio, 1.0) for ratio in ratios]
        min_noise = 2 * EPS[dtype] * abs(y0)
        self.tolerances = Tolerances(dtype, y0, min_noise, RTOL[dtype] if rtol is None else rtol, atol, min_derivative)

    @property
    def baseline(self) -> Baseline:
        """The output and gradients, for further comparisons."""
        return Baseline(self.problem, self.y, self.c, self.gradients)

    # Directions

    def arrays_at(
        self, direction: Direction, t: float, units: list[float] | dict[int, Array] | None = None
    ) -> list[Array]:
        """Return the arrays at distance t along a direction, in `units` (default: `self.units`)."""
        units = self.units if units is None else units
        return [
            a + (t * units[i] * direction[i]).astype(a.dtype) if i in direction else a.copy()
            for i, a in enumerate(self.arrays)
        ]

    def output_along(self, direction: Direction) -> Callable[[float], Array]:
        """Return a function that maps a distance along a direction to the output there; NaN where it is undefined."""

        def at(t: float) -> Array:
            undefined = npx.host.full(self.y.size, npx.nan, "float64")
            try:
                y = self.problem.output_value(list(map(npx.from_host, self.arrays_at(direction, t)))).reshape(-1)
            except REJECTIONS:  # outside the domain
                return undefined
            return y if y.size == self.y.size else undefined

        return at

    def random_direction(self, number: int) -> Direction:
        """Return a random direction through all arrays."""
        return {
            i: npx.to_host(npx.random.normal(npx.Key(self.seed, 1 + number, i), a.shape, "float64"))
            for i, a in enumerate(self.arrays)
        }

    @cached_property
    def noise(self) -> Array:
        """The rounding error of each output, measured with 12 calls."""
        return noise(self.output_along(self.random_direction(10**6)), self.tolerances.y0, self.tolerances.dtype)

    def analytic_along(self, direction: Direction) -> tuple[float, Tolerances]:
        """Return the analytic derivative along a direction, and the tolerances for the comparison."""
        analytic = 0.0
        for i, offsets in direction.items():
            products = self.gradients[i].astype("float64") * offsets
            analytic += self.units[i] * float(npx.sum(npx.where(offsets != 0, products, 0)))
        # The rounding errors of the largest entries can affect every entry of the gradient.
        reaches = (self.max_derivatives[i] * float(abs(offsets).max(initial=0.0)) for i, offsets in direction.items())
        slack = self.tolerances.rtol * (0.1 * max(reaches, default=0.0) + 0.01 * max(self.max_derivatives, default=0.0))
        # Inputs that cancel each other leave their rounding errors in the output.
        slack += 4e3 * EPS[self.tolerances.dtype] * max(self.units) * float(abs(self.weights).max(initial=0.0))
        return analytic, replace(self.tolerances, slack=slack)

    def quick_verdict(self, direction: Direction) -> Verdict | None:
        """Return the verdict `right` if one short step along a direction confirms the gradient, else None.

        When the gradient is right, this method saves most of the calls. The rounding error is assumed to be minimal,
        because more noise would widen the accepted range. The weights of the outputs are random, so the errors are
        combined as if they were independent. Where the function is not smooth, the result is None.
        """
        analytic, tolerances = self.analytic_along(direction)
        changed = npx.zeros_like(tolerances.y0, dtype="bool")
        derivatives = richardson(self.output_along(direction), tolerances, STEP[tolerances.dtype] / REFINEMENT, changed)
        numerical = weighted_sum(self.weights, derivatives.central)
        bounds = abs(self.weights) * derivatives.bound
        bound = min(float(npx.sum(bounds)), 4 * float(npx.host.linalg.norm(bounds)))
        allowed = tolerances.tolerance(self.weights, analytic, numerical)
        if not (bound <= allowed and abs(analytic - numerical) <= allowed):
            return None
        self.report.compared += 1
        self.note_difference(analytic, numerical)
        return Verdict("right", numerical, bound, numerical, numerical)

    def compare_along(
        self, direction: Direction, step: float = 0.0, max_step_sizes: int = MAX_STEP_SIZES
    ) -> tuple[float, Verdict]:
        """Return the analytic derivative along a direction, and the verdict on it."""
        analytic, tolerances = self.analytic_along(direction)
        tolerances.noise = self.noise
        verdict = judge(
            self.output_along(direction),
            self.weights,
            analytic,
            tolerances,
            step or STEP[self.tolerances.dtype],
            max_step_sizes,
        )
        if verdict.kind == "wrong" and abs(analytic - verdict.numerical) <= 10 * self.rounding_error_along(direction):
            verdict = verdict._replace(kind="inconclusive", reason="rounding the inputs changes the gradient itself")
        reach = max(self.units[i] * float(abs(direction[i]).max(initial=0.0)) for i in direction)
        if verdict.kind == "wrong" and reach > 1 and self.tolerances.dtype == "float64":
            if is_on_staircase(
                self.output_along(direction), self.weights, analytic, verdict.numerical, self.tolerances.y0
            ):
                reason = "the function is a staircase whose stairs are narrower than the step size"
                verdict = verdict._replace(kind="inconclusive", reason=reason)
        if verdict.kind == "wrong" and reach < SMALL and self.tolerances.dtype == "float64":
            if is_step_slope(self.output_along(direction), self.weights, analytic, verdict.numerical):
                reason = "the output is inaccurate: rounding errors hide its derivative"
                verdict = verdict._replace(kind="inconclusive", reason=reason)
        self.report.compared += 1
        if verdict.kind == "right":
            self.note_difference(analytic, verdict.numerical)
        return analytic, verdict

    def note_difference(self, analytic: float, numerical: float) -> None:
        """Record the relative difference of two derivatives in the report if it is the largest so far."""
        unit = self.tolerances.tolerance(self.weights, analytic, numerical) / self.tolerances.rtol
        relative = abs(analytic - numerical) / (unit or 1.0)
        self.report.largest_difference = max(self.report.largest_difference, relative)

    # Inconclusive cases

    def rounding_error_along(self, direction: Direction) -> float:
        """Return how much the analytic derivative along a direction changes if the inputs are rounded.

        The gradient must be as accurate as the output. The result is therefore 0 unless the output itself loses digits
        to rounding, as in the solution of a nearly singular linear system. Large changes come from broken ties and are
        ignored.
        """
        if self.output_rounding <= 1e3 * EPS[self.tolerances.dtype]:
            return 0.0
        rounding = self.gradient_rounding
        return sum(self.units[i] * float(npx.sum(rounding[i] * abs(part))) for i, part in direction.items())

    @property
    def output_rounding(self) -> float:
        """The rounding error of the output, relative to its largest value."""
        return float(self.noise.max(initial=0.0) / (abs(self.tolerances.y0).max(initial=0.0) or 1.0))

    @cached_property
    def gradient_rounding(self) -> list[Array]:
        """The change of each entry of the gradients if the inputs are rounded."""
        rounding = [npx.zeros_like(g, dtype="float64") for g in self.gradients]
        units = {k: EPS[self.tolerances.dtype] * abs(a) for k, a in enumerate(self.arrays)}
        for sign in (-2.0, 1.0, 2.0):
            signs = {k: sign * npx.sign(part) for k, part in self.random_direction(10**6 + 1).items()}
            neighbor = self.neighbor(signs, 1.0, units)
            others = neighbor.gradients if neighbor else []
            for max_change, g, other in zip(rounding, self.gradients, others, strict=False):
                change = abs(g.astype("float64") - other)
                is_small = self.output_rounding > 1e-3 or change <= 1e-2 * abs(g[npx.isfinite(g)]).max(initial=0.0)
                npx.copyto(max_change, npx.maximum(max_change, npx.where(is_small, change, 0)))
        return rounding

    @cached_property
    def neighborhood(self) -> Neighborhood:
        """The function near this point."""
        return Neighborhood(self.problem, self.arrays, self.units, self.c, self.gradients)

    def convention(self, direction: Direction, analytic: float, verdict: Verdict) -> str:
        """Return the reason why a gradient that differs from the numerical derivative is defensible; "" if it is wrong.

        In a composition, each operation chooses its value at its own kink: relu(x) - relu(-x) / 10 has the slopes 1/10
        and 1 at 0, but the gradient 0. No single operation can correct that, so such a gradient of a composition is
        accepted unless the composition has a derivative at this point. For a single operation, such a gradient counts
        as wrong.
        """
        if not npx.isfinite(analytic):
            return ""
        if reason := self.neighborhood.convention(direction, analytic, verdict.numerical):
            return reason
        if not (self.is_composed and verdict.is_kink):
            return ""
        for t in (-0.011, 0.013):
            neighbor = self.neighbor(direction, t)
            if not neighbor or neighbor.compare_along(direction)[1].kind not in ("right", "kink"):
                return ""
        return "each operation of a composition chooses its value at its own kink"

    def neighbor(
        self, direction: Direction, t: float, units: dict[int, Array] | None = None
    ) -> "DirectionalCheck | None":
        """Return the `DirectionalCheck` of a nearby point; None if the function is undefined there."""
        tolerances = self.tolerances
        problem = self.problem.with_arrays(self.arrays_at(direction, t, units))
        try:
            return DirectionalCheck(
                problem, Report(), tolerances.rtol, tolerances.atol, self.seed, tolerances.min_derivative
            )
        except REJECTIONS:
            return None
