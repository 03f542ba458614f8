"""All checks of this package combined: `check_operation` for a function of Tensors, `check_layer` for a module.

Both functions hold implicit state fixed (`implicit_state.py`) and run a `ProblemCheck` (`problem_check.py`), which
compares gradients with numerical derivatives (`gradcheck.py`) and checks the rules (`rules.py`, `precision.py`). Then
it checks gradients and precision at inputs derived from the given ones (`variants.py`). Layers also have rules for
their modes (`modes.py`).
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.operation_checks import MixedDtypesError
from autograd.testing import modes as mode_rules
from autograd.testing import rules, variants
from autograd.testing.arguments import Arguments
from autograd.testing.baseline import Baseline
from autograd.testing.declared_gradient import DeclaredGradient
from autograd.testing.implicit_state import cast_buffers, hold_state, layer_restored
from autograd.testing.problem import Problem, floating_point_warnings_ignored, is_float, require_floats
from autograd.testing.problem_check import ProblemCheck
from autograd.testing.progress import progress_line
from autograd.testing.reference import Reference, missing_bodies_reported
from autograd.testing.report import Report, rejections_unwrapped
from autograd.testing.reproduction import Placeholder, literal, reproduction
from autograd.testing.stray_tensors import note_unchecked_tensors, require_registered, stray_tensors


@contextmanager
def overflow_ignored() -> Iterator[None]:
    """Suppress warnings, because derived inputs are meant to cause overflow and division by zero."""
    with floating_point_warnings_ignored(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@progress_line()
@rejections_unwrapped()
@overflow_ignored()
def check_operation(
    operation: Callable[..., Tensor],
    *inputs: Any,
    max_saved_bytes: int | None = None,
    n_directions: int | None = None,
    compare_float32: bool = True,
    vary_inputs: bool = True,
    domain: Any = None,
    block_size_options: Sequence[str] = (),
    output_dtype: str | None = None,
    reference: Reference | None = None,
    expected_gradient: Any = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `operation(*inputs, **options)`, and every other rule that operations must obey.

    Args:
        operation: a function of Tensors, with its own vjp or composed of other operations.
        inputs: float64 arrays of any shape, and any other arguments of the operation.
        max_saved_bytes: the maximum number of bytes saved for backward beyond inputs and output; None sets no limit.
        n_directions: None checks every entry of the given inputs; a number N checks only N random directions.
        compare_float32: whether to compare float32 results with float64 results.
        vary_inputs: whether to repeat the check at other values and shapes, derived from the floating-point inputs.
        domain: the open interval (low, high) in which the operation and its gradient are finite, or a sequence with an
            interval or None for each floating-point input. With None, derived inputs that give non-finite values are
            skipped.
        block_size_options: the names of options that are block sizes; the results must not depend on them.
        output_dtype: the dtype of the output, if it differs from the inputs' dtype.
        reference: a function of the same arrays that returns the correct output. Wherever the reference is finite, the
            operation has to return the same value. The reference has to accept the given inputs and may reject derived
            ones.
        expected_gradient: for a gradient that intentionally differs from the derivative: "straight-through" or
            "reversed"; a function `expected_gradient(g, *inputs)` that returns the intended gradients (options are
            passed if it has parameters of the same names); or a sentence with the reason, to accept any gradient. An
            input for which no gradient is declared must have its derivative. The report says how the gradient differs.
        seed: selects the weights of the outputs and the random directions.
        options: passed on to `operation`. An option that has the same name as an argument above must be passed by
            position or bound with `functools.partial`.

    Returns a Report. Raises GradientError or CheckError if a rule is broken. The `rule` of the error is a key of
    `report.RULES`, and its text ends with a line that reproduces the failure. Raises TypeError and ValueError for
    invalid arguments, like `gradcheck`.
    """
    settings: dict[str, Any] = {
        "max_saved_bytes": max_saved_bytes,
        "output_dtype": output_dtype,
        "block_size_options": tuple(block_size_options) or None,
        "reference": reference,
        "expected_gradient": expected_gradient,
        "compare_float32": None if compare_float32 else False,
    }
    arguments = Arguments(inputs, options)
    arguments.require_options(check_operation, operation)
    report = Report()
    problem = operation_problem(operation, arguments, settings)
    with missing_bodies_reported(problem, operation, *arguments.unflatten(arguments.values)):
        problem.constant_indices = arguments.constant_indices(
            problem, report.notes, getattr(operation, "none_is_constant", False)
        )
        variants.require_inside(problem, domain)
        hold_state(problem, operation, report.notes)
        declared = None if expected_gradient is None else DeclaredGradient(expected_gradient, arguments)
        adapted = None if reference is None else arguments.adapt(reference)
        check = ProblemCheck(report, n_directions, compare_float32, domain, output_dtype, seed, adapted, declared)
        check.compare_value(problem, tolerance=1e-9, given=True)
        baseline = check.check_given_inputs(problem)
    note_unchecked_tensors(stray_tensors(baseline.problem), report.notes)
    if declared is not None:
        report.notes.append(declared.describe_difference(problem, seed))
    output, _ = problem.output_and_leaves()
    saved = report.saved_bytes = rules.saved_bytes(output, [*problem.values, *options.values()])
    if max_saved_bytes is not None and saved > max_saved_bytes:
        text = f"expected at most {max_saved_bytes} bytes saved for backward beyond inputs and output; got {saved}"
        raise baseline.problem.failure("saved memory", text)
    rules.check_in_blocks(baseline)
    for option in block_size_options:
        for size in (1, 2, 3):
            y, gradients = arguments.with_options(problem, {option: size}).output_and_gradients(baseline.c)
            baseline.compare("block size", f"with {option}={size}", y, gradients)
    if vary_inputs:
        check.check_derived_inputs(problem, [*arguments.number_options(operation, int).values()])
        if not callable(expected_gradient):  # the function may not know other options
            check.check_other_options(arguments.with_other_floats(problem, operation), operation)
    report.notes += getattr(operation, "notes", [])  # only operations from other frameworks have notes
    return report


