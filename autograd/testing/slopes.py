"""The slope of a function along a direction, with a bound on its error; or that it cannot be told.

For y(t), outputs along a line, the central difference D(h) = (y(h) - y(-h)) / 2h is off by O(h^2) of curvature and by
O(noise / h) of rounding. Two steps, h and h/2, give Richardson's R = D(h/2) + (D(h/2) - D(h)) / 3, off by O(h^4), and a
bound: |D(h/2) - D(h)| plus the rounding that `noise` saw. Where the bound is wide (the function bends within a step), a
step 16 times smaller is tried, and again.

The gradient is judged against that: `right` within the bound, `wrong` where two steps that agree with each other both
exclude it, else `unjudged`. At a kink (a ReLU at 0, a tie of a maximum) the slopes to either side differ however small
the step; there any value between them is right. What jumps, or is steeper the nearer one looks, cannot be judged.
Slopes are taken output by output, before they are weighted and summed: an output that does not move adds no rounding,
and one that has a kink none to the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import npx
from npx import Array

STEP = {"float32": 6e-2, "float64": 1e-3}  # of a direction, which is as long as the arrays it moves are large
RTOL = {"float32": 2e-2, "float64": 1e-6}  # of the larger of both slopes
FLOOR = {"float32": 1e-4, "float64": 1e-9}  # of the outputs that move: slopes below are no slopes
EPS = {"float32": 1.2e-7, "float64": 2.2e-16}
WIDE = 1e-3  # a bound above this share of the slope tells nothing
LEVELS = 7
FINER = 16.0  # by how much the steps of one level are smaller than those of the level before

Outputs = Callable[[float], Array]  # y(t), flat and float64; NaN where the function has no value


class Verdict(NamedTuple):
    """`what`: right, kink, unjudged, or wrong; the numeric slope, its bound, and the range right at a kink."""

    what: str
    numeric: float
    bound: float
    low: float
    high: float
    reason: str = ""


@dataclass
class Level:
    """Slopes of every output at one pair of steps: R and its bound, those to the left and to the right and theirs.

    `edge`: whether an output has no value on one side.
    """

    slope: Array
    bound: Array
    left: Array
    right: Array
    side_bound: Array
    edge: bool

    @property
    def bend(self) -> Array:
        """By how much the slopes to both sides differ; of a smooth function by nothing that counts."""
        return self.right - self.left


@dataclass
class Scale:
    """How the slopes of one problem are compared.

    Its dtype, outputs, their noise and tolerances; slopes below `least` are none, and differences below `slack`.
    """

    dtype: str
    here: Array
    noise: Array
    rtol: float
    atol: float | None
    least: float
    slack: float = 0.0

    def floor(self, weights: Array) -> float:
        """A slope that is none."""
        moved = float(npx.sum(abs(weights * npx.where(npx.isfinite(self.here), self.here, 0))))
        return FLOOR[self.dtype] * moved + self.least if self.atol is None else self.atol

    def tolerance(self, weights: Array, *slopes: float) -> float:
        """What is allowed beside the bound, for an analytic and a numeric slope."""
        size = max((abs(s) for s in slopes if s == s and abs(s) != npx.inf), default=0.0)
        return self.rtol * size + self.floor(weights) + self.slack


def noise(outputs: Outputs, here: Array, dtype: str) -> Array:
    """How far rounding moves each output: its fourth difference, over steps too small for anything else.

    Over some thousand units in the last place; and over longer steps where an output moves in stairs, because it is
    rounded to fewer digits on the way (1 + tiny): then it moves less over the short steps than the long ones tell.
    """

    def fourth(units: float) -> tuple[Array, Array]:
        a, b, c, d = (outputs(k * units * EPS[dtype]) for k in (-2, -1, 1, 2))
        found = abs(a + d - 4 * (b + c) + 6 * here) / 8
        return npx.where(npx.isfinite(found), found, 0), (c - b) / units

    (found, moved), (again, _), (stairs, told) = fourth(1e3), fourth(3.1e3), fourth(5e8)
    told = npx.where(npx.isfinite(told) & npx.isfinite(moved), told, 0)
    in_stairs = (abs(moved) < 0.5 * abs(told)) & (abs(told) * 1e3 > 8 * EPS[dtype] * abs(here))
    found = npx.maximum(found, again)
    if dtype == "float64":
        found = npx.maximum(found, npx.where(in_stairs, stairs, 0))
    return found + 2 * EPS[dtype] * abs(here)


def level(outputs: Outputs, scale: Scale, h: float, moved: Array) -> Level:
    """The slopes at steps h and h/2; where one side has no value, those of the other.

    `moved`: which outputs have moved at larger steps, to which this level's are added; the others have no rounding.
    """
    here, far, near = scale.here, (outputs(h), outputs(-h)), (outputs(h / 2), outputs(-h / 2))
    for y in (*far, *near):
        moved |= y != here  # also NaN
    rounding = npx.where(moved, scale.noise, 0)
    wide, narrow = (far[0] - far[1]) / (2 * h), (near[0] - near[1]) / h
    sides = []
    for sign, y, z in ((-1, far[1], near[1]), (1, far[0], near[0])):
        coarse, fine = sign * (y - here) / h, sign * (z - here) / (h / 2)
        sides.append((2 * fine - coarse, abs(fine - coarse) + 16 * rounding / h))
    (left, left_bound), (right, right_bound) = sides
    # Between two sides that differ lies a kink, and the central difference may be off by half of what they differ.
    slope = narrow + (narrow - wide) / 3
    bound = abs(narrow - wide) + 8 * rounding / h + npx.maximum(abs(right - left) / 2 - 16 * rounding / h, 0)
    for side, its_bound in sides:  # at the edge of where the function has values
        alone = ~npx.isfinite(slope) & npx.isfinite(side)
        slope, bound = npx.where(alone, side, slope), npx.where(alone, 3 * its_bound, bound)
    edge = bool((~(npx.isfinite(narrow) & npx.isfinite(wide))).any())
    return Level(slope, bound, left, right, npx.maximum(left_bound, right_bound), edge)


class At(NamedTuple):
    """One level, summed over outputs."""

    level: Level
    numeric: float
    bound: float


class Range(NamedTuple):
    """What is right where some outputs have a kink: from `low` to `high`, each known to `bound`."""

    low: float
    high: float
    bound: float


def judge(
    outputs: Outputs, weights: Array, analytic: float, scale: Scale, step: float, levels: int = LEVELS
) -> Verdict:
    """Is `analytic` the slope of sum(weights * y) at 0? `step`: the first that is tried, at most of `levels` sizes."""
    found: list[At] = []
    refuted: Verdict | None = None
    seen_at, seen_right = 0, False
    moved = npx.zeros_like(scale.here, dtype="bool")
    for k in range(levels):
        h = step / FINER**k
        at = level(outputs, scale, h, moved)
        numeric, bound = total(weights, at.slope), total(abs(weights), at.bound)
        if not (npx.isfinite(numeric) and npx.isfinite(bound)) or (at.edge and not npx.isfinite(analytic)):
            continue
        found.append(At(at, numeric, bound))
        allowed, floor = scale.tolerance(weights, analytic, numeric), scale.floor(weights)
        contained = abs(analytic - numeric) <= allowed + bound
        if contained and bound <= allowed:
            return Verdict("right", numeric, bound, numeric, numeric)
        if contained and bound <= (0.1 if refuted and refuted.low < refuted.high else 0.01) * abs(analytic):
            refuted = None  # by steps too large to see what this one sees
        seen_right |= contained and bound <= WIDE * abs(analytic)  # finer steps that do not are between two stairs
        if len(found) > 1:
            before, after = found[-2:]
            ranged = kinks(before.level, after.level, weights)
            if ranged and ranged.bound <= 0.05 * max(abs(ranged.low), abs(ranged.high)) + floor:
                inside = ranged.low - allowed - ranged.bound <= analytic <= ranged.high + allowed + ranged.bound
                if inside:
                    return Verdict("kink", numeric, ranged.bound, ranged.low, ranged.high)
                refuted, seen_at = Verdict("wrong", numeric, ranged.bound, ranged.low, ranged.high), k
            elif settled(before, after, floor) and not (contained or seen_right):
                (_, numeric, bound), h = min((before, h * FINER), (after, h), key=lambda each: each[0].bound)
                unsure = bound + 8 * roughness(outputs, weights, h) / h
                known = unsure <= 0.05 * max(abs(numeric), abs(analytic)) + floor
                if known and not abs(analytic - numeric) <= scale.tolerance(weights, analytic, numeric) + 5 * unsure:
                    refuted = Verdict("wrong", numeric, bound, numeric, numeric)
    if refuted and refuted.low < refuted.high and seen_at < levels - 1 and npx.isfinite(analytic):
        return refuted._replace(what="unjudged", reason="kinks closer than the steps that show them")
    if refuted:
        return refuted
    if not found:
        return Verdict("unjudged", npx.nan, npx.inf, -npx.inf, npx.inf, "no finite values beside it")
    best = min(found, key=lambda e: e.bound / (abs(e.numeric) + scale.floor(weights) or 1.0))
    numeric, bound = best.numeric, best.bound
    allowed = scale.tolerance(weights, analytic, numeric)
    if abs(analytic - numeric) <= allowed + bound and bound <= WIDE * max(abs(analytic), abs(numeric)) + allowed:
        return Verdict("right", numeric, bound, numeric, numeric)
    return Verdict("unjudged", numeric, bound, numeric, numeric, f"slope {numeric:.3g} known to {bound:.3g} only")


def on_a_stair(outputs: Outputs, weights: Array, analytic: float, numeric: float, here: Array) -> bool:
    """Whether `analytic`, unlike `numeric`, is the slope beside 0, of a function whose stairs the steps passed over.

    A step at 1e6 is longer than the stairs of round(x), whose slope is then 1. Told by two steps of some thousand units
    in the last place, either side, at which outputs as steep as `numeric` move by many of their own.
    """
    for t in (3.1e-12, 0.7e-12):
        ahead, behind = outputs(t) - here, here - outputs(-t)
        moved = npx.where((ahead != 0) | (behind != 0) | (numeric == 0), abs(weights * here), 0)
        local = [total(weights, side) / t for side in (ahead, behind)]
        told = abs(numeric) * t > 100 * EPS["float64"] * float(npx.sum(moved))
        if not (told and any(abs(slope - analytic) <= 0.1 * abs(slope - numeric) for slope in local)):
            return False
    return True


def total(weights: Array, values: Array) -> float:
    """The weighted sum, over outputs that have a weight."""
    return float(npx.sum(npx.where(weights != 0, weights * values, 0)))


def roughness(outputs: Outputs, weights: Array, h: float) -> float:
    """How far the weighted sum is from smooth over steps up to h: from the polynomial nearest to it at 24 places.

    Two slopes may agree by chance where an output moves in stairs, rounded on the way (1 + tiny); so many do not.
    """
    t = npx.host.sin(npx.host.arange(1.0, 25.0) * 1.7)
    values = npx.host.asarray([total(weights, outputs(h * float(x))) for x in t])
    finite = npx.isfinite(values)
    if finite.sum() < 12:
        return 0.0
    powers = npx.host.vander(t[finite], 6)
    fit = powers @ npx.host.linalg.lstsq(powers, values[finite], rcond=None)[0]
    return float(abs(values[finite] - fit).max())


def settled(before: At, after: At, floor: float) -> bool:
    """Whether the slopes of two levels agree, and each tells something."""
    bounds = before.bound + after.bound
    size = max(abs(before.numeric), abs(after.numeric))
    return bounds <= 0.05 * size + floor and abs(before.numeric - after.numeric) <= 3 * bounds + floor


def kinks(before: Level, after: Level, weights: Array) -> Range | None:
    """The range of right slopes where outputs have a kink; None where none has.

    Smooth bends fade with the step, those of a kink stay, and those of a cusp grow.
    """
    finite = npx.isfinite(before.bend) & npx.isfinite(after.bend) & (weights != 0)
    was, now = (npx.where(finite, abs(x.bend), 0) for x in (before, after))
    seen = now > 4 * npx.where(finite, after.side_bound, 0) + 1e-6 * npx.maximum(abs(after.left), abs(after.right))
    kinked = finite & seen & (now > 0.8 * was) & (now < 1.25 * was)
    if not kinked.any():
        return None
    low, high = npx.minimum(after.left, after.right), npx.maximum(after.left, after.right)
    low, high = npx.where(kinked, low, after.slope), npx.where(kinked, high, after.slope)
    ends = weights * npx.where(weights != 0, low, 0), weights * npx.where(weights != 0, high, 0)
    bound = total(abs(weights), npx.where(kinked, after.side_bound, after.bound))
    return Range(float(npx.sum(npx.minimum(*ends))), float(npx.sum(npx.maximum(*ends))), bound)
