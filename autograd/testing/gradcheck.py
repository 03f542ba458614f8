"""Compare analytic gradients with numerical derivatives, and report the wrong entries.

For a function f and a fixed random c, backward gives the gradient of phi(x) = sum(c * f(x)). The derivative of phi
along a direction d must be (gradient . d); `numerical.py` estimates it with an error bound. If there are few entries,
each entry is moved separately; otherwise, random directions through all arrays at once reveal an error in any entry.

At a kink of phi there is no single gradient, but a range of acceptable values. Tied entries stay tied when they are
moved together, so phi has a derivative along that direction, and the gradient is compared with it.
"""

from collections.abc import Callable
from math import isnan
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing.arguments import Arguments
from autograd.testing.baseline import Baseline
from autograd.testing.conventions import Direction
from autograd.testing.diagnosis import MAX_PRINTED, comparison, describe_entries, likely_cause
from autograd.testing.directions import DirectionalCheck
from autograd.testing.numerical import MAX_STEP_SIZES, Verdict
from autograd.testing.problem import Problem, floating_point_warnings_ignored, require_floats
from autograd.testing.report import GradientError, Report, rejections_unwrapped
from autograd.testing.reproduction import reproduction
from npx import Array

MAX_ENTRIES = 1500  # up to this many entries, each is perturbed separately
SAMPLED_ENTRIES = 12  # entries to perturb separately if there are more than MAX_ENTRIES
DIRECTIONS = 3  # random directions through all arrays, in addition to sampled entries
CHUNK = 16  # number of entries of a large array that are first perturbed together
# These indices select random directions that neither `check_directions` nor directions.py uses.
ALL_ENTRIES, CHUNKS = 10**6 + 2, 10**6 + 3
MAX_CONFIRMED = 3  # wrong entries to confirm in full; the rest get a quick estimate for the printed table


