"""`check_operation` for a function of Tensors and `check_layer` for a module, which combine all checks of this package.

Both hold hidden state fixed (`hidden_state.py`), compare the gradients with numerical derivatives (`gradcheck.py`), try
the rules (`rules.py`, `modes.py`, `precision.py`), and repeat gradients and precision at inputs derived from the given
ones (`variants.py`).
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.testing import modes as mode_rules
from autograd.testing import precision, rules, variants
from autograd.testing.arguments import Arguments
from autograd.testing.expectation import Expectation, with_hint
from autograd.testing.expected import Expected
from autograd.testing.gradcheck import MAX_ENTRIES, check_gradients
from autograd.testing.hidden_state import buffer_state, cast_buffers, hold_state, layer_restored
from autograd.testing.out_of_contract import note_strays, out_of_contract, require_registered
from autograd.testing.problem import Problem, is_float, quiet, require_floats
from autograd.testing.reference import Reference, compare_value, unwritten_recognised
from autograd.testing.report import REJECTIONS, GradientError, NonFiniteError, Report
from autograd.testing.reproduction import Named, literal, reproduction
from autograd.testing.shrinking import SHRINKABLE, smallest

LEAST = 1e-11  # relative to the output at the given inputs; at derived inputs, smaller derivatives count as 0
MAX_DERIVED_ENTRIES = 36  # at derived inputs, up to this many entries are perturbed separately


@contextmanager
def overflow_ignored() -> Iterator[None]:
    """Suppress warnings: derived inputs are expected to overflow and to divide by zero."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@overflow_ignored()
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
    expect: Any = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check `operation(*inputs, **options)`: its gradients, and every other rule that operations obey.

    operation: a function of Tensors, with its own vjp or composed of other operations.
    inputs: float64 arrays of any shape, and any other arguments of the operation.
    max_saved_bytes: the bytes that may be saved for the backward pass beyond inputs and output; None: any number.
    directions: None: compare every entry at the given inputs. An integer: compare only along that many random
        directions.
    float32: whether to compare results in float32 with those in float64.
    derive: whether to repeat the check at other values and shapes, derived from the floating inputs.
    domain: the open interval (low, high) in which the operation and its gradient are finite, or a sequence with such
        an interval, or None, for each floating input. None: derived inputs that give non-finite values are skipped.
    blocks: the names of options that are block sizes; the results must not depend on them.
    dtype: the dtype of the output, if it differs from that of the inputs.
    reference: a function of the same arrays that returns the correct output. Wherever the reference is
        finite, the operation has to return the same value. The reference has to accept the given inputs and may reject
        derived ones.
    expect: for a gradient that differs from the derivative by intent: "straight-through" or "reversed"; a function
        `expect(g, *inputs)` that returns the intended gradients; or a sentence with the reason, which accepts any
        gradient. The report says how the gradient differs.
    seed: selects the weights of the outputs and the random directions.
    options: passed on to `operation`.

    Returns a Report. Raises GradientError or CheckError, whose `rule` is a key of `report.RULES` and whose text ends
    with a line that reproduces the failure; TypeError and ValueError for invalid arguments, as `gradcheck` does.
    """
    arguments = Arguments(inputs, options)
    name = f"check_operation: {getattr(operation, '__name__', type(operation).__name__)}"
    settings: dict[str, Any] = {"max_saved_bytes": max_saved_bytes, "dtype": dtype, "blocks": tuple(blocks) or None}
    settings |= {"reference": reference, "expect": expect}
    settings = {k: v for k, v in settings.items() if v is not None} | ({} if float32 else {"float32": False})

    # a lambda cannot be written out: the caller defines `reference` as it was
    placeholders = {"reference": Named("reference")} if getattr(reference, "__name__", "") == "<lambda>" else {}

    def call(values: list[Any], **changed: Any) -> Any:
        at_inputs, at_options = arguments.restore(values)
        return operation(*at_inputs, **at_options | changed)

    def reproduce(at: Problem) -> str:
        at_inputs, at_options = arguments.restore(at.values)
        return reproduction("check_operation", operation, at_inputs, at_options | settings | placeholders)

    problem = Problem(name, call, arguments.values, reproduce=reproduce, names=arguments.names)
    require_floats(name, problem.values)
    report = Report()
    problem.constants = arguments.constants(problem, report.notes)
    variants.require_inside(problem, domain)
    with unwritten_recognised(problem, operation, *arguments.restore(arguments.values)):
        hold_state(problem, operation, report.notes)
        check = Check(report, directions, float32, domain, dtype, seed)
        check.expectation, check.has_expect = None if expect is None else Expectation(expect), True
        if reference is not None:
            check.compare_value = partial(compare_value, reference=arguments.adapt(reference))
        check.compare_value(problem, tolerance=1e-9, given=True)
        expected = check.at_given_inputs(problem)
    note_strays(out_of_contract(expected.problem), report.notes)
    if check.expectation is not None:
        report.notes.append(check.expectation.describe_difference(problem, seed))
    output, _ = problem.run()
    saved = report.saved_bytes = rules.saved_bytes(output, [*problem.values, *options.values()])
    if max_saved_bytes is not None and saved > max_saved_bytes:
        text = f"expected at most {max_saved_bytes} bytes saved for backward beyond inputs and output; got {saved}"
        raise expected.problem.failure("saved memory", text)
    rules.in_blocks(expected)
    for option in blocks:
        for size in (1, 2, 3):
            changed: dict[str, Any] = {option: size}
            y, gradients = replace(problem, call=partial(call, **changed)).evaluate(expected.c)
            expected.compare("block size", f"with {option}={size}", y, gradients)
    if derive:
        check.at_derived_inputs(problem)
        check.at_other_options(arguments.with_other_floats(problem, operation))
    report.notes += getattr(operation, "notes", [])  # of a function of another framework
    return report


@overflow_ignored()
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

    The rules for operations and for modes apply, and evaluation mode must not draw random numbers. In training mode,
    dropout is held fixed by `npx.keyed(seed, 1)` around each call in training mode.

    layer: an object with `named_parameters()`, which returns (name, Tensor) pairs, `train()` and `eval()`, such as a
        models.Module. The check runs in float64 and restores the layer.
    inputs: floating arrays, passed on as Tensors; integer ids and any other arguments of the layer.
    modes: "train", "eval", or both, in the order in which to check them.
    directions, float32: as for `check_operation`.
    derive: whether to repeat the check at other values and shapes of inputs and parameters.
    domain: as for `check_operation`; it applies to inputs, not to parameters.
    seed: selects the weights of the outputs, the random directions and the dropout masks.
    options: passed on to `layer`.

    Returns a Report. Raises a GradientError that names the input or parameter, CheckError, or, for invalid
    arguments, TypeError or ValueError.
    """
    require_layer(layer, modes)
    name, named = getattr(layer, "__name__", type(layer).__name__), list(layer.named_parameters())
    arguments = Arguments(inputs, options)
    values = [x.astype("float64") if is_float(x) else x for x in arguments.values]
    originals, tensors = {n: p.data for n, p in named}, [p for _, p in named]
    report, first = Report(), None
    entered: list[tuple[Callable[[], Any], Expected | None]] = []

    def reproduce(at: Problem) -> str:
        # A layer cannot be printed as a literal: `layer` stands for a layer built like the failing one.
        state = ", ".join(f"{n!r}: {literal(npx.to_host(a))}" for n, a in at.parameters.items())
        made = f"from autograd.testing import {layer.adapter}; layer = {layer!r}; " if hasattr(layer, "adapter") else ""
        setup = f"{made}state = {{{state}}}; [setattr(p, 'data', state[n]) for n, p in layer.named_parameters()]"
        return reproduction("check_layer", Named("layer"), *arguments.restore(at.values), setup if named else "")

    with layer_restored(layer) as restore_buffers:
        for mode in modes:
            other_mode = next((m for m in modes if m != mode), "train" if mode == "eval" else "eval")
            enter, leave = getattr(layer, mode), getattr(layer, other_mode)
            enter()
            parameters = {n: data.astype("float64") for n, data in originals.items()}
            call = call_in_mode(layer, mode, seed, arguments)
            title = f"check_layer: {name}, {mode} mode"
            problem = Problem(title, call, values, parameters, tensors, reproduce, arguments.names)
            notes: list[str] = []
            problem.constants = arguments.constants(problem, notes)
            variants.require_inside(problem, domain)
            hold_state(problem, layer, notes)
            report.notes += [f"{mode} mode: {note}" for note in notes]
            check = Check(report, directions, float32, domain, None, seed)
            check.save_buffers = partial(buffer_state, layer)
            check.warm_up(problem)
            expected = check.at_given_inputs(problem)
            require_registered(expected.problem, layer, options, report.notes)
            mode_rules.backward_in_other_mode(expected, leave, enter)
            if mode == "eval" and len(modes) > 1:
                others = [other for name, other in variants.values(problem) if name.endswith("in the parameters")]
                mode_rules.enters_after_update(expected, others, restore_buffers, layer.train, layer.eval)
            if derive and not (first and first.equals(expected)):
                check.at_derived_inputs(problem)
                check.at_other_options(arguments.with_other_floats(problem, getattr(layer, "forward", layer)))
            first = first or expected
            entered.append((enter, expected if mode == "eval" else None))  # calls in training mode update buffers
            restore_buffers()
        if first and len(entered) > 1:
            mode_rules.returns_to_mode(first, entered[1:], entered[0][0])
    return report


