"""What a right operation or layer keeps beside the value of its gradient: a function for each rule.

Each takes what `check_gradients` found right at some inputs, `Truth`, and calls again in another way: with other memory
layouts, another incoming gradient, other calls before and between, in float32. The answer is known, so no slopes are
needed, and the comparison is to many digits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import npx
from autograd import operations
from autograd.engine import Tensor, no_grad
from autograd.saved import captured, owner
from autograd.testing.gradcheck import Checked
from autograd.testing.problem import REFUSALS, Problem, is_array, is_float, quiet
from npx import Array

LAYOUTS = ("reversed", "every second", "column-major")


class CheckError(AssertionError):
    """A rule beside the value of the gradient is broken: `rule`, its name."""

    rule = ""


@dataclass
class Truth:
    """A problem, its output there, an incoming gradient c and the gradients for it, on the host."""

    problem: Problem
    y: Array
    c: Array
    gradients: list[Array]

    @classmethod
    def of(cls, checked: Checked) -> "Truth":
        return cls(checked.problem.at(checked.arrays), checked.y, checked.c, checked.gradients)

    def same_as(self, other: "Truth") -> bool:
        """Whether outputs and gradients are the same numbers, as those of a layer whose modes do not differ."""
        ours, others = [self.y, *self.gradients], [other.y, *other.gradients]
        return all(npx.array_equal(a, b, equal_nan=True) for a, b in zip(ours, others, strict=True))

    def refuse(self, rule: str, text: str) -> None:
        line = self.problem.reproduce(self.problem)
        error = CheckError(f"{self.problem.name}: {text}\nrule: {rule}" + (f"\nreproduce: {line}" if line else ""))
        error.rule = rule
        raise error

    def compare(self, rule: str, what: str, y: Array | None, gradients: Sequence[Array | None], factor: float = 1.0,
                tolerance: float = 1e-9) -> None:  # fmt: skip
        """Refuse unless an output and gradients are these, the gradients times `factor`; None is not compared."""
        dtypes = {self.y.dtype.name, *(g.dtype.name for g in self.gradients)}
        tolerance *= 1 if dtypes == {"float64"} else 1e6
        if y is not None and not near(self.y, y, tolerance, 1e-3):
            self.refuse(rule, f"expected the same output {what}; got another, off by {distance(self.y, y):.3g}")
        # Terms as large as c may cancel, and leave their rounding.
        terms = abs(factor) * float(abs(self.c).max(initial=0.0))
        for label, right, g in zip(self.problem.labels, self.gradients, gradients, strict=True):
            if g is not None and not near(factor * right, g, tolerance, terms):
                off = distance(factor * right, g)
                self.refuse(rule, f"expected the same gradient of {label} {what}; got another, off by {off:.3g}")


def near(a: Array, b: Array, tolerance: float, least: float = 0.0) -> bool:
    """Whether b is a, relative to a's largest finite magnitude, `least` at least; where a is not finite, the same."""
    if a.shape != b.shape:
        return False
    finite = npx.isfinite(a)
    size = float(abs(a[finite]).max(initial=least))
    other = (a == b) | ((a != a) & (b != b))
    with quiet():
        return bool((npx.where(finite, abs(a - b) <= tolerance * size, other)).all())


def distance(a: Array, b: Array) -> float:
    """The largest difference; NaN is infinitely far."""
    if a.shape != b.shape or not a.size:
        return npx.inf
    with quiet():
        off = abs(a.astype("float64") - b)
    return float(npx.where(off == off, off, npx.inf).max())


# Running a problem, and what must not be written to


def run(truth: Truth, problem: Problem, c: Array, wanted: Sequence[int] | None = None) -> tuple[Array, list[Array]]:
    """Output and gradients on protected arrays: nothing that it was given may be written to."""
    guarded = problem.at([protected(npx.from_host(npx.to_host(a))) for a in problem.arrays])
    guarded.values = [protected(x) if is_array(x) else x for x in guarded.values]
    with writing_refused(truth, "expected its inputs and parameters to be left as they are; it writes to one"):
        output, leaves = guarded.run(wanted=wanted)
    y = npx.to_host(output.data).copy()
    return y, back(truth, output, leaves, c)


