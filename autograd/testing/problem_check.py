"""`ProblemCheck`: all checks of one function at the given inputs and at inputs derived from them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import npx
from autograd.testing import precision, rules, undeclared, variants
from autograd.testing.baseline import Baseline
from autograd.testing.declared_gradient import DeclaredGradient, with_hint
from autograd.testing.gradcheck import MAX_ENTRIES, compare_gradients
from autograd.testing.implicit_state import buffer_state, hold_state
from autograd.testing.problem import Problem
from autograd.testing.reference import Reference, compare_value
from autograd.testing.report import REJECTIONS, CheckError, GradientError, NonFiniteError, Rejection, Report
from autograd.testing.shrinking import SHRINKABLE, smallest

# At derived inputs, a derivative counts as 0 if it is smaller than this fraction of the output at the given inputs.
MIN_DERIVATIVE = 1e-11
# Derived inputs with at most this many entries are checked entry by entry if a random direction leaves doubt.
MAX_DERIVED_ENTRIES = 36


@dataclass
class ProblemCheck:
    """A check of a problem at the given inputs and at derived ones.

    Attributes:
        report: collects the statistics.
        n_directions, compare_float32, domain, output_dtype, seed: as for `check_operation`.
        reference: a function of the problem's values that returns the correct output, if the user gave one.
        declared: the gradient that replaces the numerical derivative, if the user declared one.
        layer: the layer whose buffers each comparison in another dtype restores; None in `check_operation`.
        digests: for layers, the digests of the results that were compared in an earlier mode, by name of the variant
            ("" for the given inputs).
        min_derivative: numerical derivatives smaller than this count as 0; measured at the given inputs.
        magnitudes: the largest magnitude of the output and of each gradient at the given inputs.
    """

    report: Report
    n_directions: int | None
    compare_float32: bool
    domain: Any
    output_dtype: str | None
    seed: int
    reference: Reference | None = None
    declared: DeclaredGradient | None = None
    layer: Any = None
    digests: dict[str, bytes] = field(default_factory=dict)
    min_derivative: float = 0.0
    magnitudes: Sequence[float] = (0.0,)

    def compare_gradients(
        self,
        problem: Problem,
        n_directions: int | None,
        limit: int,
        in_declared_domain: bool = True,
        checked_digest: bytes = b"",
    ) -> Baseline:
        """Compare gradients with numerical derivatives or the declared gradient; return the output and gradients.

        A wrong gradient is reported at the smallest inputs at which it is wrong. A non-finite output inside the
        declared domain breaks the rule `domain`.

        Args:
            in_declared_domain: whether the declared domain applies.
            checked_digest: as for `gradcheck.compare_gradients`.
        """
        try:
            results = None
            if self.declared is not None:
                results, problem = self.declared.compare(problem, self.seed)
                if not problem.float_indices:
                    return results
            baseline = compare_gradients(
                problem,
                self.report,
                n_directions,
                seed=self.seed,
                limit=limit,
                min_derivative=self.min_derivative,
                screen_first=limit < MAX_ENTRIES,
                checked_digest=checked_digest,
            )
            return results or baseline
        except GradientError as error:
            smallest_error = smallest(problem, error, self.check_small) if error.rule in SHRINKABLE else error
            if self.layer is None:  # the check is `check_operation`, which has the option `expected_gradient`
                smallest_error = with_hint(smallest_error, problem, self.seed)
            raise smallest_error from error.__cause__
        except NonFiniteError as error:
            if self.domain is None or not in_declared_domain:
                raise
            text = str(error).removeprefix(f"{problem.name}: ")
            raise problem.failure("domain", text) from error

    def check_small(self, problem: Problem) -> None:
        """Compare the gradients of a problem that shrinking has reduced."""
        compare_gradients(
            problem, Report(), seed=self.seed, limit=MAX_DERIVED_ENTRIES, min_derivative=self.min_derivative
        )

    def warm_up(self, problem: Problem) -> None:
        """Call the layer with other values first: if it caches values of its first call, all later calls are wrong."""
        for variant in variants.values(problem):
            with rejections_skipped():
                output, _ = variant.problem.output_and_leaves()
                if output.requires_grad:
                    output.backward(npx.ones_like(output.data))
            break

    def check_given_inputs(self, problem: Problem) -> Baseline:
        """Compare gradients and test every rule; return the output and gradients."""
        checked_digest = self.digests.get("", b"")
        baseline = self.compare_gradients(problem, self.n_directions, MAX_ENTRIES, checked_digest=checked_digest)
        if self.layer is not None:
            self.digests[""] = baseline.digest()
        # At derived inputs, smaller derivatives may be rounding errors of intermediate results as large as this output.
        self.min_derivative = MIN_DERIVATIVE * baseline.norm
        self.magnitudes = [float(abs(x).max(initial=0.0)) for x in (baseline.y, *baseline.gradients)]
        rules.check_dtype(baseline, self.output_dtype)
        rules.check_single_backward(baseline)
        y, gradients = problem.output_and_gradients(baseline.c)
        cause = (
            "the vjp adds to an array of an earlier call, draws random numbers, does not fill an array from np.empty, "
            "or caches results by array identity"
        )
        baseline.compare("independent calls", "in another call with write-protected arrays", y, gradients, cause=cause)
        rules.check_no_mutation(baseline)
        rules.check_input_layouts(baseline)
        rules.check_incoming_gradients(baseline, is_linear=self.declared is None)
        rules.check_independent_inputs(baseline)
        rules.check_accumulation(baseline)
        rules.check_aliased_inputs(baseline)
        rules.check_independent_calls(baseline, list(self.evaluate_others(problem)))
        precision.check_float64_precision(baseline)
        for dtype in precision.NARROW:
            self.with_buffers_restored(precision.check_16_bit_accuracy, baseline, dtype)
        if self.compare_float32 and not self.check_float32(baseline):
            self.report.notes.append("not compared in float32")
        return baseline

    def compare_value(self, problem: Problem, tolerance: float, given: bool = False) -> None:
        """Compare the output with the reference, if there is one; see `reference.compare_value`."""
        if self.reference is not None:
            compare_value(problem, self.reference, tolerance, given)

    def check_float32(self, baseline: Baseline, magnitudes: Sequence[float] = (), factor: float = 1.0) -> bool:
        """Compare results in float32; return whether a comparison was possible.

        Args:
            magnitudes, factor: as for `precision.check_float32_accuracy`.
        """
        has_domain = self.domain is not None
        return self.with_buffers_restored(precision.check_float32_accuracy, baseline, has_domain, magnitudes, factor)

    def with_buffers_restored(self, compare: Callable[..., Any], *arguments: Any) -> Any:
        """Call `compare`, which evaluates in another dtype, and restore the float64 buffers."""
        restore_buffers = buffer_state(self.layer)
        try:
            return compare(*arguments)
        finally:
            restore_buffers()

    def evaluate_others(self, problem: Problem) -> Iterator[Baseline]:
        """Yield outputs and gradients at a few other inputs: other values, other parameters, and a batch of one."""
        first_shape = islice(variants.shapes(problem, self.domain), 1)
        for variant in (*variants.values(problem, self.domain), *first_shape):
            if variant.change is not variants.POSITIVE and not variant.is_single_row:
                continue
            other = variant.problem
            with rejections_skipped():
                output, leaves = other.output_and_leaves()
                other.gradients(output, leaves, npx.ones_like(npx.to_host(output.data)))  # raises if backward fails
                output, leaves = other.output_and_leaves()
                y = npx.to_host(output.data).copy()
                if not npx.isfinite(y).all():
                    continue
                c = npx.to_host(npx.random.normal(npx.Key(self.seed, 4, 0), y.shape, y.dtype))
                gradients = [g.copy() for g in other.protected_gradients(output, leaves, c)]
                yield Baseline(other, y, c, gradients)

    def check_derived_inputs(self, problem: Problem, options: Sequence[int]) -> None:
        """Compare gradients, and test the rules that depend on values, at inputs derived from the given ones.

        `options` are the integer options of the function.
        """
        for variant in chain(variants.values(problem, self.domain), undeclared.values(problem, options)):
            self.check_variant(variant, 0 if variant.change.is_magnitude else MAX_DERIVED_ENTRIES)
        for variant in chain(variants.shapes(problem, self.domain), undeclared.shapes(problem)):
            other = variant.problem
            other.reproduce = lambda _: problem.reproduce(problem)  # the check of `problem` derives this shape
            self.check_variant(variant, 0, problem)

    def check_other_options(self, problems: Iterable[tuple[str, Problem]], subject: Any) -> None:
        """Check the gradients for other values of the float options, to which the reference does not apply.

        An option such as a dropout rate may make the output random.
        """
        for name, other in problems:
            notes: list[str] = []
            try:
                hold_state(other, subject, notes)
            except CheckError:
                self.report.notes.append(f"{name}: not checked, because repeated calls give different outputs")
                continue
            except REJECTIONS:
                continue
            self.report.notes += [f"{name}: {note}" for note in notes if note not in self.report.notes]
            self.check_variant(variants.Variant(name, other, is_declared=False), MAX_DERIVED_ENTRIES)

    def check_variant(self, variant: variants.Variant, limit: int, given: Problem | None = None) -> None:
        """Check a derived problem.

        Args:
            limit: if there are at most this many entries, each is perturbed separately, unless a random direction shows
                that the gradient is right. With 0, only random directions are compared.
            given: the problem from which the shapes are derived, which may be unsuitable; None if shapes are the same.
        """
        problem = variant.problem
        problem.name = f"{problem.name}, derived: {variant.name}"
        if variant.is_declared:
            self.compare_value(problem, tolerance=1e-5)
        checked_digest = self.digests.get(variant.name, b"")
        n_directions = None if limit else 1
        try:
            baseline = self.compare_gradients(
                problem, n_directions, limit, variant.is_declared, checked_digest=checked_digest
            )
        except GradientError as error:
            if error.rule != "valid gradient":
                raise
            if not problem.output_value().size and all(a.size for a in problem.arrays):  # no entry to differentiate
                return
            if is_deliberate(error.__cause__):
                self.report.notes.append(f"not checked: {variant.name}, which only the vjp rejects")
                return
            if given is not None and variants.is_broadcast(given, problem, error):
                return
            guessed = "" if given is None else variants.guessed_shapes(given, problem) if variant.is_declared else "all"
            if not guessed or guessed == "inputs" and rules.rejects_parameters(problem):
                raise
            return
        except REJECTIONS:
            return
        if self.layer is not None:
            digest = baseline.digest()
            if digest == checked_digest:  # equal to the earlier mode
                return
            self.digests[variant.name] = digest
        self.report.variants += 1
        if variant.change.is_magnitude:
            return
        y, gradients = problem.output_and_gradients(baseline.c)
        baseline.compare("independent calls", "if it is called again", y, gradients)
        if self.compare_float32 and limit and variant.change.float32_factor:
            self.check_float32(baseline, self.magnitudes, variant.change.float32_factor)


def is_deliberate(error: BaseException | None) -> bool:
    """Return whether a vjp rejects its inputs.

    It does so by an assertion, NotImplementedError, LinAlgError or another exception that is not in the list below.
    """
    error = error.__cause__ if isinstance(error, Rejection) else error
    is_mistake = isinstance(error, (*REJECTIONS, AttributeError, NameError, RuntimeError))
    return not is_mistake or isinstance(error, (NotImplementedError, npx.host.linalg.LinAlgError))


@contextmanager
def rejections_skipped() -> Iterator[None]:
    """Suppress the error if a function, or its vjp, rejects an input."""
    try:
        yield
    except CheckError:
        raise
    except Exception:
        pass
