"""Recognize points at which several gradients are defensible, and tell these gradients from wrong ones.

If several entries are the maximum, its gradient may go to any of them. A derivative with respect to one entry says
little: moving one of seven zeros leaves their median unchanged. Near such a point, however, the function is smooth, and
its gradient jumps from one neighbor to the next. A gradient between the neighbors' gradients is a convention (an
element of Clarke's generalized gradient); a gradient outside their range is wrong. Where the function itself jumps, it
has no gradient at all.
"""

from collections.abc import Sequence
from functools import cached_property

import npx
from autograd.testing.problem import Problem
from autograd.testing.report import REJECTIONS, GradientError
from npx import Array

MAX_NEIGHBORS = 36  # with 36 rotations of the ranks, each of 36 entries takes every rank
DISTANCE = 1e-6  # distance of the farthest neighbor, relative to the largest magnitude of each array
JUMPS = 1e-3, 1e-5, 1e-7  # distances at which a jump of the function must persist
ROUNDING = 1e-10  # relative to the largest output; smaller jumps may be rounding errors
WIDE = 1e-2  # a larger relative difference of derivatives indicates a jump, not curvature

Direction = dict[int, Array]  # maps the index of an array to the distances by which its entries move
Points = list[tuple[list[Array], list[Array]]]  # neighboring points and the gradients there