def back(truth: Truth, output: Tensor, leaves: list[Tensor], c: Array) -> list[Array]:
    """Gradients on the host for a protected incoming gradient; zeros where there is none."""
    for leaf in leaves:
        leaf.grad = None
    g = protected(npx.from_host(c))
    kept = npx.to_host(g).copy()
    if output.requires_grad:
        try:
            with writing_refused(truth, "expected its vjp to leave the incoming gradient as it is; it writes to it"):
                output.backward(g)
        except RuntimeError as error:
            truth.refuse("dtype", str(error))
        except REFUSALS as error:
            truth.refuse("incoming layout", f"expected its vjp to take any incoming gradient; it refuses one: {error}")
    if not npx.array_equal(npx.to_host(g), kept, equal_nan=True):
        truth.refuse("untouched", "expected its vjp to leave the incoming gradient as it is; it changed it")
    return [npx.zeros_like(npx.to_host(t.data)) if t.grad is None else npx.to_host(t.grad) for t in leaves]


@contextmanager
def writing_refused(truth: Truth, text: str) -> Iterator[None]:
    """Refuse by rule `untouched` where the block writes to a protected array."""
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        truth.refuse("untouched", f"{text} ({error})")


def protected(x: Array) -> Array:
    """A view of x, in its own memory layout, that (with NumPy) cannot be written to."""
    view = npx.asarray(x).view()
    if hasattr(view, "flags") and hasattr(view.flags, "writeable"):
        view.flags.writeable = False
    return view


def relaid(x: Array, layout: str) -> Array:
    """The same values in another memory layout."""
    if not x.ndim:
        return npx.asarray(x)
    if layout == "reversed":
        return npx.concatenate([x[..., ::-1]], axis=0)[..., ::-1]
    if layout == "every second":
        return npx.repeat(x, 2, axis=-1)[..., ::2]
    return npx.transpose(npx.transpose(x).copy())


# The rules


def untouched(truth: Truth) -> None:
    """Inputs, parameters, output and incoming gradient, where writing is possible, are as before after backward."""
    problem = truth.problem
    arrays = [npx.from_host(npx.to_host(a).copy()) for a in problem.arrays]
    free = problem.at(arrays)
    free.values = [x.copy() if is_array(x) and not is_float(x) else x for x in free.values]
    before = [npx.to_host(x).copy() if is_array(x) else x for x in free.values]
    output, leaves = free.run(arrays)
    c = npx.from_host(truth.c.copy())
    for leaf in leaves:
        leaf.grad = None
    if output.requires_grad:
        output.backward(c)
    given = [*zip(problem.labels, problem.arrays, arrays, strict=True), ("the incoming gradient", truth.c, c)]
    given += [(f"input {i}", b, x) for i, (b, x) in enumerate(zip(before, free.values, strict=True)) if is_array(x)]
    for label, right, a in given:
        if not npx.array_equal(npx.to_host(right), npx.to_host(a), equal_nan=right.dtype.kind == "f"):
            truth.refuse("untouched", f"expected {label} to be left as it is; it changed it")
    if not near(truth.y, npx.to_host(output.data), 1e-12, 1e-3):
        truth.refuse("untouched", "expected the output to be left as it is by backward; it changed it")
    truth.compare("untouched", "on arrays that can be written to", None,
                  [None if t.grad is None else npx.to_host(t.grad) for t in leaves])  # fmt: skip


def keeps_dtype(truth: Truth, dtype: str | None) -> None:
    """The output has the inputs' dtype, or the one that is said."""
    dtypes = {a.dtype.name for a in truth.problem.arrays}
    expected = dtype or (dtypes.pop() if len(dtypes) == 1 else truth.y.dtype.name)
    if truth.y.dtype.name != expected:
        truth.refuse("dtype", f"expected an output of the inputs' dtype, {expected}; got {truth.y.dtype}")