@rejections_unwrapped()
def gradcheck(
    function: Callable[..., Tensor],
    *inputs: Any,
    n_directions: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `function(*inputs, **options)` with respect to its floating-point inputs.

    Args:
        function: takes Tensors in place of the floating-point inputs and returns one Tensor of any shape.
        inputs: arrays or Tensors, preferably float64. Integers, booleans and other values are passed on unchanged.
        n_directions: None compares every entry or, for more than 1,500 entries, a sample of entries and random
            directions. A number N compares along N random directions through all inputs and checks individual entries
            only after a failure; this is faster.
        rtol, atol: the relative and absolute tolerance, in addition to the error bound of the numerical derivative.
            None selects a default for the dtype.
        seed: selects the weights c of the outputs and the random directions.
        options: passed on to `function`.

    Raises GradientError, which shows both gradients side by side and a line of Python that reproduces the failure.
    Raises TypeError if no input is floating-point or the function does not return a Tensor. Raises ValueError if the
    function is not deterministic, if it returns a non-finite value, or if rtol is too small for the dtype.
    """
    arguments = Arguments(inputs, options)
    report = Report()
    name = f"gradcheck: {getattr(function, '__name__', type(function).__name__)}"
    require_floats(name, arguments.values)
    problem = Problem(
        name,
        lambda values: arguments.adapt(function)(*values),
        arguments.values,
        reproduce=lambda failing: reproduction("gradcheck", function, *arguments.unflatten(failing.values)),
        names=arguments.names,
    )
    problem.constant_indices = arguments.constant_indices(
        problem, report.notes, getattr(function, "none_is_constant", False)
    )
    compare_gradients(problem, report, n_directions, rtol, atol, seed)
    return report


class GradientCheck(DirectionalCheck):
    """The comparison of the analytic gradient of one problem with numerical derivatives, entry by entry.

    Arguments: see `compare_gradients`. Raises NonFiniteError, TypeError and ValueError like `gradcheck`.
    """

    n_wrong = 0

    def check_entries(self, limit: int = MAX_ENTRIES) -> None:
        """Compare every entry, or a sample if there are more than `limit`; raise GradientError for a wrong one."""
        total = sum(a.size for a in self.arrays)
        tied: set[float] = set()
        for i, a in enumerate(self.arrays):
            positions = range(a.size)
            if total > limit:
                positions = range(0, a.size, max(1, npx.ceil_div(a.size * len(self.arrays), SAMPLED_ENTRIES)))
            if len(positions) > 2 * CHUNK and self.is_right_in_chunks(i, positions):
                continue
            numerical = npx.host.full(a.shape, npx.nan, "float64")
            wrong = []
            for position in positions:
                index, analytic, verdict = self.compare_entry(i, position)
                numerical[index] = verdict.numerical
                if verdict.kind in ("kink", "convention"):
                    tied.add(float(a[index]))
                elif verdict.kind == "wrong":
                    error = abs(analytic - verdict.numerical)
                    wrong.append((npx.inf if isnan(error) else error, index, verdict))
            if wrong:
                raise self.entry_failure(i, numerical, wrong)
        for value in sorted(tied):
            self.check_tied(value)

    def is_right_in_chunks(self, i: int, positions: range) -> bool:
        """Return whether the gradient of array i is right along a random direction through each chunk of its entries.

        An error in one entry goes unnoticed only if it is about 1e-6 of the derivative along its chunk, or less.
        """
        offsets = self.steps[i] * self.random_direction(CHUNKS)[i]
        for start in range(0, len(positions), CHUNK):
            chunk = npx.zeros_like(offsets)
            entries = npx.host.asarray(positions[start : start + CHUNK])
            chunk.reshape(-1)[entries] = offsets.reshape(-1)[entries]
            if not self.quick_verdict({i: chunk}):
                return False
        return True

    def compare_entry(self, i: int, position: int) -> tuple[tuple[int, ...], float, Verdict]:
        """Compare the derivatives for one entry of array i; return its index, the analytic derivative and the verdict.

        Entries whose verdict is neither right nor wrong are recorded in the report.
        """
        index = tuple(int(k) for k in npx.unravel_index(position, self.arrays[i].shape))
        offsets = npx.zeros_like(self.arrays[i], dtype="float64")
        offsets[index] = self.steps[i][index]
        is_quick = self.n_wrong >= MAX_CONFIRMED
        verdict = self.quick_verdict({i: offsets})
        if verdict is None:
            analytic, verdict = self.compare_along({i: offsets}, max_step_sizes=2 if is_quick else MAX_STEP_SIZES)
        if verdict.kind == "wrong":
            reason = "" if is_quick else self.convention({i: offsets}, analytic, verdict)
            verdict = verdict._replace(kind="convention" if reason else "wrong", reason=reason or verdict.reason)
            self.n_wrong += not reason
        # Dividing by this turns a derivative along the direction into one with respect to the entry.
        step = self.units[i] * float(offsets[index])
        verdict = verdict._replace(
            numerical=verdict.numerical / step,
            bound=verdict.bound / step,
            low=verdict.low / step,
            high=verdict.high / step,
        )
        entry = f"{self.problem.labels[i]} {index}"
        if verdict.kind == "kink":
            jump = verdict.high - verdict.low
            self.report.kinks.append(f"{entry}: kink; left and right derivatives differ by {jump:.3g}")
        elif verdict.kind == "convention":
            self.report.conventions.append(f"{entry}: {verdict.reason}")
        elif verdict.kind == "inconclusive":
            self.report.inconclusive.append(f"{entry}: {verdict.reason}")
        return index, float(self.gradients[i][index]), verdict

    def is_right_in_every_entry(self) -> bool:
        """Return whether the gradient is right along a random direction that moves each entry by its step.

        An error in one entry goes unnoticed only if it is about 1e-6 of the derivative, or less.
        """
        random = self.random_direction(ALL_ENTRIES)
        direction = {i: steps * random[i] for i, steps in enumerate(self.steps)}
        if self.quick_verdict(direction):
            return True
        analytic, verdict = self.compare_along(direction)
        return verdict.kind == "right" and verdict.bound <= 1e-5 * abs(analytic)

    def check_tied(self, value: float) -> None:
        """Compare derivatives while all entries that equal `value`, in every input, move together."""
        direction = {i: (a == value).astype("float64") / self.units[i] for i, a in enumerate(self.arrays)}
        analytic, verdict = self.compare_along(direction)
        if verdict.kind == "wrong" and not self.convention(direction, analytic, verdict):
            text = f"wrong gradient of tied entries; all entries equal to {value!r} were moved together:"
            raise self.failure("tie", "\n".join([text, *comparison(analytic, verdict)]))

    def check_directions(self, number: int) -> None:
        """Compare derivatives along random directions; raise GradientError for a wrong one."""
        for k in range(number):
            direction = self.random_direction(k)
            if self.quick_verdict(direction):
                continue
            analytic, verdict = self.compare_along(direction)
            if verdict.kind == "inconclusive":
                self.report.inconclusive.append(f"random direction {k}: {verdict.reason}")
            may_have_kink = verdict.is_kink or self.is_composed  # the parts of a composition may have hidden kinks
            inputs = self.arrays[: len(self.problem.float_indices)]
            has_ties = may_have_kink and any(npx.unique(a).size < a.size for a in inputs)
            if verdict.kind == "wrong" and not has_ties and not self.convention(direction, analytic, verdict):
                self.find_entry(direction)
                text = f"wrong gradient along random direction {k} through all inputs:"
                raise self.failure("gradient", "\n".join([text, *comparison(analytic, verdict)]))

    def find_entry(self, direction: Direction) -> None:
        """Find a wrong entry by bisecting a direction, and raise GradientError; return if no single entry is wrong."""
        if sum(a.size for a in self.arrays) <= MAX_PRINTED:
            self.check_entries()
            return
        ends = npx.host.cumsum([0, *(a.size for a in self.arrays)])
        flat = npx.concatenate([direction[i].reshape(-1) for i in direction])

        def excess(start: int, stop: int) -> float:
            """Return how far the analytic derivative along entries [start, stop) lies outside its bound."""
            offsets = npx.zeros_like(flat)
            offsets[start:stop] = flat[start:stop]
            direction = {i: offsets[ends[i] : ends[i + 1]].reshape(a.shape) for i, a in enumerate(self.arrays)}
            analytic, verdict = self.compare_along(direction, max_step_sizes=2)
            error = abs(analytic - verdict.numerical) - verdict.bound
            return npx.inf if isnan(error) else error

        low, high = 0, flat.size
        while high - low > 1:
            middle = (low + high) // 2
            if excess(low, middle) >= excess(middle, high):
                high = middle
            else:
                low = middle
        i = int(npx.host.searchsorted(ends, low, side="right")) - 1
        index, analytic, verdict = self.compare_entry(i, low - int(ends[i]))
        if verdict.kind == "wrong":
            numerical = npx.host.full(self.arrays[i].shape, npx.nan, "float64")
            numerical[index] = verdict.numerical
            raise self.entry_failure(i, numerical, [(abs(analytic - verdict.numerical), index, verdict)])

    # Failures

    def failure(self, rule: str, text: str, cause: str = "") -> GradientError:
        """Return a GradientError for these inputs."""
        failure = self.problem.failure(rule, text, GradientError, cause)
        assert isinstance(failure, GradientError)
        return failure

    def entry_failure(
        self, i: int, numerical: Array, wrong: list[tuple[float, tuple[int, ...], Verdict]]
    ) -> GradientError:
        """Return a GradientError for array i.

        Args:
            wrong: a tuple (difference, index, verdict) for each wrong entry.
        """
        _, index, verdict = max(wrong, key=lambda entry: entry[0])
        g = self.gradients[i]
        text = describe_entries(self.problem.labels, self.arrays, i, g, numerical, wrong)
        is_finite = npx.isfinite(g[index])
        rule = "kink" if verdict.is_kink and is_finite else "gradient" if is_finite else "finite gradient"
        entries = [(index, float(g[index]), verdict.numerical) for _, index, verdict in wrong]
        label = self.problem.labels[i] if 0 < i < len(self.problem.float_indices) else ""
        label = "" if label.startswith("option ") else label  # an option is passed by name already
        cause = likely_cause(g, entries, label) if rule == "gradient" else ""
        failure = self.failure(rule, text, cause)
        failure.index = index if i < len(self.problem.float_indices) else ()
        return failure


def compare_gradients(
    problem: Problem,
    report: Report,
    n_directions: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    limit: int = MAX_ENTRIES,
    min_derivative: float = 0.0,
    screen_first: bool = False,
    checked_digest: bytes = b"",
) -> Baseline:
    """Compare the gradients of a problem with numerical derivatives; return the output and gradients.

    Args:
        report: collects the statistics.
        n_directions, rtol, atol, seed: as for `gradcheck`.
        limit: above this number of entries, only a sample is perturbed separately.
        min_derivative: numerical derivatives smaller than this are treated as 0.
        screen_first: whether to skip the individual entries if the gradient is right along a random direction.
        checked_digest: the digest of results that were compared earlier, at the same inputs. For equal results,
            `screen_first` applies; if it is set anyway, they are not compared again.

    Raises GradientError for a wrong gradient, and NonFiniteError, TypeError and ValueError like `gradcheck`.
    """
    if n_directions is not None and n_directions < 1:
        raise ValueError(
            f"{problem.name}: expected n_directions of at least 1; got {n_directions}; try None, which compares entries"
        )
    check = GradientCheck(problem, report, rtol, atol, seed, min_derivative)
    is_checked = bool(checked_digest) and check.baseline.digest() == checked_digest
    if is_checked and screen_first:
        return check.baseline
    with floating_point_warnings_ignored():
        if (screen_first or is_checked) and n_directions is None and check.is_right_in_every_entry():
            return check.baseline
        if n_directions is None:
            check.check_entries(limit)
        if n_directions or sum(a.size for a in check.arrays) > limit:
            check.check_directions(n_directions or DIRECTIONS)
    return check.baseline
