"""Rules, other than a correct gradient, that an operation or layer must obey. Each rule has a function.

Each rule takes the `Baseline` output and gradients at some inputs and evaluates the problem in another way: with
different memory layouts, a different incoming gradient, or other calls before or in between. The result is known
exactly, so no numerical derivative is needed and many digits can be compared. `report.RULES` says what each rule
requires.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import npx
from autograd import operations
from autograd.engine import Tensor, no_grad
from autograd.saved import find_owner, iterate_captured_arrays
from autograd.testing.baseline import Baseline, close
from autograd.testing.problem import Problem, is_array, is_float, leaf_gradient
from autograd.testing.report import REJECTIONS, CheckError
from npx import Array

LAYOUTS = ("reversed", "every second", "column-major")


def with_layout(x: Array, layout: str) -> Array:
    """Return the same values in one of the memory `LAYOUTS`, or in "channels-last" layout for 3 or more axes."""
    if not x.ndim:
        return npx.asarray(x)
    if layout == "reversed":
        return npx.concatenate([x[..., ::-1]], axis=0)[..., ::-1]
    if layout == "every second":
        return npx.repeat(x, 2, axis=-1)[..., ::2]
    if layout == "channels-last":  # axis 1 is the last one in memory, as in PyTorch
        last = npx.transpose(x, (0, *range(2, x.ndim), 1)).copy()
        return npx.transpose(last, (0, x.ndim - 1, *range(1, x.ndim - 1)))
    return npx.transpose(npx.transpose(x).copy())


# Arguments


def check_no_mutation(baseline: Baseline) -> None:
    """Check that backward changes no input, parameter, output or incoming gradient, even if all are writable."""
    problem = baseline.problem
    arrays = [npx.from_host(npx.to_host(a).copy()) for a in problem.arrays]
    writable = problem.with_arrays(arrays)
    writable.values = [x.copy() if is_array(x) and not is_float(x) else x for x in writable.values]
    before = [npx.to_host(x).copy() if is_array(x) else x for x in writable.values]
    output, leaves = writable.output_and_leaves(arrays)
    c = npx.from_host(baseline.c.copy())
    for leaf in leaves:
        leaf.grad = None
    if output.requires_grad:
        writable.run_backward(output, c)
    pairs = [*zip(problem.labels, problem.arrays, arrays, strict=True), ("the incoming gradient", baseline.c, c)]
    pairs += [
        (problem.name_of(i), b, x) for i, (b, x) in enumerate(zip(before, writable.values, strict=True)) if is_array(x)
    ]
    for label, old, new in pairs:
        if not npx.array_equal(npx.to_host(old), npx.to_host(new), equal_nan=old.dtype.kind == "f"):
            raise problem.failure("no mutation", f"expected {label} to be left unmodified; its values changed")
    if not close(baseline.y, npx.to_host(output.data), 1e-12, 1e-3):
        raise problem.failure("no mutation", "expected backward not to modify the output; its values changed")
    gradients = [None if t.grad is None else npx.to_host(t.grad) for t in leaves]
    baseline.compare("no mutation", "for writable arrays", None, gradients)


def check_input_layouts(baseline: Baseline) -> None:
    """Check that other memory layouts of inputs and parameters give the same results."""
    for layout in LAYOUTS:
        arrays = [with_layout(npx.from_host(npx.to_host(a)), layout) for a in baseline.problem.arrays]
        problem = baseline.problem.with_arrays(arrays)
        problem.values = [with_layout(x, layout) if is_array(x) and not is_float(x) else x for x in problem.values]
        output, leaves = problem.run_protected()
        y = npx.to_host(output.data).copy()
        gradients = problem.protected_gradients(output, leaves, baseline.c)
        baseline.compare("input layout", f"for inputs in {layout} memory layout", y, gradients)


def check_incoming_gradients(baseline: Baseline, is_linear: bool = True) -> None:
    """Check that the gradient is linear in the incoming gradient, at any magnitude, and ignores its memory layout.

    Args:
        is_linear: False for a declared gradient, such as a clipped one, which need not be linear.
    """
    problem, c = baseline.problem, baseline.c
    for layout in (*LAYOUTS, *["channels-last"] * (c.ndim > 2)):
        gradients = problem.output_and_gradients(with_layout(npx.from_host(c), layout))[1]
        condition = f"for an incoming gradient in {layout} memory layout"
        baseline.compare("incoming gradient layout", condition, None, gradients)
    for factor in (-0.3, 1e-6, 1e6, 0.0) if is_linear else ():
        gradients = problem.output_and_gradients((factor * c).astype(c.dtype))[1]
        condition = f"for an incoming gradient times {factor:g}"
        baseline.compare("linearity", condition, None, gradients, factor, 1e-10 if factor else 0.0)
    if c.size:
        constant = npx.broadcast_to(npx.asarray(c.reshape(-1)[0]), c.shape)
        copied = Baseline(problem, baseline.y, c, problem.output_and_gradients(constant.copy())[1])
        condition = "for a broadcast incoming gradient (strides of 0) as for a copy of it"
        copied.compare("incoming gradient layout", condition, None, problem.output_and_gradients(constant)[1])
    if not is_linear:
        return
    flat = c.reshape(-1)
    parts = []
    for position in sorted({0, c.size // 2, c.size - 1} & set(range(c.size))):
        parts.append((npx.host.where(npx.host.arange(c.size) == position, flat, 0), "a single entry"))
    if c.size:
        parts.append((npx.host.ones_like(flat), "ones (as in `.sum().backward()`)"))
    if c.size > 1 and c.dtype.name == "float64":
        parts.append((flat - flat.mean(), "a part that sums to 0"))
    for part, name in parts:
        pair = [problem.output_and_gradients(p.astype(c.dtype).reshape(c.shape))[1] for p in (part, flat - part)]
        total = [a + b for a, b in zip(*pair, strict=True)]
        condition = f"as the sum of the gradients for {name} and for the rest of the incoming gradient"
        baseline.compare("linearity", condition, None, total)


def check_aliased_inputs(baseline: Baseline) -> None:
    """Check that one array passed as several inputs gives the same results as copies of it."""
    problem = baseline.problem
    arrays = list(problem.arrays)
    aliased = []
    for i in range(len(problem.float_indices)):
        if arrays[i].shape == arrays[0].shape and arrays[i].dtype == arrays[0].dtype:
            arrays[i] = arrays[0]
            aliased.append(i)
    if len(aliased) < 2:
        return
    labels = " and ".join(problem.labels[i] for i in aliased)
    problem = replace(problem, name=f"{problem.name}, one array passed as {labels}")
    try:
        copies = Baseline.evaluate(problem.with_arrays([a.copy() for a in arrays]), baseline.c)
        output, leaves = problem.with_arrays(arrays).output_and_leaves()
    except (CheckError, *REJECTIONS):  # the function may reject equal inputs
        return
    gradients = copies.problem.protected_gradients(output, leaves, baseline.c)
    condition = "for one array passed as several inputs as for copies of it"
    copies.compare("aliased inputs", condition, npx.to_host(output.data), gradients)


def check_independent_inputs(baseline: Baseline) -> None:
    """Check that an input gets the same gradient whether only this input or every input requires a gradient."""
    n_inputs = len(baseline.gradients)
    if 1 < n_inputs <= 12:
        for i in range(n_inputs):
            y, gradients = baseline.problem.output_and_gradients(baseline.c, require=[i])
            only_gradient: list[Array | None] = [g if i == k else None for k, g in enumerate(gradients)]
            baseline.compare("independent inputs", "if no other input requires a gradient", y, only_gradient)


def check_in_blocks(baseline: Baseline) -> None:
    """Check that kernels of `npx`, including `npx.elementwise`, give the same results in blocks of one row."""
    with npx.small_blocks(1, threads=2):
        y, gradients = baseline.problem.output_and_gradients(baseline.c)
    baseline.compare("block size", "in blocks of one row (npx.small_blocks)", y, gradients)


def check_dtype(baseline: Baseline, dtype: str | None) -> None:
    """Check that the output has the declared dtype or, by default, the dtype of the inputs."""
    dtypes = {a.dtype.name for a in baseline.problem.arrays}
    wanted = dtype or (dtypes.pop() if len(dtypes) == 1 else baseline.y.dtype.name)
    if baseline.y.dtype.name != wanted:
        text = f"expected an output of dtype {wanted}, like the inputs; got {baseline.y.dtype}"
        raise baseline.problem.failure("dtype", f"{text}; try dtype={baseline.y.dtype.name!r} if intended")


def rejects_parameters(problem: Problem) -> bool:
    """Return whether a gradient of the parameters has the wrong shape or dtype.

    The shapes of parameters, unlike those of derived inputs, are never guessed.
    """
    first = len(problem.float_indices)
    try:
        output, _ = problem.output_and_leaves(require=range(first, first + len(problem.parameters)))
        if output.requires_grad:
            output.backward(npx.ones_like(output.data))
    except RuntimeError:  # raised when the engine validates gradients
        return True
    except Exception:
        pass
    return False


def check_accumulation(baseline: Baseline) -> None:
    """Check that gradients are added to existing ones, and summed over several calls on the same Tensors."""
    problem = baseline.problem
    output, leaves = problem.output_and_leaves()
    existing = [npx.to_host(npx.random.normal(npx.Key(8, i, 0), t.shape, t.dtype.name)) for i, t in enumerate(leaves)]
    for leaf, g in zip(leaves, existing, strict=True):
        leaf.grad = npx.from_host(g.copy())
    if output.requires_grad:
        problem.run_backward(output, npx.from_host(baseline.c.copy()))
    added = [npx.to_host(leaf_gradient(t)) - g for t, g in zip(leaves, existing, strict=True)]
    baseline.compare("accumulation", "if it is added to an existing gradient", None, added)
    arrays = [npx.from_host(npx.to_host(a).copy()) for a in problem.arrays]
    leaves = [Tensor(a, requires_grad=True) for a in arrays]
    inputs = [operations.multiply(t, 1.0) for t in leaves]
    total = None
    for _ in range(3):
        part = operations.multiply(problem.output_from_tensors(inputs), npx.from_host(baseline.c))
        total = part if total is None else operations.add(total, part)
    if total is not None and total.requires_grad:
        problem.run_backward(total, npx.ones_like(total.data))
    gradients = [npx.to_host(leaf_gradient(t)) for t in leaves]
    baseline.compare("accumulation", "if three calls share their inputs", None, gradients, 3.0)


# State


def check_single_backward(baseline: Baseline) -> None:
    """Check that a second backward pass through the same graph raises RuntimeError."""
    output, _ = baseline.problem.output_and_leaves()
    if output.node is None:
        return
    output.backward(npx.from_host(baseline.c.copy()))
    try:
        output.backward(npx.from_host(baseline.c.copy()))
    except RuntimeError:
        return
    raise baseline.problem.failure(
        "single backward", "expected a second backward pass to raise RuntimeError; it returned"
    )


def check_independent_calls(baseline: Baseline, others: Sequence[Baseline]) -> None:
    """Check that earlier, interleaved and later calls do not change the results.

    The rule runs two calls followed by their backward passes in either order, two calls as parts of one graph, and a
    call on the same arrays after an in-place update like an optimizer's.
    """
    if baseline.problem.updating_call:
        output, leaves = baseline.problem.output_and_leaves()
        with no_grad():
            replace(baseline.problem, call=baseline.problem.updating_call).output_and_leaves()
        compare_run(baseline, output, leaves, "if a call that changes the state follows")
    for other in others:
        for first, second in ((baseline, other), (other, baseline)):
            runs = [call.problem.output_and_leaves() for call in (first, second)]
            for call, (output, leaves) in zip((first, second), runs, strict=True):
                compare_run(call, output, leaves, "if another call runs before it, or between it and its backward pass")
            output, leaves = first.problem.output_and_leaves()
            with no_grad():
                second.problem.output_and_leaves()
            compare_run(first, output, leaves, "if a call without gradients follows")
        check_in_one_graph(baseline, other)
    for other in others:
        if [a.shape for a in other.problem.arrays] == [a.shape for a in baseline.problem.arrays]:
            check_fresh_values(baseline, other)


def compare_run(
    baseline: Baseline, output: Tensor, leaves: list[Tensor], condition: str, rule: str = "independent calls"
) -> None:
    """Compare the output of `Problem.output_and_leaves`, and the gradients of its leaves, with the expected ones."""
    gradients = baseline.problem.protected_gradients(output, leaves, baseline.c)
    baseline.compare(rule, condition, npx.to_host(output.data), gradients)


def check_in_one_graph(baseline: Baseline, other: Baseline) -> None:
    """Check that two calls in one graph, on Tensors that other operations computed, get the expected gradients."""
    pair = (baseline, other)
    total = None
    leaves = [
        [Tensor(npx.asarray(npx.from_host(npx.to_host(a))), requires_grad=True) for a in call.problem.arrays]
        for call in pair
    ]
    inputs = [[operations.multiply(t, 1.0) for t in tensors] for tensors in leaves]  # computed before either call
    for call, tensors in zip(pair, inputs, strict=True):
        output = call.problem.output_from_tensors(tensors)
        part = operations.sum(operations.multiply(output, npx.from_host(call.c)))
        total = part if total is None else operations.add(total, part.astype(total.dtype))
    assert total is not None
    if total.requires_grad:
        baseline.problem.run_backward(total, npx.ones_like(total.data))
    for call, tensors in zip(pair, leaves, strict=True):
        gradients = [npx.to_host(leaf_gradient(t)) for t in tensors]
        call.compare("independent calls", "if it is called twice in one graph", None, gradients)


def check_fresh_values(baseline: Baseline, other: Baseline) -> None:
    """Check that a call after an in-place update of its arrays gives the results for the new values."""
    arrays = [npx.from_host(npx.to_host(a).copy()) for a in baseline.problem.arrays]
    output, leaves = baseline.problem.with_arrays(arrays).output_and_leaves(arrays)
    baseline.problem.protected_gradients(output, leaves, baseline.c)
    for a, b in zip(arrays, other.problem.arrays, strict=True):
        a[...] = npx.from_host(npx.to_host(b))
    output, leaves = other.problem.with_arrays(arrays).output_and_leaves(arrays)
    compare_run(other, output, leaves, "after an in-place update of inputs and parameters", "fresh values")


# Memory


def saved_bytes(output: Tensor, excluded: Sequence[Any] = ()) -> int:
    """Return the total size in bytes of the arrays that the vjp of `output` saves.

    The output itself and the arrays in `excluded` are not counted.
    """
    if output.node is None or output.node.vjp is None:
        return 0
    seen = {id(find_owner(x)) for x in (*iterate_captured_arrays(list(excluded)), output.data)}
    total = 0
    for array in iterate_captured_arrays(output.node.vjp):
        if array.ndim and id(find_owner(array)) not in seen:
            seen.add(id(find_owner(array)))
            total += find_owner(array).nbytes
    return total