def consumed(truth: Truth) -> None:
    """A second backward through the same graph is refused."""
    output, _ = truth.problem.run()
    if output.node is None:
        return
    output.backward(npx.from_host(truth.c.copy()))
    try:
        output.backward(npx.from_host(truth.c.copy()))
    except RuntimeError:
        return
    truth.refuse("consumed", "expected a second backward to be refused; got a second gradient")


def input_layouts(truth: Truth) -> None:
    """Other memory layouts of inputs and parameters give the same."""
    for layout in LAYOUTS:
        other = truth.problem.at([relaid(npx.from_host(npx.to_host(a)), layout) for a in truth.problem.arrays])
        other.values = [relaid(x, layout) if is_array(x) and not is_float(x) else x for x in other.values]
        guarded = other.at([protected(a) for a in other.arrays])
        with writing_refused(truth, "expected its inputs to be left as they are; it writes to one"):
            output, leaves = guarded.run()
        y = npx.to_host(output.data).copy()
        truth.compare("input layout", f"for inputs in {layout} memory layout", y, back(truth, output, leaves, truth.c))


def incoming_gradients(truth: Truth) -> None:
    """The gradient is linear in the incoming one, whatever its size, and does not depend on its memory layout."""
    problem, c = truth.problem, truth.c
    for layout in LAYOUTS:
        gradients = run(truth, problem, npx.to_host(relaid(npx.asarray(c), layout)))[1]
        truth.compare("incoming layout", f"for an incoming gradient in {layout} memory layout", None, gradients)
    for factor in (-0.3, 1e-6, 1e6, 0.0):
        gradients = run(truth, problem, (factor * c).astype(c.dtype))[1]
        what = f"for an incoming gradient times {factor:g}, times as much"
        truth.compare("linear", what, None, gradients, factor, 1e-10 if factor else 0.0)
    if c.size:
        same = npx.host.broadcast_to(npx.host.asarray(c.reshape(-1)[0]), c.shape)
        expected = run(truth, problem, same.copy())[1]
        repeated = run(truth, problem, same)[1]
        what = "for an incoming gradient that is one number, repeated"
        Truth(problem, truth.y, c, expected).compare("incoming layout", what, None, repeated)
    flat, parts = c.reshape(-1), []
    for position in sorted({0, c.size // 2, c.size - 1} & set(range(c.size))):
        parts.append((npx.host.where(npx.host.arange(c.size) == position, flat, 0), "a single number"))
    if c.size:
        parts.append((npx.host.ones_like(flat), "ones, as `.sum().backward()` has"))
    if c.size > 1 and c.dtype.name == "float64":
        parts.append((flat - flat.mean(), "one that sums up to 0"))
    for part, what in parts:
        pair = [run(truth, problem, p.astype(c.dtype).reshape(c.shape))[1] for p in (part, flat - part)]
        total = [a + b for a, b in zip(*pair, strict=True)]
        what = f"as the sum of those for {what} and for the rest of the incoming gradient"
        truth.compare("linear", what, None, total)


def one_array(truth: Truth) -> None:
    """Inputs that are one and the same array give what copies of it give."""
    arrays, alike = list(truth.problem.arrays), []
    for i in range(len(truth.problem.floats)):
        if arrays[i].shape == arrays[0].shape and arrays[i].dtype == arrays[0].dtype:
            arrays[i] = arrays[0]
            alike.append(i)
    if len(alike) < 2:
        return
    shared, copies = truth.problem.at(arrays), truth.problem.at([a.copy() for a in arrays])
    try:
        y, gradients = run(truth, copies, truth.c)
        output, leaves = shared.run()
    except (CheckError, *REFUSALS):  # not made for equal inputs
        return
    what = "where inputs are one array as where they are copies of it"
    apart = Truth(copies, y, truth.c, gradients)
    apart.compare("one array", what, npx.to_host(output.data), back(apart, output, leaves, truth.c))


def in_blocks(truth: Truth) -> None:
    """What `npx` computes in blocks of rows, `npx.elementwise` too, does not depend on where one begins."""
    with npx.small_blocks(1, threads=2):
        y, gradients = run(truth, truth.problem, truth.c)
    truth.compare("blocks", "in blocks of one row (npx.small_blocks)", y, gradients)


def alone(truth: Truth) -> None:
    """An input gets alone the gradient that it gets beside the others."""
    number = len(truth.gradients)
    if 1 < number <= 12:
        for i in range(number):
            y, gradients = run(truth, truth.problem, truth.c, wanted=[i])
            own: list[Array | None] = [g if i == k else None for k, g in enumerate(gradients)]
            truth.compare("alone", "alone as beside the others", y, own)


def calls(truth: Truth, others: Sequence[Truth]) -> None:
    """Calls before, between and after do not matter: nothing is kept from one to another.

    Two calls, then their backwards in either order; the same as parts of one graph; and once more on the same arrays
    after their numbers changed, as an optimizer changes parameters.
    """
    for other in others:
        for first, second in ((truth, other), (other, truth)):
            made = [each.problem.run() for each in (first, second)]
            for each, (output, leaves) in zip((first, second), made, strict=True):
                what = "when another call came between it and its backward, or before it"
                gradients = back(each, output, leaves, each.c)
                each.compare("calls", what, npx.to_host(output.data), gradients)
            output, leaves = first.problem.run()
            with no_grad():
                second.problem.run()
            what = "after a call without gradients"
            first.compare("calls", what, npx.to_host(output.data), back(first, output, leaves, first.c))
        together(truth, other)
    for other in others:
        if [a.shape for a in other.problem.arrays] == [a.shape for a in truth.problem.arrays]:
            changed(truth, other)


def together(truth: Truth, other: Truth) -> None:
    """Two calls in one graph, on results of other operations, and one call on the result of both."""
    pair, total = (truth, other), None
    leaves = [
        [Tensor(npx.asarray(npx.from_host(npx.to_host(a))), requires_grad=True) for a in each.problem.arrays]
        for each in pair
    ]
    inner = [[operations.multiply(t, 1.0) for t in own] for own in leaves]  # both before either call
    for each, given in zip(pair, inner, strict=True):
        output = each.problem.apply(given)
        part = operations.sum(operations.multiply(output, npx.from_host(each.c)))
        total = part if total is None else operations.add(total, part.astype(total.dtype))
    assert total is not None
    if total.requires_grad:
        total.backward()
    for each, own in zip(pair, leaves, strict=True):
        gradients = [npx.zeros_like(npx.to_host(t.data)) if t.grad is None else npx.to_host(t.grad) for t in own]
        each.compare("calls", "when called twice in one graph", None, gradients)


def changed(truth: Truth, other: Truth) -> None:
    """The same arrays, other numbers in them."""
    arrays = [npx.from_host(npx.to_host(a).copy()) for a in truth.problem.arrays]
    same = truth.problem.at(arrays)
    output, leaves = same.run(arrays)
    back(truth, output, leaves, truth.c)
    for a, b in zip(arrays, other.problem.arrays, strict=True):
        a[...] = npx.from_host(npx.to_host(b))
    moved = other.problem.at(arrays)
    output, leaves = moved.run(arrays)
    what = "after the numbers in inputs and parameters were changed"
    other.compare("update", what, npx.to_host(output.data), back(other, output, leaves, other.c))


# What is kept for backward


def saved_bytes(output: Tensor, known: Sequence[Any] = ()) -> int:
    """Bytes of the arrays that the vjp of `output` keeps alive, without the output itself and the arrays `known`."""
    if output.node is None or output.node.vjp is None:
        return 0
    seen = {id(owner(x)) for x in (*captured(list(known)), output.data)}
    total = 0
    for array in captured(output.node.vjp):
        if array.ndim and id(owner(array)) not in seen:
            seen.add(id(owner(array)))
            total += owner(array).nbytes
    return total
