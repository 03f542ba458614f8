"""Is a fast version of a kernel, and of its gradient, what the reference is, however it is called?

`check_kernel` runs each fast version under other memory layouts, block sizes and numbers of threads, with other
gradients of the output, and in other orders of calls. Of each of these it says what has to hold, a *rule*; what fails
names the one that is broken.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import npx
from autograd.testing.calls import REPEATED, Values, arrays_in, differ, finite, laid_out, longer, moved, other, scale
from autograd.testing.rules import LAYOUTS
from autograd.testing.writing import Named, reproduction
from npx import Array, KernelMismatch, Key
from npx.dispatch import compare, copied, mapped

SIZES, THREADS = (1, 2, 3), (1, 2, 3)  # of blocks, and of threads that walk over them
MOST_BLOCKS = 1000  # of an array; where it is larger, so are the blocks
MANY_ROWS, MANY_NUMBERS = 2100, 150_000  # at most, of a call that a block of usual size does not hold
FACTORS = 2.0**20, 2.0**-20, 0.0  # of the gradient of the output: powers of two round nothing
np = npx.host


def check_kernel(
    kernel: npx.Kernel,
    *args: Any,
    gradient: dict[str, Any] | None = None,
    derive: bool = True,
    seed: int = 0,
    **kwargs: Any,
) -> list[str]:
    """Check each fast version of `kernel` for arguments like these against its reference, and each of its gradient.

    On every engine present that has a version for the dtype of the first argument. `gradient`: options of the
    gradient. What a version saves for its gradient is its own affair. The rules:

        reference        results, and what is left in every argument, are those of the reference in one block, on one
                         thread: in value, shape and dtype
        untouched        the output and its gradient are left as they are, and of arguments what the reference leaves
        input layout     arguments may lie in memory in any order, and be protected if the reference writes to none
        incoming layout  so may the gradient of the output, or be one number or one row repeated by strides of 0, and
                         arrays among `gradient`
        blocks, threads  under `npx.small_blocks` the reference and the version give the same: blocks of 1, 2, 3 rows,
                         and 1, 2, 3 threads, whose number changes no bit; in float64 many rows do so, too
        linear           the gradient is linear in that of the output: 2^20 or 2^-20 times as large, 0, a single 1
        calls            another call in between, of other values or another size, changes nothing

    derive False: of these the layouts, blocks of one size and two numbers of threads, for examples drawn by the dozen.
    Of more than 150,000 numbers only the first rule, on two threads too: they fill several blocks as they are.
    Returns the names of the versions checked. Raises npx.KernelMismatch, whose `rule` is the broken one, with a line to
    reproduce it.
    """
    checked = []
    before = npx.device()
    try:
        for device, engine in (("cpu", "numpy"), ("cuda", "cupy")):
            key = engine, args[0].dtype.name
            if key in kernel.versions and present(device):
                npx.use_device(device)
                trial = Trial(kernel, key, Values(*mapped(npx.to_host, (args, kwargs, gradient or {}))), seed)
                trial.check(derive)
                checked.append(trial.version)
    except KernelMismatch as error:
        options = kwargs | ({"gradient": gradient} if gradient else {}) | ({"seed": seed} if seed else {})
        options |= {} if derive else {"derive": False}
        setup = "from npx import KERNELS"
        line = reproduction("check_kernel", Named(f"KERNELS[{kernel.name!r}]"), args, options, setup)
        raise mismatch(error.rule, f"check_kernel: {error}\nrule: {error.rule}\nreproduce: {line}") from error
    finally:
        npx.use_device(before)
    return checked


def present(device: str) -> bool:
    """Whether `device` can be used here."""
    before = npx.device()
    try:
        npx.use_device(device)
    except RuntimeError:
        return False
    npx.use_device(before)
    return True


class Called(NamedTuple):
    """What a version gave: its output, what it saved (None: it has no gradient), its arguments afterwards."""

    y: Any
    saved: Any
    arguments: Any


class Outcome(NamedTuple):
    """The output of a call, its arguments afterwards, and its gradients with their options afterwards, or None."""

    y: Any
    arguments: Any
    gradients: Any


class Truth(NamedTuple):
    """What the reference gives for some values and a gradient g of the output (None: it has no gradient)."""

    values: Values
    g: Any
    outcome: Outcome


class Trial:
    """The version of `key` of a kernel, for some values."""

    def __init__(self, kernel: npx.Kernel, key: tuple[str, str], values: Values, seed: int) -> None:
        self.kernel, self.key, self.values, self.seed = kernel, key, values, seed
        self.version = getattr(kernel.versions[key], "__name__", "fast version")
        self.name = f"{kernel.name}, {self.version}"
        self.grad_name = f"{kernel.grad.name if kernel.grad else ''}, {self.version}"
        self.numbers = sum(x.size for x in arrays_in(values))

    def check(self, derive: bool) -> None:
        """All rules, or those that each drawn example is held to."""
        truth = self.truth(self.values)
        self.hold("reference", "given layout", truth)
        if self.numbers > MANY_NUMBERS:
            with npx.small_blocks(None, threads=2):
                self.hold("threads", "2 threads", truth)
            return
        self.check_layouts(truth)
        self.check_blocks(truth, SIZES if derive else (2,), THREADS if derive else (1, 2))
        if derive:
            twice = self.longer(truth, 2)
            self.check_incoming(truth)
            self.check_calls(truth, twice)
            if twice and self.key[1] == "float64":  # in which sums over many rows lose no digit that is compared
                self.check_many_rows(truth)

    # What is run

    def call(self, version: tuple[str, str] | None, arguments: Any) -> Called:
        """What the version of a key (None: the reference) gives for (positional, named) arguments."""
        given, named = arguments
        result = self.kernel.run(version, *given, **named)
        if self.kernel.grad is None:
            return Called(result, None, arguments)
        y, saved = result
        return Called(y, None if saved.values is None else saved, arguments)

    def gradients(self, called: Called, truth: Truth, layout: str = "given") -> Any:
        """(gradients, options afterwards) of a call, for the truth's gradient of the output in a layout.

        The arrays in the options, which may be written to, have it too if they can.
        """
        g, options = moved(truth.g, layout), moved(truth.values.gradient, layout if layout in LAYOUTS else "given")
        result = called.saved.gradient(g, **options)
        untouched("untouched", f"{self.grad_name}, gradient of the output", truth.g, g)
        return result, options

    def outcome(self, called: Called, truth: Truth, layout: str = "given") -> Outcome:
        """A call with its gradient."""
        if called.saved is None:
            return Outcome(called.y, called.arguments, None)
        y = copied(called.y)
        gradients = self.gradients(called, truth, layout)
        untouched("untouched", f"{self.grad_name}, output", y, called.y)
        return Outcome(y, called.arguments, gradients)

    def truth(self, values: Values, g: Any = None) -> Truth:
        """What the reference gives, in one block; g None: a random one."""
        with npx.small_blocks(None, threads=1):
            called = self.call(None, moved(values[:2]))
            if g is None and called.saved is not None:
                g = npx.to_host(npx.random.normal(Key(self.seed, 0, 0), called.y.shape, called.y.dtype))
            truth = Truth(values, g, Outcome(called.y, called.arguments, None))
            return truth._replace(outcome=self.outcome(called, truth))

    def derived(self, values: Values, g: Any = None) -> Truth | None:
        """`truth` of derived values; None where the reference refuses them, or gives what is not finite."""
        try:
            truth = self.truth(values, g)
        except Exception:
            return None
        return truth if finite(truth.outcome) or not finite(self.values) else None

    def longer(self, truth: Truth, times: int) -> Truth | None:
        """`derived` for `times` as many rows; None where results grow otherwise than by rows."""
        many = self.derived(longer(self.values, times))
        if many is None:
            return None
        once, grown = ((x.outcome.y, x.outcome.gradients) for x in (truth, many))
        pairs = zip(arrays_in(once), arrays_in(grown), strict=True)
        fits = all(b.shape in (a.shape, (times * len(a), *a.shape[1:]) if a.ndim else ()) for a, b in pairs)
        return many if fits else None

    # How it is judged

    def hold(
        self, rule: str, where: str, truth: Truth, layout: str = "given", incoming: str = "given", fast: bool = True
    ) -> Outcome:
        """The outcome of the version, or of the reference, for arguments and the gradient of the output in layouts.

        KernelMismatch by `rule` where it is not that of `truth`, or an error.
        """
        where += "" if fast else ", reference"
        with broken(rule, f"{self.name}, {where}"):
            called = self.call(self.key if fast else None, moved(truth.values[:2], layout))
            found = self.outcome(called, truth, incoming)
            self.compare(where, truth, found)
        return found

    def compare(self, where: str, truth: Truth, found: Outcome) -> None:
        """Raise KernelMismatch unless an outcome is that of the truth."""
        name, expected = f"{self.name}, {where}", truth.outcome
        compare(name, expected.y, found.y)
        triples = zip(*map(arrays_in, (truth.values[:2], expected.arguments, found.arguments)), strict=True)
        for i, (given, left, now) in enumerate(triples):
            with broken("" if differ(given, left) else "untouched", name):  # "": it is a result
                compare(f"{name}, arguments afterwards[{i}]", left, now)
        compare(f"{self.grad_name}, {where}", expected.gradients, found.gradients)

    # The rules

    def check_layouts(self, truth: Truth) -> None:
        for layout in LAYOUTS:
            for fast in (False, True):
                self.hold("input layout", f"{layout} layout", truth, layout, fast=fast)
        for layout in (*LAYOUTS, "read-only") if truth.g is not None else ():
            self.hold("incoming layout", f"gradient of the output in {layout} layout", truth, incoming=layout)
        try:
            self.call(None, moved(truth.values[:2], "read-only"))
        except ValueError:  # it writes to its arguments
            return
        self.hold("input layout", "read-only arguments", truth, "read-only")

    def check_blocks(self, truth: Truth, sizes: tuple[int, ...], threads: tuple[int, ...]) -> None:
        largest = max((x.size for x in arrays_in(truth.values)), default=0)
        for size in (n + largest // MOST_BLOCKS for n in sizes):
            where = f"blocks of {size}"
            with npx.small_blocks(size, threads[0]):
                self.hold("blocks", where, truth, fast=False)
                alone = self.hold("blocks", where, truth)
            for many in threads[1:] if self.key[0] == "numpy" else ():
                where = f"blocks of {size}, {many} threads"
                with npx.small_blocks(size, many):
                    found = self.hold("threads", where, truth)
                untouched("threads", f"{self.name}, {where} instead of one", alone, found)

    def check_incoming(self, truth: Truth) -> None:
        """Gradients of the output that are other numbers."""
        g = truth.g
        if g is None or not g.size:
            return
        for layout in REPEATED:
            repeated = self.derived(self.values, np.array(laid_out(g, layout)))
            if repeated:
                self.hold("incoming layout", f"gradient of the output: {layout}", repeated, incoming=layout)
        ones = self.derived(self.values, np.ones_like(g))
        if ones:
            self.hold("linear", "gradient of the output: ones", ones)
        for place in {0, g.size - 1}:
            one = self.derived(self.values, (np.arange(g.size) == place).astype(g.dtype).reshape(g.shape))
            if one:
                self.hold("linear", f"gradient of the output: 1 at {place}, else 0", one)
        for factor in FACTORS if g.dtype.itemsize > 2 and finite(truth.outcome) else ():
            scaled = self.derived(self.values, scale(g, factor))
            where = f"gradient of the output times {factor:g}"
            with broken("linear", f"{self.grad_name}, {where}"):
                if scaled:
                    found = self.gradients(self.call(self.key, moved(self.values[:2])), scaled)[0]
                    # Brought back to the size that rounding errors and the tolerance belong to.
                    expected = scale(truth.outcome.gradients[0], float(factor != 0))
                    compare(f"{self.grad_name}, {where}, divided by it", expected, scale(found, 1 / (factor or 1)))

    def check_calls(self, truth: Truth, twice: Truth | None) -> None:
        changed = self.derived(other(self.values))
        for first in (truth, twice) if changed else ():
            for order in ((0, 1), (1, 0)) if first else ():
                where = f"two calls, the gradient of call {order[0] + 1} first"
                with broken("calls", f"{self.name}, {where}"):
                    self.interleave((first, changed), order, where)
        if changed:
            where = "a second call with other values in the arrays of the first"
            with broken("calls", f"{self.name}, {where}"):
                self.compare(where, changed, self.refilled(truth, changed))

    def interleave(self, truths: Any, order: tuple[int, int], where: str) -> None:
        """Two calls, then both gradients: each result is what it is alone, and stays so."""
        calls: list[Called] = []
        given: list[tuple[Any, Any]] = []  # results, and what they were
        for truth in truths:
            calls.append(self.call(self.key, moved(truth.values[:2])))
            compare(f"{self.name}, {where}", truth.outcome.y, calls[-1].y)
            given.append((calls[-1].y, copied(calls[-1].y)))
            self.still(given, where)
        for n in order if calls[0].saved and calls[1].saved else ():
            gradients = self.gradients(calls[n], truths[n])
            compare(f"{self.grad_name}, {where}", truths[n].outcome.gradients, gradients)
            given.append((gradients, copied(gradients)))
            self.still(given, where)

    def still(self, given: list[tuple[Any, Any]], where: str) -> None:
        for now, before in given:
            untouched("calls", f"{self.name}, {where}: a result that was given before", before, now)

    def refilled(self, truth: Truth, changed: Truth) -> Outcome:
        """The outcome of a call in whose arrays the values of an earlier one stood."""
        arguments = moved(truth.values[:2])
        arrays = iter(arrays_in(arguments))
        called = self.call(self.key, arguments)
        if called.saved is not None:
            self.gradients(called, truth)

        def refill(x: Array) -> Array:
            array = next(arrays)
            array[...] = npx.from_host(x)
            return array

        return self.outcome(self.call(self.key, mapped(refill, changed.values[:2])), changed)

    def check_many_rows(self, truth: Truth) -> None:
        """More than one block of a kernel whose blocks cannot be shrunk."""
        rows = len(np.atleast_1d(self.values.args[0]))
        times = min(MANY_ROWS // max(1, rows), MANY_NUMBERS // max(1, self.numbers))
        many = self.longer(truth, times) if times > 2 else None
        if many:
            with npx.small_blocks(None, threads=2):
                self.hold("blocks", f"{times} times as many rows", many)


# Parts


def mismatch(rule: str, message: str) -> KernelMismatch:
    """The error that a rule is broken."""
    error = KernelMismatch(message)
    error.rule = rule
    return error


@contextmanager
def broken(rule: str, what: str) -> Iterator[None]:
    """What goes wrong within breaks `rule`, unless it names another; an error of any kind is a mismatch too."""
    try:
        yield
    except KernelMismatch as error:
        error.rule = error.rule or rule
        raise
    except Exception as error:
        raise mismatch(rule, f"{what}: expected a result; got {type(error).__name__}: {error}") from error


def untouched(rule: str, what: str, before: Any, after: Any) -> None:
    """Raise KernelMismatch unless the arrays in both are the same in every bit."""
    if any(differ(a, b) for a, b in zip(arrays_in(before), arrays_in(after), strict=True)):
        raise mismatch(rule, f"{what}: expected the same bits; got others")