def require_layer(layer: Any, modes: Sequence[str]) -> None:
    """Raise TypeError unless `layer` can be checked, and ValueError for unknown modes."""
    if isinstance(layer, type):
        raise TypeError(f"check_layer: expected a layer; got the class {layer.__name__}; try an instance of it")
    if not modes or not {*modes} <= {"train", "eval"}:
        raise ValueError(f"check_layer: expected modes among 'train' and 'eval'; got {modes!r}; try modes=('eval',)")
    missing = [method for method in ("named_parameters", "train", "eval") if not hasattr(layer, method)]
    if missing:
        raise TypeError(
            f"check_layer: expected a layer with {' and '.join(missing)}; got {type(layer).__name__}; "
            "try models.Module as its base, or check_operation for a function"
        )


def call_in_mode(layer: Any, mode: str, seed: int, arguments: Arguments) -> Callable[[list[Any]], Any]:
    """Return a function that calls the layer, with its buffers in the dtype of the inputs and fixed dropout masks."""
    tensors = [p for _, p in layer.named_parameters()]

    def call(values: list[Any]) -> Any:
        dtypes = [x.dtype for x in (*values, *tensors) if is_float(x)]
        if dtypes:
            cast_buffers(layer, dtypes[0])
        inputs, options = arguments.restore(values)
        if mode != "train":
            return layer(*inputs, **options)
        with npx.keyed(seed, 1):
            return layer(*inputs, **options)

    return call


