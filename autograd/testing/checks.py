"""Everything a correct operation or layer keeps: `check_operation`, one function of Tensors; `check_layer`, a module.

Each goes the same way: what the function remembers from call to call is held (`held.py`), the gradients are compared
with slopes (`gradcheck.py`), the rules are tried (`rules.py`), and then both again at other inputs, derived from the
given ones (`variants.py`).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing import modes as modes_rules
from autograd.testing import precision, rules, variants
from autograd.testing.gradcheck import MOST, Checked, check_gradients
from autograd.testing.held import buffer_state, cast_buffers, hold
from autograd.testing.leaves import note_unasked, refuse_unasked, unasked
from autograd.testing.problem import (
    REFUSALS,
    GradientError,
    NotFinite,
    Problem,
    Report,
    gradients_of,
    is_float,
    quiet,
    refuse_without_floats,
)  # fmt: skip
from autograd.testing.rules import CheckError, Truth, saved_bytes
from autograd.testing.value import Reference, blanks_recognised, compare_value
from autograd.testing.writing import Named, literal, reproduction

LEAST = 1e-11  # of the output at the given inputs: slopes at derived inputs that are below are not looked at
FEW = 36  # entries up to which each is moved alone, at derived inputs


@contextmanager
def ignoring() -> Iterator[None]:
    """Derived inputs may overflow and divide by zero: that is no news."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@ignoring()
