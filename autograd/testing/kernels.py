"""`check_kernel`: check the fast versions of a kernel and of its gradient against the reference under many conditions.

Each fast version runs with various memory layouts, block sizes, numbers of threads, gradients of the output and orders
of calls. A failure names the broken rule.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import npx
from autograd.testing.call_variants import (
    BROADCAST,
    KernelArguments,
    arrays_in,
    copied_to_device,
    differ,
    is_finite,
    scaled,
    with_layout_or_broadcast,
    with_other_values,
    with_repeated_rows,
)
from autograd.testing.report import explain
from autograd.testing.reproduction import Placeholder, reproduction
from autograd.testing.rules import LAYOUTS
from npx import Array, KernelMismatch, Key
from npx.dispatch import compare, copy_arrays, map_arrays

BLOCK_SIZES = THREAD_COUNTS = (1, 2, 3)
MAX_BLOCKS = 1000  # maximum number of blocks of an array; larger arrays get larger blocks
MANY_ROWS, MANY_NUMBERS = 2100, 150_000  # maximum number of rows and of numbers in `check_many_rows`
FACTORS = 2.0**20, 2.0**-20, 0.0  # multiply the gradient of the output; powers of two cause no rounding
np = npx.host


def check_kernel(
    kernel: npx.Kernel,
    *args: Any,
    gradient_options: dict[str, Any] | None = None,
    thorough: bool = True,
    seed: int = 0,
    **kwargs: Any,
) -> list[str]:
    """Check every fast version of a kernel, and of its gradient, against the reference.

    The versions for the dtype of the first argument are checked with every available array library. The values that a
    version saves for its gradient are not compared. The rules:

        reference                 the results, and the arguments after the call, have the same values, shapes and
                                  dtypes as those of the reference, which runs in one block on one thread
        no mutation               the version modifies neither the output, nor its gradient, nor arguments that the
                                  reference leaves unmodified
        input layout              arguments may have any memory layout, and may be read-only if the reference does not
                                  write to them
        incoming gradient layout  the gradient of the output and the arrays in `gradient_options` may also have any
                                  memory layout, including broadcast views with strides of 0
        block size, thread count  under `npx.small_blocks` the reference and the version give the same results in blocks
                                  of 1, 2 and 3 rows, and bitwise the same on 1, 2 and 3 threads; in float64, for many
                                  rows as well
        linearity                 the gradient is linear in the gradient of the output, which is scaled by 2^20, 2^-20
                                  and 0, and replaced by a single 1
        independent calls         another call in between, with other values or another size, does not change the
                                  results

    Args:
        kernel: the kernel to check.
        args, kwargs: the arguments of the kernel.
        gradient_options: options of the kernel's gradient.
        thorough: False limits the check to the reference, the layouts, one block size and two thread counts, so that it
            is fast enough for examples drawn by a strategy. Arguments of more than 150,000 numbers already fill several
            blocks; for them, only the rule `reference` and the results on two threads are checked.
        seed: selects the gradient of the output.

    Returns the names of the versions checked, at least one. Raises npx.KernelMismatch, whose `rule` is the broken rule
    and whose text ends with a line that reproduces the failure, and ValueError if there is no version to check.
    """
    checked = []
    values = KernelArguments(*map_arrays(npx.to_host, (args, kwargs, gradient_options or {})))
    before = npx.device()
    try:
        for device, array_library in (("cpu", "numpy"), ("cuda", "cupy")):
            key = array_library, args[0].dtype.name
            if key in kernel.versions and is_available(device):
                npx.use_device(device)
                check = KernelCheck(kernel, key, values, seed)
                check.check(thorough)
                checked.append(check.version)
    except KernelMismatch as error:
        named = {"gradient_options": gradient_options, "seed": seed}
        options = kwargs | {name: x for name, x in named.items() if x} | ({} if thorough else {"thorough": False})
        setup = "from npx import KERNELS"
        line = reproduction("check_kernel", Placeholder(f"KERNELS[{kernel.name!r}]"), args, options, setup)
        raise mismatch(error.rule, explain(f"check_kernel: {error}", error.rule, line)) from error
    finally:
        npx.use_device(before)
    if not checked:
        got = ", ".join(" ".join(key) for key in kernel.versions) or "no fast version"
        raise ValueError(f"{kernel.name}: expected a fast version for {args[0].dtype}; got {got}")
    return checked


def is_available(device: str) -> bool:
    """Return whether a device can be used on this machine."""
    before = npx.device()
    try:
        npx.use_device(device)
    except RuntimeError:
        return False
    npx.use_device(before)
    return True


class Forward(NamedTuple):
    """The output of a forward call, the saved values, and the arguments after the call."""

    y: Any
    saved: Any  # None if there is no gradient
    arguments: Any


class Outcome(NamedTuple):
    """The output of a call, the arguments after the call, and the gradients."""

    y: Any
    arguments: Any
    gradients: Any  # a pair (gradients, options after the backward call), or None if there is no gradient


class KernelBaseline(NamedTuple):
    """The outcome of the reference for given values and a gradient g of the output."""

    values: KernelArguments
    g: Any  # None if there is no gradient
    outcome: Outcome


class KernelCheck:
    """The check of one fast version of a kernel.

    Args:
        kernel, key, values: the kernel, the array library and dtype of the version, and its arguments.
        seed: selects the gradient of the output.
    """

    def __init__(self, kernel: npx.Kernel, key: tuple[str, str], values: KernelArguments, seed: int) -> None:
        self.kernel, self.key, self.values, self.seed = kernel, key, values, seed
        self.version = getattr(kernel.versions[key], "__name__", "fast version")
        self.name = f"{kernel.name}, {self.version}"
        self.grad_name = f"{kernel.grad.name if kernel.grad else ''}, {self.version}"
        self.n_numbers = sum(x.size for x in arrays_in(values))

    def check(self, thorough: bool) -> None:
        """Check all rules or, without `thorough`, the subset that is fast enough for every drawn example."""
        baseline = self.baseline(self.values)
        self.require("reference", "given layout", baseline)
        if self.n_numbers > MANY_NUMBERS:
            with npx.small_blocks(None, threads=2):
                self.require("thread count", "2 threads", baseline)
            return
        self.check_layouts(baseline)
        self.check_blocks(baseline, BLOCK_SIZES if thorough else (2,), THREAD_COUNTS if thorough else (1, 2))
        if thorough:
            doubled = self.with_rows(baseline, 2)
            self.check_incoming(baseline)
            self.check_calls(baseline, doubled)
            if doubled and self.key[1] == "float64":  # in float64, sums over many rows are accurate enough
                self.check_many_rows(baseline)

    # Evaluation

    def forward(self, key: tuple[str, str] | None, arguments: Any) -> Forward:
        """Run a version (the reference if `key` is None); `arguments` is a pair (positional, keyword)."""
        args, kwargs = arguments
        result = self.kernel.run(key, *args, **kwargs)
        if self.kernel.grad is None:
            return Forward(result, None, arguments)
        y, saved = result
        return Forward(y, None if saved.values is None else saved, arguments)

    def gradients(self, call: Forward, baseline: KernelBaseline, layout: str = "given") -> Any:
        """Return (gradients, options after the call); the gradient of the output has the given layout.

        Kernels may write to the arrays in the options, so these get the same layout only if it permits writing.
        """
        g = copied_to_device(baseline.g, layout)
        options = copied_to_device(baseline.values.gradient_options, layout if layout in LAYOUTS else "given")
        result = call.saved.backward(g, **options)
        require_identical("no mutation", f"{self.grad_name}, gradient of the output", baseline.g, g)
        return result, options

    def outcome(self, call: Forward, baseline: KernelBaseline, layout: str = "given") -> Outcome:
        """Run the gradient of a forward call, and return the outcome of the call."""
        if call.saved is None:
            return Outcome(call.y, call.arguments, None)
        y = copy_arrays(call.y)
        gradients = self.gradients(call, baseline, layout)
        require_identical("no mutation", f"{self.grad_name}, output", y, call.y)
        return Outcome(y, call.arguments, gradients)

    def baseline(self, values: KernelArguments, g: Any = None) -> KernelBaseline:
        """Run the reference in one block. If g is None, the gradient of the output is random."""
        with npx.small_blocks(None, threads=1):
            call = self.forward(None, copied_to_device(values[:2]))
            if g is None and call.saved is not None:
                g = npx.to_host(npx.random.normal(Key(self.seed, 0, 0), call.y.shape, call.y.dtype))
            baseline = KernelBaseline(values, g, Outcome(call.y, call.arguments, None))
            return baseline._replace(outcome=self.outcome(call, baseline))

    def derived(self, values: KernelArguments, g: Any = None) -> KernelBaseline | None:
        """Return `baseline` for derived values; None if the reference rejects them or gives non-finite results."""
        try:
            baseline = self.baseline(values, g)
        except (AssertionError, ValueError, IndexError, ArithmeticError) as error:
            if isinstance(error, KernelMismatch):
                raise
            return None
        return baseline if is_finite(baseline.outcome) or not is_finite(self.values) else None

    def with_rows(self, baseline: KernelBaseline, times: int) -> KernelBaseline | None:
        """Return `derived` for repeated rows; None unless each result has as many rows as before or `times` as many."""
        longer = self.derived(with_repeated_rows(self.values, times))
        if longer is None:
            return None
        short_arrays, long_arrays = (arrays_in((x.outcome.y, x.outcome.gradients)) for x in (baseline, longer))
        pairs = zip(short_arrays, long_arrays, strict=True)
        fits = all(b.shape in (a.shape, (times * len(a), *a.shape[1:]) if a.ndim else ()) for a, b in pairs)
        return longer if fits else None

    # Comparison

    def require(
        self,
        rule: str,
        condition: str,
        baseline: KernelBaseline,
        layout: str = "given",
        incoming: str = "given",
        fast: bool = True,
    ) -> Outcome:
        """Run the version (the reference if not `fast`) in the given memory layouts, and return the outcome.

        Raises KernelMismatch with `rule` if the call fails or its outcome differs from the expected one.
        """
        condition += "" if fast else ", reference"
        with reported_as(rule, f"{self.name}, {condition}"):
            call = self.forward(self.key if fast else None, copied_to_device(baseline.values[:2], layout))
            outcome = self.outcome(call, baseline, incoming)
            self.compare(condition, baseline, outcome)
        return outcome

    def compare(self, condition: str, baseline: KernelBaseline, outcome: Outcome) -> None:
        """Raise KernelMismatch unless an outcome matches the expected one."""
        name = f"{self.name}, {condition}"
        reference = baseline.outcome
        compare(name, reference.y, outcome.y)
        triples = zip(*map(arrays_in, (baseline.values[:2], reference.arguments, outcome.arguments)), strict=True)
        for i, (before, by_reference, after) in enumerate(triples):
            is_result = differ(before, by_reference)  # the reference also writes to this argument
            with reported_as("" if is_result else "no mutation", name):
                compare(f"{name}, argument {i} after the call", by_reference, after)
        compare(f"{self.grad_name}, {condition}", reference.gradients, outcome.gradients)

    # The rules

    def check_layouts(self, baseline: KernelBaseline) -> None:
        for layout in LAYOUTS:
            for fast in (False, True):
                self.require("input layout", f"{layout} layout", baseline, layout, fast=fast)
        for layout in (*LAYOUTS, "read-only") if baseline.g is not None else ():
            condition = f"gradient of the output in {layout} layout"
            self.require("incoming gradient layout", condition, baseline, incoming=layout)
        try:
            self.forward(None, copied_to_device(baseline.values[:2], "read-only"))
        except ValueError:  # the reference writes to its arguments
            return
        self.require("input layout", "read-only arguments", baseline, "read-only")

    def check_blocks(self, baseline: KernelBaseline, sizes: tuple[int, ...], thread_counts: tuple[int, ...]) -> None:
        largest = max((x.size for x in arrays_in(baseline.values)), default=0)
        for size in (n + largest // MAX_BLOCKS for n in sizes):
            condition = f"blocks of {size}"
            with npx.small_blocks(size, thread_counts[0]):
                self.require("block size", condition, baseline, fast=False)
                one_thread = self.require("block size", condition, baseline)
            for n_threads in thread_counts[1:] if self.key[0] == "numpy" else ():
                condition = f"blocks of {size}, {n_threads} threads"
                with npx.small_blocks(size, n_threads):
                    outcome = self.require("thread count", condition, baseline)
                require_identical("thread count", f"{self.name}, {condition} instead of one", one_thread, outcome)

    def check_incoming(self, baseline: KernelBaseline) -> None:
        """Check other values of the gradient of the output."""
        g = baseline.g
        if g is None or not g.size:
            return
        for layout in BROADCAST:
            if repeated := self.derived(self.values, np.array(with_layout_or_broadcast(g, layout))):
                condition = f"gradient of the output: {layout}"
                self.require("incoming gradient layout", condition, repeated, incoming=layout)
        if ones := self.derived(self.values, np.ones_like(g)):
            self.require("linearity", "gradient of the output: ones", ones)
        for position in {0, g.size - 1}:
            if one_hot := self.derived(self.values, (np.arange(g.size) == position).astype(g.dtype).reshape(g.shape)):
                self.require("linearity", f"gradient of the output: 1 at flat index {position}, else 0", one_hot)
        for factor in FACTORS if g.dtype.itemsize > 2 and is_finite(baseline.outcome) else ():
            multiple = self.derived(self.values, scaled(g, factor))
            condition = f"gradient of the output times {factor:g}"
            with reported_as("linearity", f"{self.grad_name}, {condition}"):
                if multiple:
                    call = self.forward(self.key, copied_to_device(self.values[:2]))
                    gradients = self.gradients(call, multiple)[0]
                    # Dividing by the factor restores the magnitude for which the tolerance is meant.
                    reference = scaled(baseline.outcome.gradients[0], float(factor != 0))
                    name = f"{self.grad_name}, {condition}, divided by it"
                    compare(name, reference, scaled(gradients, 1 / (factor or 1)))

    def check_calls(self, baseline: KernelBaseline, doubled: KernelBaseline | None) -> None:
        changed = self.derived(with_other_values(self.values))
        for first in (baseline, doubled) if changed else ():
            for order in ((0, 1), (1, 0)) if first else ():
                condition = f"two calls, the gradient of call {order[0] + 1} first"
                with reported_as("independent calls", f"{self.name}, {condition}"):
                    self.interleave((first, changed), order, condition)
        if changed:
            condition = "a second call with other values in the arrays of the first"
            with reported_as("independent calls", f"{self.name}, {condition}"):
                self.compare(condition, changed, self.refilled(baseline, changed))

    def interleave(self, baselines: Any, order: tuple[int, int], condition: str) -> None:
        """Run two calls, then both gradients; require that each result is right and does not change later."""
        calls: list[Forward] = []
        results: list[tuple[Any, Any]] = []  # pairs of a result and its copy
        for baseline in baselines:
            calls.append(self.forward(self.key, copied_to_device(baseline.values[:2])))
            compare(f"{self.name}, {condition}", baseline.outcome.y, calls[-1].y)
            results.append((calls[-1].y, copy_arrays(calls[-1].y)))
            self.require_unchanged(results, condition)
        for n in order if calls[0].saved and calls[1].saved else ():
            gradients = self.gradients(calls[n], baselines[n])
            compare(f"{self.grad_name}, {condition}", baselines[n].outcome.gradients, gradients)
            results.append((gradients, copy_arrays(gradients)))
            self.require_unchanged(results, condition)

    def require_unchanged(self, results: list[tuple[Any, Any]], condition: str) -> None:
        """Raise KernelMismatch if a result that was returned earlier has changed."""
        for result, copy in results:
            name = f"{self.name}, {condition}: a result returned earlier"
            require_identical("independent calls", name, copy, result)

    def refilled(self, baseline: KernelBaseline, changed: KernelBaseline) -> Outcome:
        """Return the outcome of a call whose arguments reuse an earlier call's arrays, filled with new values."""
        arguments = copied_to_device(baseline.values[:2])
        arrays = iter(arrays_in(arguments))
        call = self.forward(self.key, arguments)
        if call.saved is not None:
            self.gradients(call, baseline)

        def refill(x: Array) -> Array:
            array = next(arrays)
            array[...] = npx.from_host(x)
            return array

        return self.outcome(self.forward(self.key, map_arrays(refill, changed.values[:2])), changed)

    def check_many_rows(self, baseline: KernelBaseline) -> None:
        """Check a call with many rows, which fill more than one block even if `npx.small_blocks` has no effect."""
        n_rows = len(np.atleast_1d(self.values.args[0]))
        times = min(MANY_ROWS // max(1, n_rows), MANY_NUMBERS // max(1, self.n_numbers))
        if times > 2 and (longer := self.with_rows(baseline, times)):
            with npx.small_blocks(None, threads=2):
                self.require("block size", f"{times} times as many rows", longer)


# Errors


def mismatch(rule: str, message: str) -> KernelMismatch:
    """Return the error that names a broken rule."""
    error = KernelMismatch(message)
    error.rule = rule
    return error


@contextmanager
def reported_as(rule: str, name: str) -> Iterator[None]:
    """Turn any error raised in the block into a KernelMismatch with `rule`, unless it already names a rule."""
    try:
        yield
    except KernelMismatch as error:
        error.rule = error.rule or rule
        raise
    except Exception as error:
        raise mismatch(rule, f"{name}: expected a result; got {type(error).__name__}: {error}") from error


def require_identical(rule: str, name: str, before: Any, after: Any) -> None:
    """Raise KernelMismatch unless the arrays in both values are bitwise equal."""
    if any(differ(a, b) for a, b in zip(arrays_in(before), arrays_in(after), strict=True)):
        raise mismatch(rule, f"{name}: expected bitwise equal arrays; got different values")
