"""Numerical derivatives of a function along a direction, with a bound on their error.

For outputs y(t) along a line, the central difference D(h) = (y(h) - y(-h)) / 2h has a truncation error of O(h^2) and a
rounding error of O(noise / h). Two steps, h and h/2, give Richardson's extrapolation R = D(h/2) + (D(h/2) - D(h)) / 3,
whose error is O(h^4). A bound on this error is |D(h/2) - D(h)| plus the rounding error that `noise` measures. Where the
bound is large because the function curves within a step, a step 16 times smaller is tried, up to six times.

An analytic derivative is `right` if it lies within the bound, `wrong` if two steps agree with each other and exclude
it, and otherwise `inconclusive`. At a kink (a ReLU at 0, a tie in a maximum), the left and right derivatives differ at
every step size, and any value between them is correct. For a function that jumps, or that gets steeper with every
smaller step, the result is inconclusive. A function such as round(x) is a staircase: it is smooth on each stair, and
jumps to the next one. Derivatives are computed for each output before they are weighted and summed, so an output that
does not change adds no rounding error, and a kink of one output does not affect the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import npx
from npx import Array

STEP = {"float32": 6e-2, "float64": 1e-3}  # first step, relative to the largest magnitude of each array
RTOL = {"float32": 2e-2, "float64": 1e-6}  # tolerance, relative to the larger of the two derivatives
FLOOR = {"float32": 1e-4, "float64": 1e-9}  # derivatives below this fraction of the outputs count as 0
EPS = {"float32": 1.2e-7, "float64": 2.2e-16}
WIDE = 1e-3  # a bound above this fraction of the derivative is too wide to confirm it
MAX_STEP_SIZES = 7
REFINEMENT = 16.0  # ratio of consecutive step sizes

OutputFn = Callable[[float], Array]  # y(t), flat and float64; NaN where the function is undefined


class Verdict(NamedTuple):
    """The result of comparing an analytic derivative with numerical ones.

    Attributes:
        kind: right, kink, inconclusive or wrong; `GradientCheck` adds convention.
        numerical: the numerical derivative, whose error is at most `bound`.
        low, high: the range of correct values; the two differ at a kink.
        reason: why the verdict is inconclusive, or why the gradient is a convention.
    """

    kind: str
    numerical: float
    bound: float
    low: float
    high: float
    reason: str = ""

    @property
    def is_kink(self) -> bool:
        """True if left and right derivatives differ."""
        return self.low < self.high


@dataclass
class Derivatives:
    """The derivative of every output, extrapolated from one pair of steps.

    Attributes:
        central, bound: Richardson's extrapolation and the bound on its error.
        left, right, side_bound: the one-sided derivatives and a bound on both.
        at_edge: whether some output is undefined on one side.
    """

    central: Array
    bound: Array
    left: Array
    right: Array
    side_bound: Array
    at_edge: bool

    @property
    def jump(self) -> Array:
        """The right minus the left derivative, which vanishes with the step unless there is a kink."""
        return self.right - self.left


@dataclass
class Tolerances:
    """The magnitudes and tolerances with which the derivatives of one problem are compared.

    Attributes:
        dtype: the narrowest dtype of the inputs and the output.
        y0: the outputs at the point, float64.
        noise: the rounding error of each output.
        rtol, atol: tolerances; if atol is None, it is derived from the outputs.
        min_derivative: derivatives below this count as 0.
        slack: differences below this are accepted.
    """

    dtype: str
    y0: Array
    noise: Array
    rtol: float
    atol: float | None
    min_derivative: float
    slack: float = 0.0

    def floor(self, weights: Array) -> float:
        """Return the size below which a derivative counts as 0."""
        size = float(npx.sum(abs(weights * npx.where(npx.isfinite(self.y0), self.y0, 0))))
        return FLOOR[self.dtype] * size + self.min_derivative if self.atol is None else self.atol

    def tolerance(self, weights: Array, *derivatives: float) -> float:
        """Return the accepted difference between an analytic and a numerical derivative, in addition to the bound."""
        size = max((abs(d) for d in derivatives if d == d and abs(d) != npx.inf), default=0.0)
        return self.rtol * size + self.floor(weights) + self.slack


def noise(output_at: OutputFn, y0: Array, dtype: str) -> Array:
    """Return the rounding error of each output, measured by fourth differences over very short steps.

    The steps are a few thousand units in the last place, so short that the curvature of the function does not matter.
    An output that loses digits in an intermediate result (such as 1 + tiny) is a staircase: it changes less over short
    steps than over longer ones, so the long steps measure its error. Differences across a kink at this point are
    proportional to the step; they are replaced by differences on either side.
    """

    def fourth_difference(units: float, first: int = -2) -> Array:
        points = [y0 if k == 0 else output_at(k * units * EPS[dtype]) for k in range(first, first + 5)]
        a, b, middle, c, d = points
        difference = abs(a + d - 4 * (b + c) + 6 * middle) / 8
        if first == -2:
            rates.append((c - b) / units)
        return npx.where(npx.isfinite(difference), difference, 0)

    rates: list[Array] = []
    short, medium, long = map(fourth_difference, (1e3, 3.1e3, 5e8))
    short_rate, _, long_rate = rates
    long_rate = npx.where(npx.isfinite(long_rate) & npx.isfinite(short_rate), long_rate, 0)
    is_staircase = (abs(short_rate) < 0.5 * abs(long_rate)) & (abs(long_rate) * 1e3 > 8 * EPS[dtype] * abs(y0))
    error = npx.maximum(short, medium)
    rounding = 2 * EPS[dtype] * abs(y0)
    is_kink = (error > 4 * rounding) & (abs(medium - 3.1 * short) <= 0.2 * medium)  # in proportion to the step
    if is_kink.any():
        sides = [fourth_difference(units, first) for units in (1e3, 3.1e3) for first in (-4, 0)]
        error = npx.minimum(error, npx.host.max(sides, axis=0))
    if dtype == "float64":
        error = npx.maximum(error, npx.where(is_staircase, long, 0))
    return error + rounding


def richardson(output_at: OutputFn, tolerances: Tolerances, h: float, changed: Array) -> Derivatives:
    """Return the derivatives extrapolated from the steps h and h/2; where one side is undefined, use the other side.

    Args:
        changed: a mask of the outputs that any step so far has changed, updated in place. Only these outputs have
            rounding errors.
    """
    y0 = tolerances.y0
    far_right, far_left = output_at(h), output_at(-h)
    near_right, near_left = output_at(h / 2), output_at(-h / 2)
    for y in (far_right, far_left, near_right, near_left):
        changed |= y != y0  # also NaN
    rounding = npx.where(changed, tolerances.noise, 0)
    wide = (far_right - far_left) / (2 * h)
    narrow = (near_right - near_left) / h
    sides = []
    for sign, far, near in ((-1, far_left, near_left), (1, far_right, near_right)):
        coarse = sign * (far - y0) / h
        fine = sign * (near - y0) / (h / 2)
        sides.append((2 * fine - coarse, abs(fine - coarse) + 16 * rounding / h))
    (left, left_bound), (right, right_bound) = sides
    # If the one-sided derivatives differ, there may be a kink: the central difference is off by up to half the jump.
    central = narrow + (narrow - wide) / 3
    bound = abs(narrow - wide) + 8 * rounding / h + npx.maximum(abs(right - left) / 2 - 16 * rounding / h, 0)
    for side, side_bound in sides:  # at the edge of the domain
        is_one_sided = ~npx.isfinite(central) & npx.isfinite(side)
        central = npx.where(is_one_sided, side, central)
        bound = npx.where(is_one_sided, 3 * side_bound, bound)
    at_edge = bool((~(npx.isfinite(narrow) & npx.isfinite(wide))).any())
    return Derivatives(central, bound, left, right, npx.maximum(left_bound, right_bound), at_edge)


class Estimate(NamedTuple):
    """The derivatives at one step size, and their weighted sum with a bound on its error."""

    derivatives: Derivatives
    numerical: float
    bound: float


class KinkRange(NamedTuple):
    """The range of correct values where outputs have a kink; the error of both ends is at most `bound`."""

    low: float
    high: float
    bound: float


def judge(
    output_at: OutputFn,
    weights: Array,
    analytic: float,
    tolerances: Tolerances,
    step: float,
    max_step_sizes: int = MAX_STEP_SIZES,
) -> Verdict:
    """Compare `analytic` with the numerical derivative of sum(weights * y) at 0.

    Steps without finite derivatives are skipped. At each other step, the first rule that applies decides:

        1  `analytic` lies within the bound, and the bound is within the tolerance: right.
        2  This step and the one before show a kink: a kink if `analytic` lies in its range, else a refutation.
        3  The two steps agree and exclude `analytic`, also after adding the error of a polynomial fit to their bound,
           this step's bound does not contain it, and no earlier narrow bound did: a refutation.

    A refutation is not final: a smaller step may still give right or kink, or withdraw the refutation because its bound
    is narrow and contains `analytic`. After the last step, the first rule that applies decides:

        4  A kink at a larger step than the last has refuted a finite `analytic`: inconclusive.
        5  Another refutation: wrong.
        6  No step gave finite derivatives: inconclusive.
        7  `analytic` is not finite, and no output is infinitely steep but continuous: wrong.
        8  `analytic` lies within the bound of the most accurate step, and this bound is narrow: right.
        9  Otherwise: inconclusive.

    Args:
        output_at: returns the outputs y(t) at a distance t along the direction.
        weights: a weight for each output; outputs of weight 0 are ignored.
        analytic: the derivative of the weighted sum according to backward; may be NaN or infinite.
        tolerances: the outputs and their rounding errors at t = 0, and the accepted differences.
        step: the first step size.
        max_step_sizes: the maximum number of step sizes to try; each is 16 times smaller than the one before.

    Returns the verdict right, kink, wrong or inconclusive, with the numerical derivative on which it is based.
    """
    estimates: list[Estimate] = []
    refuted: Verdict | None = None
    refuted_index = 0
    was_contained = False
    changed = npx.zeros_like(tolerances.y0, dtype="bool")
    for k in range(max_step_sizes):
        h = step / REFINEMENT**k
        derivatives = richardson(output_at, tolerances, h, changed)
        numerical = weighted_sum(weights, derivatives.central)
        bound = weighted_sum(abs(weights), derivatives.bound)
        is_finite = npx.isfinite(numerical) and npx.isfinite(bound)
        if not is_finite or (derivatives.at_edge and not npx.isfinite(analytic)):
            continue
        estimates.append(Estimate(derivatives, numerical, bound))
        allowed = tolerances.tolerance(weights, analytic, numerical)
        floor = tolerances.floor(weights)
        is_contained = abs(analytic - numerical) <= allowed + bound
        if is_contained and bound <= allowed:
            return Verdict("right", numerical, bound, numerical, numerical)
        if is_contained and bound <= (0.1 if refuted and refuted.is_kink else 0.01) * abs(analytic):
            refuted = None  # this step is accurate enough to overrule the larger ones
        # Once a step has confirmed `analytic`, finer steps cannot refute it: they may fall between two stairs.
        was_contained |= is_contained and bound <= WIDE * abs(analytic)
        if len(estimates) > 1:
            before, after = estimates[-2:]
            kink = kink_range(before.derivatives, after.derivatives, weights)
            if kink and kink.bound <= 0.05 * max(abs(kink.low), abs(kink.high)) + floor:
                is_inside = kink.low - allowed - kink.bound <= analytic <= kink.high + allowed + kink.bound
                if is_inside:
                    return Verdict("kink", numerical, kink.bound, kink.low, kink.high)
                refuted = Verdict("wrong", numerical, kink.bound, kink.low, kink.high)
                refuted_index = k
            elif agree(before, after, floor) and not (is_contained or was_contained):
                if before.bound <= after.bound:  # the larger step is the more accurate one
                    _, numerical, bound = before
                    h *= REFINEMENT
                uncertainty = bound + 8 * roughness(output_at, weights, h) / h
                is_accurate = uncertainty <= 0.05 * max(abs(numerical), abs(analytic)) + floor
                limit = tolerances.tolerance(weights, analytic, numerical) + 5 * uncertainty
                if is_accurate and not abs(analytic - numerical) <= limit:
                    refuted = Verdict("wrong", numerical, bound, numerical, numerical)
    if refuted and refuted.is_kink and refuted_index < max_step_sizes - 1 and npx.isfinite(analytic):
        reason = "kinks are too close together for any step size to resolve them"
        return refuted._replace(kind="inconclusive", reason=reason)
    if refuted:
        return refuted
    if not estimates:
        return Verdict("inconclusive", npx.nan, npx.inf, -npx.inf, npx.inf, "no finite values next to this point")
    if not npx.isfinite(analytic) and len(estimates) > 1 and not is_infinitely_steep(estimates, weights):
        return Verdict("wrong", npx.nan, npx.inf, npx.nan, npx.nan, "the function is discontinuous here")
    best = min(estimates, key=lambda e: e.bound / (abs(e.numerical) + tolerances.floor(weights) or 1.0))
    numerical, bound = best.numerical, best.bound
    allowed = tolerances.tolerance(weights, analytic, numerical)
    if abs(analytic - numerical) <= allowed + bound and bound <= WIDE * max(abs(analytic), abs(numerical)) + allowed:
        return Verdict("right", numerical, bound, numerical, numerical)
    reason = f"the numerical derivative {numerical:.3g} is accurate only to {bound:.3g}"
    return Verdict("inconclusive", numerical, bound, numerical, numerical, reason)


def is_infinitely_steep(estimates: Sequence[Estimate], weights: Array) -> bool:
    """Return whether an output is continuous on one side, with a derivative that diverges, as for sqrt(x) at 0.

    The ratio of the one-sided derivatives of two steps is 1 for a finite derivative, and `REFINEMENT` at a jump.
    """
    before, after = (estimate.derivatives for estimate in estimates[-2:])
    pairs = (before.left, after.left), (before.right, after.right)
    return any(
        ((weights != 0) & (abs(new) > 1.02 * abs(old)) & (abs(new) < 0.9 * REFINEMENT * abs(old))).any()
        for old, new in pairs
    )


def is_on_staircase(output_at: OutputFn, weights: Array, analytic: float, numerical: float, y0: Array) -> bool:
    """Return whether `analytic` is the derivative on a single stair, while steps across stairs give `numerical`.

    For example, at x = 1e6 a step is longer than a stair of round(x), whose numerical derivative there is 1. The test
    takes two much shorter steps, of a few thousand units in the last place, in both directions. If the function were
    as steep as `numerical`, its outputs would change noticeably. For even narrower stairs, such as those of
    round(1 / x) near x = 1e-6, two steps that are 100 times shorter are tried as well.
    """

    def is_flat(t: float) -> bool:
        ahead = output_at(t) - y0
        behind = y0 - output_at(-t)
        changed = npx.where((ahead != 0) | (behind != 0) | (numerical == 0), abs(weights * y0), 0)
        local = [weighted_sum(weights, side) / t for side in (ahead, behind)]
        is_noticeable = abs(numerical) * t > 100 * EPS["float64"] * float(npx.sum(changed))
        return is_noticeable and any(abs(d - analytic) <= 0.1 * abs(d - numerical) for d in local)

    return any(all(is_flat(unit * t) for t in (3.1, 0.7)) for unit in (1e-12, 1e-14))


def weighted_sum(weights: Array, values: Array) -> float:
    """Return the weighted sum over the outputs whose weight is not 0."""
    return float(npx.sum(npx.where(weights != 0, weights * values, 0)))


def is_step_slope(output_at: OutputFn, weights: Array, analytic: float, numerical: float) -> bool:
    """Return whether `numerical` is the derivative on a step that rounding causes, and `analytic` that over many steps.

    For example, 1 - cos(x) has steps near 1e-6, so (1 - cos(x)) / x**2 falls like 1 / x**2 on each of them, although it
    is nearly constant. The integral of the derivatives on the steps then differs from the change of the function.
    """

    def slope(t: float, h: float) -> float:
        return weighted_sum(weights, output_at(t + h) - output_at(t - h)) / (2 * h)

    t = npx.host.geomspace(1, 9, 33) - 1
    average = slope(4.0, 4.0)
    if not abs(average - analytic) <= 0.1 * abs(analytic - numerical):
        return False
    slopes = npx.host.asarray([slope(float(x), 1e-11) for x in t])
    integral = float(npx.sum((slopes[1:] + slopes[:-1]) / 2 * (t[1:] - t[:-1])))
    return abs(integral - 8 * average) > 0.5 * abs(integral)


def roughness(output_at: OutputFn, weights: Array, h: float) -> float:
    """Return the largest residual of fitting a polynomial to the weighted sum at 24 points within h.

    Two numerical derivatives of a staircase may agree by chance, but 24 points are very unlikely to fit a polynomial.
    """
    t = npx.host.sin(npx.host.arange(1.0, 25.0) * 1.7)
    values = npx.host.asarray([weighted_sum(weights, output_at(h * float(x))) for x in t])
    finite = npx.isfinite(values)
    if finite.sum() < 12:
        return 0.0
    powers = npx.host.vander(t[finite], 6)
    fit = powers @ npx.host.linalg.lstsq(powers, values[finite], rcond=None)[0]
    return float(abs(values[finite] - fit).max())


def agree(before: Estimate, after: Estimate, floor: float) -> bool:
    """Return whether the estimates of two step sizes agree and both are accurate."""
    bounds = before.bound + after.bound
    size = max(abs(before.numerical), abs(after.numerical))
    return bounds <= 0.05 * size + floor and abs(before.numerical - after.numerical) <= 3 * bounds + floor


def kink_range(before: Derivatives, after: Derivatives, weights: Array) -> KinkRange | None:
    """Return the range of correct values where outputs have a kink; None if no output has one.

    As the step shrinks, the jump between the one-sided derivatives vanishes for a smooth function, persists at a kink,
    and grows at a cusp.
    """
    finite = npx.isfinite(before.jump) & npx.isfinite(after.jump) & (weights != 0)
    old_jump = npx.where(finite, abs(before.jump), 0)
    new_jump = npx.where(finite, abs(after.jump), 0)
    steepest = npx.maximum(abs(after.left), abs(after.right))
    is_significant = new_jump > 4 * npx.where(finite, after.side_bound, 0) + 1e-6 * steepest
    has_kink = finite & is_significant & (new_jump > 0.8 * old_jump) & (new_jump < 1.25 * old_jump)
    if not has_kink.any():
        return None
    low = npx.where(has_kink, npx.minimum(after.left, after.right), after.central)
    high = npx.where(has_kink, npx.maximum(after.left, after.right), after.central)
    ends = weights * npx.where(weights != 0, low, 0), weights * npx.where(weights != 0, high, 0)
    bound = weighted_sum(abs(weights), npx.where(has_kink, after.side_bound, after.bound))
    return KinkRange(float(npx.sum(npx.minimum(*ends))), float(npx.sum(npx.maximum(*ends))), bound)