def operation_problem(operation: Callable[..., Tensor], arguments: Arguments, settings: dict[str, Any]) -> Problem:
    """Return the problem of `check_operation`.

    Args:
        settings: the options to repeat in the line that reproduces a failure; options that are None are omitted.
    """
    name = f"check_operation: {getattr(operation, '__name__', type(operation).__name__)}"
    given = {k: v for k, v in settings.items() if v is not None}
    if getattr(settings["reference"], "__name__", "") == "<lambda>":  # a lambda cannot be imported
        given["reference"] = Placeholder("reference")

    def call(values: list[Any]) -> Any:
        inputs, options = arguments.unflatten(values)
        return operation(*inputs, **options)

    def reproduce(failing: Problem) -> str:
        inputs, options = arguments.unflatten(failing.values)
        return reproduction("check_operation", operation, inputs, options | given)

    problem = Problem(name, call, arguments.values, reproduce=reproduce, names=arguments.names)
    problem.likely_cause = lambda: getattr(operation, "likely_cause", "")  # only operations of adapters have one
    require_floats(name, problem.values)
    return problem


@progress_line()
@rejections_unwrapped()
@overflow_ignored()
def check_layer(
    layer: Any,
    *inputs: Any,
    modes: Sequence[str] = ("train", "eval"),
    n_directions: int | None = None,
    compare_float32: bool = True,
    vary_inputs: bool = True,
    domain: Any = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `layer(*inputs, **options)` with respect to inputs and parameters, in each mode.

    All rules for operations and the rules for modes apply, and the layer must not draw random numbers in evaluation
    mode. Each call in training mode runs within `npx.keyed(seed, 1)`, which holds the dropout masks fixed.

    Args:
        layer: an object such as a models.Module, with `train()`, `eval()` and `named_parameters()`, which returns
            (name, Tensor) pairs. The check runs in float64 and restores the layer.
        inputs: floating-point arrays, which are passed as Tensors, and any other arguments of the layer, such as ids.
        modes: "train", "eval", or both, in the order in which to check them.
        n_directions, compare_float32: as for `check_operation`.
        vary_inputs: whether to repeat the check at other values and shapes of inputs and parameters.
        domain: as for `check_operation`; it applies to inputs, not to parameters.
        seed: selects the weights of the outputs, the random directions and the dropout masks.
        options: passed on to `layer`. An option that has the same name as an argument above must be passed by position.

    Returns a Report. Raises GradientError, which names the input or parameter, or CheckError if a rule is broken.
    Raises TypeError and ValueError for invalid arguments.
    """
    require_layer(layer, modes)
    arguments = Arguments(inputs, options)
    arguments.require_options(check_layer, getattr(layer, "forward", layer))
    problems = [layer_problem(layer, mode, arguments, seed) for mode in modes]
    report = Report()
    frozen = [n for n, p in layer.named_parameters() if not p.requires_grad]
    report.notes += [f"not checked: the gradient of parameter {n}, which requires no gradient" for n in frozen]
    digests: dict[str, bytes] = {}
    baselines = []
    with layer_restored(layer) as restore_buffers:
        for mode, problem in zip(modes, problems, strict=True):
            check = ProblemCheck(
                report, n_directions, compare_float32, domain, None, seed, layer=layer, digests=digests
            )
            baselines.append(check_mode(check, problem, arguments, mode, modes, vary_inputs, restore_buffers))
            restore_buffers()
        if len(modes) > 1:
            # Calls in training mode update buffers, which changes their results.
            others = [(getattr(layer, m), b if m == "eval" else None) for m, b in zip(modes, baselines, strict=True)]
            mode_rules.check_return_to_mode(baselines[0], others[1:], getattr(layer, modes[0]))
    report.notes += getattr(layer, "notes", [])
    return report


def layer_problem(layer: Any, mode: str, arguments: Arguments, seed: int) -> Problem:
    """Return the problem of `check_layer` in one mode, with copies of inputs and parameters in float64."""
    name = getattr(layer, "__name__", type(layer).__name__)
    named_parameters = [(n, p) for n, p in layer.named_parameters() if p.requires_grad]
    frozen = {n: p for n, p in layer.named_parameters() if not p.requires_grad}
    values = [x.astype("float64") if is_float(x) else x for x in arguments.values]
    if not named_parameters:
        if frozen and not any(map(is_float, values)):
            raise TypeError(f"check_layer: {name}: expected a parameter that requires a gradient; got only frozen ones")
        require_floats(f"check_layer: {name}", values)

    def reproduce(failing: Problem) -> str:
        # A layer cannot be printed as a literal: `layer` stands for a layer built like the failing one.
        setup = ""
        arrays = failing.parameters | {n: p.data for n, p in frozen.items()}
        if arrays:
            state = ", ".join(f"{n!r}: {literal(npx.to_host(a))}" for n, a in arrays.items())
            setup = f"state = {{{state}}}; [setattr(p, 'data', state[n]) for n, p in layer.named_parameters()]"
            if hasattr(layer, "adapter"):
                setup = f"from autograd.testing import {layer.adapter}; layer = {layer!r}; {setup}"
        return reproduction("check_layer", Placeholder("layer"), *arguments.unflatten(failing.values), setup)

    tensors = [p for _, p in named_parameters]
    parameters = {n: p.data.astype("float64") for n, p in named_parameters}
    call = call_in_mode(layer, mode, seed, arguments, tensors, [*frozen.values()])
    title = f"check_layer: {name}, {mode} mode"
    return Problem(title, call, values, parameters, tensors, reproduce, arguments.names)


def check_mode(
    check: ProblemCheck,
    problem: Problem,
    arguments: Arguments,
    mode: str,
    modes: Sequence[str],
    vary_inputs: bool,
    restore_buffers: Callable[[], Any],
) -> Baseline:
    """Check the layer of a `ProblemCheck` in one of `modes`; return the results at the given inputs."""
    layer = check.layer
    report = check.report
    other_mode = next((m for m in modes if m != mode), "train" if mode == "eval" else "eval")
    enter = getattr(layer, mode)
    enter()
    notes: list[str] = []
    problem.constant_indices = arguments.constant_indices(problem, notes)
    variants.require_inside(problem, check.domain)
    hold_state(problem, layer, notes, may_be_random=mode == "train")
    report.notes += [f"{mode} mode: {note}" for note in notes]
    check.warm_up(problem)
    baseline = check.check_given_inputs(problem)
    require_registered(baseline.problem, layer, arguments.options, report.notes)
    mode_rules.check_backward_in_other_mode(baseline, getattr(layer, other_mode), enter)
    if mode == "eval" and len(modes) > 1:
        others = [v.problem for v in variants.values(problem) if v.in_parameters]
        mode_rules.check_mode_after_update(baseline, others, restore_buffers, layer.train, layer.eval)
    if vary_inputs:
        forward = getattr(layer, "forward", layer)
        check.check_derived_inputs(problem, [*arguments.number_options(forward, int).values()])
        check.check_other_options(arguments.with_other_floats(problem, forward), layer)
    return baseline


def require_layer(layer: Any, modes: Sequence[str]) -> None:
    """Raise TypeError unless `layer` can be checked, and ValueError for unknown modes."""
    if isinstance(layer, type):
        raise TypeError(f"check_layer: expected a layer; got the class {layer.__name__}; try an instance of this class")
    if not modes or not {*modes} <= {"train", "eval"}:
        raise ValueError(f"check_layer: expected modes among 'train' and 'eval'; got {modes!r}; try modes=('eval',)")
    missing = [method for method in ("named_parameters", "train", "eval") if not hasattr(layer, method)]
    if missing:
        raise TypeError(
            f"check_layer: expected a layer with {' and '.join(missing)}; got {type(layer).__name__}; "
            "try models.Module as its base, or check_operation for a function"
        )


def call_in_mode(
    layer: Any, mode: str, seed: int, arguments: Arguments, parameters: list[Tensor], frozen: list[Tensor]
) -> Callable[[list[Any]], Any]:
    """Return a function that calls the layer, with fixed dropout masks.

    Its buffers and frozen parameters get the dtype of the inputs.
    """

    def call(values: list[Any]) -> Any:
        dtypes = [x.dtype for x in (*values, *parameters) if is_float(x)]
        if dtypes:
            cast_buffers(layer, dtypes[0])
            for p in frozen:
                p.data = p.data.astype(dtypes[0], copy=False)
        inputs, options = arguments.unflatten(values)
        try:
            with npx.keyed(seed, 1) if mode == "train" else nullcontext():
                return layer(*inputs, **options)
        except MixedDtypesError as error:
            text = "check_layer casts inputs, parameters and the arrays in the layer's attributes to float64"
            raise TypeError(f"{error}; {text}: try .astype(x.dtype) on every other array") from error

    return call