def check_operation(
    operation: Callable[..., Tensor],
    *inputs: Any,
    max_saved_bytes: int | None = None,
    directions: int | None = None,
    float32: bool = True,
    derive: bool = True,
    domain: Any = None,
    blocks: Sequence[str] = (),
    dtype: str | None = None,
    reference: Reference | None = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check `operation(*inputs, **options)`: its gradients, and the rules that every operation keeps (`rules.py`).

    inputs: float64 arrays, and whatever else the operation takes. From the floating ones others are derived, unless
    `derive` is False. domain: (low, high), or such a pair or None for each floating input: in this open interval the
    operation has finite values and gradients; None: found by trying. blocks: the options that are block sizes, which
    must not matter. dtype: that of the output, where it is not the inputs'. float32 False: not compared in float32.
    reference: a function of the same arrays to the output's array, which takes the given ones; wherever it gives finite
    numbers, the operation has to give the same, before any slope is looked at.
    max_saved_bytes: what may be kept for backward beyond inputs and output; None: anything.
    Raises GradientError or CheckError, which name the rule, with a line to reproduce it; and what `gradcheck` raises
    for bad use.
    """
    values = [x.data if isinstance(x, Tensor) else x for x in inputs]
    name = f"check_operation: {getattr(operation, '__name__', type(operation).__name__)}"
    rule_options: dict[str, Any] = {"max_saved_bytes": max_saved_bytes, "dtype": dtype, "blocks": tuple(blocks) or None}
    rule_options["reference"] = reference
    given = options | {k: v for k, v in rule_options.items() if v is not None} | ({} if float32 else {"float32": False})

    def call(values: list[Any], **changed: Any) -> Any:
        return operation(*values, **options | changed)

    problem = Problem(
        name, call, values, reproduce=lambda at: reproduction("check_operation", operation, at.values, given)
    )
    refuse_without_floats(name, values)
    variants.refuse_outside(problem, domain)
    report = Report()
    with blanks_recognised(problem, operation, options):
        hold(problem, operation, report.notes)
        check = Check(report, directions, float32, domain, dtype, seed)
        if reference is not None:
            check.value = partial(compare_value, reference=reference, options=options)
        check.value(problem, close=1e-9, given=True)
        truth = check.everything(problem)
    note_unasked(unasked(truth), report.notes)
    output, _ = problem.run()
    saved = report.saved_bytes = saved_bytes(output, [*problem.values, *options.values()])
    if max_saved_bytes is not None and saved > max_saved_bytes:
        kept = "bytes kept for backward beyond inputs and output"
        truth.refuse("saved", f"expected at most {max_saved_bytes} {kept}; got {saved}")
    rules.in_blocks(truth)
    for option in blocks:
        for size in (1, 2, 3):
            changed: dict[str, Any] = {option: size}
            smaller = replace(problem, call=partial(call, **changed))
            y, gradients = rules.run(truth, smaller, truth.c)
            truth.compare("blocks", f"with {option}={size}", y, gradients)
    if derive:
        check.derived(problem)
    return report


@ignoring()
def check_layer(
    layer: Any,
    *inputs: Any,
    modes: Sequence[str] = ("train", "eval"),
    directions: int | None = None,
    float32: bool = True,
    derive: bool = True,
    domain: Any = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `layer(*inputs, **options)` with respect to inputs and parameters, in each mode.

    layer: anything with `named_parameters()` -> (name, Tensor), `train()` and `eval()` (a models.Module); it is checked
    in float64 and left as it was. Dropout is held fixed: each evaluation runs within `npx.keyed(seed, 1)`. inputs:
    floating arrays (as Tensors they are handed on), integer ids and whatever else the layer takes; from the floating
    ones and the parameters others are derived, unless `derive` is False. domain: as for `check_operation`. The rules
    (`rules.py`) are those of operations; also checked is that evaluation mode needs no random numbers.
    Raises GradientError naming the input or parameter, CheckError, and what `gradcheck` raises for bad use.
    """
    if isinstance(layer, type):
        raise TypeError(f"check_layer: expected a layer; got the class {layer.__name__}; try an instance of it")
    if not modes or not {*modes} <= {"train", "eval"}:
        raise ValueError(f"check_layer: expected modes among 'train' and 'eval'; got {modes!r}; try modes=('eval',)")
    name = type(layer).__name__
    missing = [method for method in ("named_parameters", "train", "eval") if not hasattr(layer, method)]
    if missing:
        raise TypeError(
            f"check_layer: expected a layer with {' and '.join(missing)}; got {name}; "
            "try models.Module as its base, or check_operation for a function"
        )
    given = [x.data if isinstance(x, Tensor) else x for x in inputs]
    values = [x.astype("float64") if is_float(x) else x for x in given]
    modules = list(layer.modules()) if hasattr(layer, "modules") else []
    training = [(m, m.training) for m in modules]
    set_back = buffer_state(layer)
    named = list(layer.named_parameters())
    kept = [(p, p.data, p.grad, p.node, p.requires_grad) for _, p in named]
    report, first = Report(), None
    between: list[tuple[Callable[[], Any], Truth | None]] = []

    def reproduce(at: Problem) -> str:
        # A layer cannot be written as one literal: `layer` stands for one built as the failing one.
        state = ", ".join(f"{n!r}: {literal(npx.to_host(a))}" for n, a in at.parameters.items())
        setup = f"state = {{{state}}}; [setattr(p, 'data', state[n]) for n, p in layer.named_parameters()]"
        return reproduction("check_layer", Named("layer"), at.values, options, setup if named else "")

    try:
        for mode in modes:
            getattr(layer, mode)()

            def call(values: list[Any], mode: str = mode) -> Any:
                dtypes = [x.dtype for x in (*values, *(p for _, p in named)) if is_float(x)]
                if dtypes:
                    cast_buffers(layer, dtypes[0])
                if mode != "train":
                    return layer(*values, **options)
                with npx.keyed(seed, 1):
                    return layer(*values, **options)

            parameters = {n: data.astype("float64") for (n, _), (_, data, *_) in zip(named, kept, strict=True)}
            own = [p for _, p in named]
            problem = Problem(f"check_layer: {name}, {mode} mode", call, values, parameters, own, reproduce)
            variants.refuse_outside(problem, domain)
            notes: list[str] = []
            hold(problem, layer, notes)
            report.notes += [f"{mode} mode: {note}" for note in notes]
            check = Check(report, directions, float32, domain, None, seed)
            check.keep = partial(buffer_state, layer)
            check.before(problem)
            truth = check.everything(problem)
            refuse_unasked(truth, layer, options, report.notes)
            other_mode = next((m for m in modes if m != mode), "train" if mode == "eval" else "eval")
            modes_rules.mode(truth, getattr(layer, other_mode), getattr(layer, mode))
            if mode == "eval" and len(modes) > 1:
                others = [other for name, other in variants.values(problem) if name.endswith("in the parameters")]
                modes_rules.renewed(truth, others, set_back, layer.train, layer.eval)
            if derive and not (first and first.same_as(truth)):
                check.derived(problem)
            first = first or truth
            between.append((getattr(layer, mode), truth if mode == "eval" else None))  # training moves running means
            set_back()
        if first and len(between) > 1:
            modes_rules.again(first, between[1:], between[0][0])
    finally:
        for p, data, grad, node, wanted in kept:
            p.data, p.grad, p.node, p.requires_grad = data, grad, node, wanted
        set_back()
        for module, was in training:
            module.training = was
    return report


class Check:
    """One run of the kit over a problem and those derived from it."""

    def __init__(
        self, report: Report, directions: int | None, float32: bool, domain: Any, dtype: str | None, seed: int
    ) -> None:
        self.report, self.directions, self.seed = report, directions, seed
        self.float32, self.domain, self.dtype = float32, domain, dtype
        self.least, self.sizes = 0.0, [0.0]
        self.keep: Callable[[], Callable[[], Any]] = lambda: lambda: None  # remembers what float32 would round
        self.value: Callable[..., None] = lambda problem, close, given=False: None  # holds it to a reference

    def gradients(self, problem: Problem, directions: int | None, most: int, asked: bool = True) -> Checked:
        try:
            return check_gradients(problem, self.report, directions, seed=self.seed, most=most, least=self.least)
        except NotFinite as error:
            if self.domain is None or not asked:
                raise
            refused = CheckError(f"{error}\nrule: domain\nreproduce: {problem.reproduce(problem)}")
            refused.rule = "domain"
            raise refused from error

    def before(self, problem: Problem) -> None:
        """A call with other numbers, before any that counts: what is kept from the first call is then wrong."""
        for _, other in variants.values(problem):
            with refusals_pass():
                output, _ = other.run()
                if output.requires_grad:
                    output.backward(npx.ones_like(output.data))
            break

    def everything(self, problem: Problem) -> Truth:
        """Slopes and every rule at the given inputs."""
        checked = self.gradients(problem, self.directions, MOST)
        truth = Truth.of(checked)
        # At derived inputs, what is much smaller than here is rounding of numbers that are as large as here.
        self.least = LEAST * checked.size
        self.sizes = [float(abs(x).max(initial=0.0)) for x in (truth.y, *truth.gradients)]
        rules.keeps_dtype(truth, self.dtype)
        rules.consumed(truth)
        y, gradients = rules.run(truth, problem, truth.c)
        truth.compare("untouched", "on arrays that cannot be written to", y, gradients)
        rules.untouched(truth)
        rules.input_layouts(truth)
        rules.incoming_gradients(truth)
        rules.alone(truth)
        rules.one_array(truth)
        rules.calls(truth, list(self.others(problem)))
        precision.keeps_precision(truth)
        if self.float32 and not self.in_float32(truth):
            self.report.notes.append("not compared in float32")
        return truth

    def in_float32(self, truth: Truth, sizes: Sequence[float] = (), loose: float = 1.0) -> bool:
        """Whether it could be compared in float32; buffers are float64 again afterwards."""
        set_back = self.keep()
        try:
            return precision.float32(truth, self.domain is not None, sizes, loose)
        finally:
            set_back()

    def others(self, problem: Problem) -> Iterator[Truth]:
        """Outputs and gradients at a few other inputs: other numbers, other parameters, and a batch of one."""
        names = "positive numbers", "positive numbers in the parameters", "1 rows"
        for name, other in (*variants.values(problem, self.domain), *islice(variants.shapes(problem, self.domain), 1)):
            if name not in names:
                continue
            with refusals_pass():
                output, leaves = other.run()
                gradients_of(other, output, leaves, npx.ones_like(npx.to_host(output.data)))  # or it does not fit
                output, leaves = other.run()
                y = npx.to_host(output.data).copy()
                if not npx.isfinite(y).all():
                    continue
                c = npx.to_host(npx.random.normal(npx.Key(self.seed, 4, 0), y.shape, y.dtype))
                truth = Truth(other, y, c, [])
                truth.gradients = [g.copy() for g in rules.back(truth, output, leaves, c)]
                yield truth

    def derived(self, problem: Problem) -> None:
        """Slopes, and the rules that numbers may break, at inputs derived from the given ones."""
        for name, other in variants.values(problem, self.domain):
            self.variant(name, other, FEW)
        for name, other in variants.unasked(problem):
            self.variant(name, other, FEW, False)
        for found, asked in ((variants.shapes(problem, self.domain), True), (variants.unasked_shapes(problem), False)):
            for name, other in found:
                other.reproduce = lambda _: problem.reproduce(problem)  # from which all are derived again
                self.variant(name, other, 0, asked)

    def variant(self, name: str, problem: Problem, most: int, asked: bool = True) -> None:
        """`asked`: whether the declared domain and the reference speak for it."""
        problem.name = f"{problem.name}, derived: {name}"
        if asked:
            self.value(problem, close=1e-5)
        try:
            checked = self.gradients(problem, None if most else 2, most, asked)
        except GradientError as error:
            if error.rule == "dtype" and not most:  # which arguments share an axis was a guess
                return
            raise
        except (AttributeError, *REFUSALS):  # a number has not all that an array has
            return
        self.report.variants += 1
        truth = Truth.of(checked)
        y, gradients = rules.run(truth, problem, truth.c)
        truth.compare("calls", "when called again", y, gradients)
        if self.float32 and most and not name.startswith(variants.NARROW):
            loose = 1.0 if name.startswith(variants.FLOAT32) else 1e6  # where only overflow is looked for
            self.in_float32(truth, self.sizes, loose)


@contextmanager
def refusals_pass() -> Iterator[None]:
    """Go on after the block where a function, or its vjp, is not made for an input."""
    try:
        yield
    except (RuntimeError, *REFUSALS, GradientError):
        pass