class Neighborhood:
    """The function near a point at which its gradient may not be unique.

    Args:
        problem, arrays: the function and the point.
        units: the unit of distance in each array, which is the magnitude of its largest entry.
        c: the incoming gradient.
        at_point: the gradients at the point.
    """

    def __init__(
        self,
        problem: Problem,
        arrays: Sequence[Array],
        units: Sequence[float],
        c: Array,
        at_point: Sequence[Array],
    ) -> None:
        self.problem, self.arrays, self.units = problem, arrays, units
        self.c, self.at_point = c, at_point

    def convention(self, direction: Direction, analytic: float, numerical: float) -> str:
        """Return why an analytic derivative along a direction may be right at a kink, or "" if it is wrong.

        Args:
            numerical: the numerical derivative at this point.
        """
        for kind in ("nearby", "scattered", "aligned"):  # later kinds of points are computed only if needed
            points = getattr(self, kind)
            slopes = [slope for slope in self.slopes(direction, points) if npx.isfinite(slope)]
            low = min(slopes, default=0.0)
            high = max(slopes, default=0.0)
            size = max(abs(analytic), abs(low), abs(high))
            if not (slopes and low - 1e-3 * size <= analytic <= high + 1e-3 * size):
                continue
            is_certain = kind != "aligned"
            is_jump = high - low > WIDE * size and (is_certain or self.has_slopes(direction, points, (low, high)))
            if is_jump or self.confirms(direction, points, analytic, numerical):
                return f"neighboring points have derivatives from {low:.3g} to {high:.3g}; got {analytic:.3g}"
        return "the function is discontinuous here" if self.has_jump(direction) else ""

    def confirms(self, direction: Direction, points: Points, analytic: float, numerical: float) -> bool:
        """Return whether the numerical derivatives at two neighboring points equal `analytic`.

        Both must be much closer to `analytic` than to `numerical`. Otherwise a slightly wrong gradient of a smooth
        function would pass, because `analytic` is close to `numerical` and to the derivatives at the neighbors.
        """
        for arrays, _ in points[:2]:
            neighboring = self.numerical_slope(direction, arrays)
            error = abs(neighboring - analytic)
            if not error <= 1e-3 * abs(analytic) or error > 0.1 * abs(neighboring - numerical):
                return False
        return len(points) > 1

    def has_slopes(self, direction: Direction, points: Points, ends: Sequence[float]) -> bool:
        """Return whether numerical derivatives confirm `ends`, the analytic derivatives at two of the points."""
        slopes = self.slopes(direction, points)
        for end in ends:
            neighboring = self.numerical_slope(direction, points[slopes.index(end)][0])
            if not abs(neighboring - end) <= 1e-3 * max(map(abs, ends)):
                return False
        return True

    def numerical_slope(self, direction: Direction, arrays: Sequence[Array]) -> float:
        """Return the central difference along a direction at a neighboring point."""
        step = DISTANCE / (8 * max(a.size for a in self.arrays))
        ahead = self.values(direction, step, arrays)
        behind = self.values(direction, -step, arrays)
        return float(npx.sum(self.c.reshape(-1) * (ahead - behind))) / (2 * step)

    def slopes(self, direction: Direction, points: Points) -> list[float]:
        """Return the analytic derivatives along a direction at neighboring points."""
        return [
            sum(self.units[i] * float(npx.sum(gradients[i] * part)) for i, part in direction.items())
            for _, gradients in points
        ]

    @cached_property
    def nearby(self) -> Points:
        """Neighboring points without ties or zeros, with the entries in various orders."""
        number = min(MAX_NEIGHBORS, max(2, *(a.size for a in self.arrays)))
        return self.with_gradients([self.neighbor(k) for k in range(number)])

    @cached_property
    def scattered(self) -> Points:
        """Neighboring points in random directions.

        Near a matrix with equal eigenvalues, each of these points selects a different eigenbasis.
        """
        points = []
        for k in range(MAX_NEIGHBORS):
            point = []
            for i, (a, unit) in enumerate(zip(self.arrays, self.units, strict=True)):
                offsets = npx.to_host(npx.random.normal(npx.Key(k, 12, i), a.shape))
                point.append(a + (DISTANCE * unit * offsets).astype(a.dtype))
            points.append(point)
        return self.with_gradients(points)

    @cached_property
    def aligned(self) -> Points:
        """Neighboring points that differ from this point only in entries whose gradient is not 0.

        For the eigenvalues of a matrix of zeros, any eigenbasis gives a defensible gradient. A gradient with
        zeros occurs only at neighbors with zeros at the same positions, and random neighbors have no zeros.
        """
        counts = [int((g != 0).sum()) for g in self.at_point]  # nonzero entries of each gradient
        if not 0 < sum(counts) < sum(g.size for g in self.at_point):
            return []
        points = []
        for k in range(min(MAX_NEIGHBORS, 4 * max(counts))):
            point = []
            for a, g, unit, n in zip(self.arrays, self.at_point, self.units, counts, strict=True):
                offsets = npx.zeros_like(a, dtype="float64")
                entries = npx.host.arange(n)
                # a different pattern of signs and ranks for each k
                mixed_signs = npx.sign(npx.host.sin(k // 4 + 2.5 * entries + 1))
                signs = (-1.0) ** k * (mixed_signs if k // 2 % 2 else 1.0)
                offsets[g != 0] = signs * ((entries + k // 4) % max(1, n) + 0.5) / max(1, n)
                point.append(a + (DISTANCE * unit * offsets).astype(a.dtype))
            points.append(point)
        return self.with_gradients(points)

    def with_gradients(self, points: Sequence[list[Array]]) -> Points:
        """Return the points inside the domain, each with the gradients there."""
        result = []
        for arrays in points:
            try:
                output, leaves = self.problem.output_and_leaves([npx.from_host(a) for a in arrays])
                result.append((arrays, self.problem.gradients(output, leaves, self.c)))
            except (GradientError, *REJECTIONS):  # outside the domain
                continue
        return result

    def neighbor(self, k: int) -> list[Array]:
        """Return the k-th point near this one.

        Each entry moves in proportion to its rank, so all entries of the point differ; the ranks rotate with k.
        """
        arrays = []
        for i, (a, unit) in enumerate(zip(self.arrays, self.units, strict=True)):
            turn = k * max(1, a.size // MAX_NEIGHBORS) * (i + 1)
            rank = (npx.host.arange(a.size) + turn) % max(1, a.size) - (a.size - 1) / 2
            rank += 0.25 if (k >> i) % 2 else -0.25  # never 0
            arrays.append(a + (DISTANCE * unit / max(1, a.size) * rank.reshape(a.shape)).astype(a.dtype))
        return arrays

    def has_jump(self, direction: Direction) -> bool:
        """Return whether the function jumps at this point.

        If some outputs depend on the moved entries, only those count. The function is evaluated along the direction
        itself and along lines to neighboring points; on such a line, either all arrays move or a single one. One line
        is not enough: x ** y is continuous along most lines through (0, 0), but 0 ** y jumps.
        """
        y0 = self.values({}, 0.0)
        min_jump = ROUNDING * float(abs(y0[npx.isfinite(y0)]).max(initial=0.0))
        depends = (self.values(direction, -JUMPS[0]) != y0) | (self.values(direction, JUMPS[0]) != y0)
        depends |= not depends.any()
        for sign in (1.0, -1.0):
            neighbor = self.neighbor(1 if sign > 0 else 0)
            outward = {
                i: sign * (b - a) / (DISTANCE * unit)
                for i, (a, b, unit) in enumerate(zip(self.arrays, neighbor, self.units, strict=True))
            }
            separate = [{i: part} for i, part in outward.items()] if len(outward) > 1 else []
            for line in (direction, outward, *separate):
                jumps = [abs(self.values(line, sign * t) - y0) for t in JUMPS]
                is_jump = (jumps[2] > 0.5 * npx.maximum(jumps[0], jumps[1])) & (jumps[2] > min_jump)
                if (is_jump & depends & npx.isfinite(jumps[2])).any():
                    return True
        return False

    def values(self, direction: Direction, t: float, start: Sequence[Array] | None = None) -> Array:
        """Return the output at distance t along a direction from `start` (default: this point); NaN where undefined."""
        arrays = list(start or self.arrays)
        for i, part in direction.items():
            arrays[i] = arrays[i] + (t * self.units[i] * part).astype(arrays[i].dtype)
        undefined = npx.host.full(self.c.size, npx.nan, "float64")
        try:
            y = self.problem.output_value(list(map(npx.from_host, arrays))).reshape(-1)
        except REJECTIONS:
            return undefined
        return y if y.size == self.c.size else undefined