class Check:
    """A check of a problem at the given inputs and at derived ones.

    report: collects the statistics. directions, float32, domain, dtype, seed: as for `check_operation`.
    """

    def __init__(
        self, report: Report, directions: int | None, float32: bool, domain: Any, dtype: str | None, seed: int
    ) -> None:
        self.report, self.directions, self.seed = report, directions, seed
        self.float32, self.domain, self.dtype = float32, domain, dtype
        self.least, self.sizes = 0.0, [0.0]  # magnitudes at the given inputs
        # saves the buffers; returns a function that restores them
        self.save_buffers: Callable[[], Callable[[], Any]] = lambda: lambda: None
        self.compare_value: Callable[..., None] = lambda problem, tolerance, given=False: None
        self.expectation: Expectation | None = None  # of a gradient that differs from the derivative
        self.has_expect = False  # whether the caller has the option `expect`

    def gradients(self, problem: Problem, directions: int | None, limit: int, in_contract: bool = True) -> Expected:
        """Compare gradients; a non-finite output inside the declared domain breaks the rule `domain`."""
        try:
            if self.expectation is not None:
                return self.expectation.compare(problem, self.seed)
            return check_gradients(problem, self.report, directions, seed=self.seed, limit=limit, least=self.least)
        except GradientError as error:
            shown = smallest(problem, error, self.check_small) if error.rule in SHRINKABLE else error
            raise (with_hint(shown, problem, self.seed) if self.has_expect else shown) from error.__cause__
        except NonFiniteError as error:
            if self.domain is None or not in_contract:
                raise
            text = str(error).removeprefix(f"{problem.name}: ")
            raise problem.failure("domain", text) from error

    def check_small(self, problem: Problem) -> None:
        """Compare the gradients of a problem that was made smaller."""
        check_gradients(problem, Report(), seed=self.seed, limit=MAX_DERIVED_ENTRIES, least=self.least)

    def warm_up(self, problem: Problem) -> None:
        """Call the layer with other values first, so that anything cached by the first call is wrong later."""
        for _, other in variants.values(problem):
            with rejections_skipped():
                output, _ = other.run()
                if output.requires_grad:
                    output.backward(npx.ones_like(output.data))
            break

    def at_given_inputs(self, problem: Problem) -> Expected:
        """Compare gradients and test every rule."""
        expected = self.gradients(problem, self.directions, MAX_ENTRIES)
        # At derived inputs, much smaller values than these are rounding errors of intermediate results as large as
        # these.
        self.least = LEAST * expected.norm
        self.sizes = [float(abs(x).max(initial=0.0)) for x in (expected.y, *expected.gradients)]
        rules.keeps_dtype(expected, self.dtype)
        rules.single_backward(expected)
        y, gradients = problem.evaluate(expected.c)
        cause = "a result is cached by array identity, or read-only arrays are handled differently"
        expected.compare("no mutation", "for write-protected arrays", y, gradients, cause=cause)
        rules.no_mutation(expected)
        rules.input_layouts(expected)
        rules.incoming_gradients(expected, is_linear=self.expectation is None)
        rules.independent_inputs(expected)
        rules.accumulation(expected)
        rules.aliased_inputs(expected)
        rules.independent_calls(expected, list(self.others(problem)))
        precision.float64_precision(expected)
        self.with_buffers_restored(precision.float16_accuracy, expected)
        if self.float32 and not self.compare_float32(expected):
            self.report.notes.append("not compared in float32")
        return expected

    def compare_float32(self, expected: Expected, sizes: Sequence[float] = (), loose: float = 1.0) -> bool:
        """Compare results in float32; return whether a comparison was possible."""
        has_domain = self.domain is not None
        return self.with_buffers_restored(precision.float32_accuracy, expected, has_domain, sizes, loose)

    def with_buffers_restored(self, compare: Callable[..., Any], *arguments: Any) -> Any:
        """Call `compare`, which evaluates in another dtype, and restore the float64 buffers."""
        restore_buffers = self.save_buffers()
        try:
            return compare(*arguments)
        finally:
            restore_buffers()

    def others(self, problem: Problem) -> Iterator[Expected]:
        """Yield outputs and gradients at a few other inputs: other values, other parameters, and a batch of one."""
        names = "positive numbers", "positive numbers in the parameters", "1 row"
        for name, other in (*variants.values(problem, self.domain), *islice(variants.shapes(problem, self.domain), 1)):
            if name not in names:
                continue
            with rejections_skipped():
                output, leaves = other.run()
                other.gradients(output, leaves, npx.ones_like(npx.to_host(output.data)))  # raises if it is rejected
                output, leaves = other.run()
                y = npx.to_host(output.data).copy()
                if not npx.isfinite(y).all():
                    continue
                c = npx.to_host(npx.random.normal(npx.Key(self.seed, 4, 0), y.shape, y.dtype))
                gradients = [g.copy() for g in other.protected_gradients(output, leaves, c)]
                yield Expected(other, y, c, gradients)

    def at_derived_inputs(self, problem: Problem) -> None:
        """Compare gradients, and test the rules that depend on values, at inputs derived from the given ones."""
        for name, other in variants.values(problem, self.domain):
            self.at_variant(name, other, 0 if name.startswith(variants.MAGNITUDES) else MAX_DERIVED_ENTRIES)
        for name, other in variants.out_of_contract_values(problem):
            self.at_variant(name, other, MAX_DERIVED_ENTRIES, False)
        in_contract = ((name, other, True) for name, other in variants.shapes(problem, self.domain))
        out_of_contract = ((name, other, False) for name, other in variants.out_of_contract_shapes(problem))
        for shapes in (in_contract, out_of_contract):
            for name, other, is_in_contract in shapes:
                other.reproduce = lambda _: problem.reproduce(problem)  # derives all shapes from the given inputs
                guessed = variants.guessed_shapes(problem, other) if is_in_contract else "all"
                self.at_variant(name, other, 0, is_in_contract, guessed)

    def at_other_options(self, problems: Iterable[tuple[str, Problem]]) -> None:
        """Compare gradients with other values of the options that are floats, to which the reference does not apply."""
        for name, other in problems:
            self.at_variant(name, other, MAX_DERIVED_ENTRIES, False)

    def at_variant(self, name: str, problem: Problem, limit: int, in_contract: bool = True, guessed: str = "") -> None:
        """Check a derived problem.

        limit: up to this many entries, each is perturbed separately; 0: random directions only. in_contract: whether
        the declared domain and the reference apply. guessed: as `variants.guessed_shapes` returns it.
        """
        problem.name = f"{problem.name}, derived: {name}"
        if in_contract:
            self.compare_value(problem, tolerance=1e-5)
        try:
            is_cheap = name.startswith(variants.MAGNITUDES)
            expected = self.gradients(problem, None if limit else 1 if is_cheap else 2, limit, in_contract)
        except GradientError as error:
            if error.rule != "valid gradient":
                raise
            is_singular = isinstance(error.__cause__, npx.host.linalg.LinAlgError)
            if not guessed and not is_singular or guessed == "inputs" and rules.rejects_parameters(problem):
                raise
            return
        except (AttributeError, *REJECTIONS):  # a scalar lacks some methods of an array
            return
        self.report.variants += 1
        if is_cheap:
            return
        y, gradients = problem.evaluate(expected.c)
        expected.compare("independent calls", "if it is called again", y, gradients)
        if self.float32 and limit and not name.startswith(variants.NARROW):
            loose = 1.0 if name.startswith(variants.FLOAT32) else 1e6  # elsewhere only overflow matters
            self.compare_float32(expected, self.sizes, loose)


@contextmanager
def rejections_skipped() -> Iterator[None]:
    """Suppress the error if a function, or its vjp, rejects an input."""
    try:
        yield
    except (RuntimeError, *REJECTIONS, GradientError):
        pass
