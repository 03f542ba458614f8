"""Everything a correct operation, layer or kernel keeps, beside its gradient.

`check_operation`: one function of Tensors; `check_layer`: a module with its parameters, in training and evaluation;
`check_kernel`: the fast versions of a kernel, and of its gradient, against the references.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import npx
from autograd.engine import FLOATS, Tensor
from autograd.graph import captured, owner
from autograd.testing.gradcheck import Problem, Report, check_problem, gradcheck, literal, reproduction
from npx import Array

LAYOUTS = ("reversed", "every second", "column-major")


class CheckError(AssertionError):
    """A rule beside the value of the gradient is broken."""


def check_operation(
    operation: Callable[..., Tensor],
    *inputs: Any,
    max_saved_bytes: int | None = None,
    directions: int | None = None,
    float32: bool = True,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check `operation(*inputs, **options)`: its gradients, and the rules that every operation keeps.

    The rules: inputs and the incoming gradient are not written to; the output and each gradient have the input's
    dtype, the gradient its shape; other memory layouts of the same values give the same results; the gradient is
    linear in the incoming one; an input alone gets the gradient that it gets beside the others; in float32 (unless
    `float32` is False) the results are float32 and near those of float64; a second backward is refused; no more than
    `max_saved_bytes` are kept for backward beyond inputs and output (None: not limited). inputs: float64 arrays, and
    whatever else the operation takes.
    Raises GradientError or CheckError, with a line to reproduce it, and what `gradcheck` raises for bad use.
    """
    values = [x.data if isinstance(x, Tensor) else x for x in inputs]
    name = getattr(operation, "__name__", type(operation).__name__)
    floats = [i for i, x in enumerate(values) if is_float(x)]

    def fail(rule: str) -> None:
        given = options if max_saved_bytes is None else options | {"max_saved_bytes": max_saved_bytes}
        raise CheckError(
            f"check_operation: {name}: {rule}\nreproduce: {reproduction('check_operation', operation, values, given)}"
        )

    report = gradcheck(operation, *values, directions=directions, seed=seed, **options)
    output, tensors = run_guarded(operation, values, floats, options, fail)
    if not floats or not output.requires_grad:
        return report
    saved = report.saved_bytes = saved_bytes(output, [*values, *options.values()])
    if max_saved_bytes is not None and saved > max_saved_bytes:
        fail(f"expected at most {max_saved_bytes} bytes kept for backward beyond inputs and output; got {saved}")
    c = npx.random.normal(npx.Key(seed, 0, 0), output.shape, output.dtype)
    gradients = backward_guarded(output, tensors, c, fail)
    try:
        output.backward(c)
    except RuntimeError:
        pass
    else:
        fail("expected a second backward to be refused; got a second gradient")

    def results(changed: list[Any], wanted: list[int], factor: float = 1.0) -> tuple[Array, list[Array]]:
        y, ts = run_guarded(operation, changed, wanted, options, fail)
        return npx.to_host(y.data), backward_guarded(y, ts, npx.asarray((factor * c).astype(y.dtype)), fail)

    expected = npx.to_host(output.data)
    for layout in LAYOUTS:
        changed = [relaid(x, layout) if hasattr(x, "dtype") else x for x in values]
        y, again = results(changed, floats)
        for what, a, b in named_pairs(expected, y, gradients, again):
            if not near(a, b, 1e-9):
                fail(f"expected the same {what} for inputs in {layout} memory layout; got another")
    for i, a, b in zip(floats, gradients, results(values, floats, factor=-0.3)[1], strict=True):
        if not near(-0.3 * a, b, 1e-10):
            fail(f"expected the gradient of input {i} to be linear in the incoming one, to 10 digits; it is not")
    if len(floats) > 1:
        for i, gradient in zip(floats, gradients, strict=True):
            if not near(gradient, results(values, [i])[1][0], 1e-9):
                fail(f"expected input {i} to get the same gradient alone as beside the others; got another")
    if float32 and all(values[i].dtype == npx.float64 for i in floats):
        y, single = results([x.astype("float32") if i in floats else x for i, x in enumerate(values)], floats)
        if y.dtype != npx.float32:
            fail(f"expected float32 from float32 inputs; got {y.dtype}")
        for what, a, b in named_pairs(expected, y, gradients, single):
            if npx.isfinite(b).all() and not near(a, b, 5e-3):
                fail(f"expected the {what} in float32 near that in float64; it is off by {float(abs(a - b).max()):.3g}")
    return report


def named_pairs(
    y: Array, other_y: Array, gradients: list[Array], others: list[Array]
) -> list[tuple[str, Array, Array]]:
    """Two outputs and their gradients, side by side."""
    return [("output", y, other_y), *(("gradient", a, b) for a, b in zip(gradients, others, strict=True))]


def is_float(x: Any) -> bool:
    """Whether x is a floating array."""
    return hasattr(x, "dtype") and x.dtype.name in FLOATS


def near(a: Array, b: Array, tolerance: float) -> bool:
    """Whether two arrays agree, relative to the largest magnitude."""
    if a.shape != b.shape:
        return False
    scale = max(1.0, float(abs(a).max())) if a.size else 1.0
    return bool((abs(a - b) <= tolerance * scale).all())


def run_guarded(
    operation: Callable[..., Any], values: Sequence[Any], wanted: Sequence[int], options: dict[str, Any], fail: Any
) -> tuple[Tensor, list[Tensor]]:
    """Run on protected arrays; returns the output and the Tensors `wanted`, which require gradients."""
    guarded = [protected(x) if hasattr(x, "dtype") else x for x in values]
    before = [x.copy() if hasattr(x, "dtype") else x for x in guarded]
    arguments: list[Any] = [Tensor(x, requires_grad=i in wanted) if is_float(x) else x for i, x in enumerate(guarded)]
    with writing_refused(fail, "expected its inputs to be left as they are; it writes to one"):
        output = operation(*arguments, **options)
    for i, (x, kept) in enumerate(zip(guarded, before, strict=True)):
        if hasattr(x, "dtype") and not npx.array_equal(x, kept):
            fail(f"expected its inputs to be left as they are; it changed input {i}")
    dtypes = {x.dtype.name for x in guarded if is_float(x)}
    if len(dtypes) == 1 and output.dtype.name not in dtypes:
        fail(f"expected an output of the inputs' dtype, {dtypes.pop()}; got {output.dtype}")
    return output, [arguments[i] for i in wanted]


def backward_guarded(output: Tensor, tensors: list[Tensor], c: Array, fail: Any) -> list[Array]:
    """Backward from a protected gradient; returns the gradients, zeros where there is none, on the host."""
    g = protected(c)
    try:
        with writing_refused(fail, "expected its vjp to leave the incoming gradient as it is; it writes to it"):
            output.backward(g)
    except RuntimeError as error:
        fail(str(error))
    if not npx.array_equal(g, c):
        fail("expected its vjp to leave the incoming gradient as it is; it changed it")
    return [npx.zeros_like(npx.to_host(t.data)) if t.grad is None else npx.to_host(t.grad) for t in tensors]


@contextmanager
def writing_refused(fail: Any, rule: str) -> Iterator[None]:
    """Fail by `rule` where the block writes to a protected array."""
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        fail(f"{rule} ({error})")


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


def check_layer(
    layer: Any,
    *inputs: Any,
    modes: Sequence[str] = ("train", "eval"),
    directions: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `layer(*inputs, **options)` with respect to inputs and parameters, in each mode.

    layer: anything with `named_parameters()` -> (name, Tensor), `train()` and `eval()` (a models.Module); it is checked
    in float64 and left as it was. Dropout is held fixed: each evaluation runs within `npx.keyed(seed, 1)`. inputs:
    float64 arrays (as Tensors they are handed on), integer ids and whatever else the layer takes. Also checked: that
    evaluation mode needs no random numbers, and that nothing is written to.
    Raises GradientError naming the input or parameter, CheckError, and what `gradcheck` raises for bad use.
    """
    name = type(layer).__name__
    missing = [method for method in ("named_parameters", "train", "eval") if not hasattr(layer, method)]
    if missing:
        raise TypeError(
            f"check_layer: expected a layer with {' and '.join(missing)}; got {name}; "
            "try models.Module as its base, or check_operation for a function"
        )
    values = [x.data if isinstance(x, Tensor) else x for x in inputs]
    floats = [i for i, x in enumerate(values) if is_float(x)]
    named = list(layer.named_parameters())
    kept = [(p, p.data, p.grad) for _, p in named]
    training = {id(m): (m, m.training) for m in (layer.modules() if hasattr(layer, "modules") else [])}
    total = Report()
    # A layer cannot be written as one literal: `layer` stands for one built as the failing one, to be given its values.
    state = ", ".join(f"{n!r}: {literal(p.data.astype('float64'))}" for n, p in named)
    setup = f"state = {{{state}}}; [setattr(p, 'data', state[n]) for n, p in layer.named_parameters()]"
    line = reproduction("check_layer", Named("layer"), values, options, setup if named else "")
    try:
        for mode in modes:
            getattr(layer, mode)()

            def run(arrays: list[Array], mode: str = mode) -> tuple[Tensor, list[Tensor]]:
                tensors = [Tensor(a, requires_grad=True) for a in arrays[: len(floats)]]
                for (_, p), a in zip(named, arrays[len(floats) :], strict=True):
                    p.data, p.grad = a, None
                replaced = dict(zip(floats, tensors, strict=True))
                arguments = [replaced.get(i, x) for i, x in enumerate(values)]
                if mode == "train":
                    with npx.keyed(seed, 1):
                        output = layer(*arguments, **options)
                else:
                    output = layer(*arguments, **options)
                return output, [*tensors, *(p for _, p in named)]

            arrays = [values[i] for i in floats] + [data.astype("float64") for _, data, _ in kept]
            labels = [f"input {i}" for i in floats] + [f"parameter {n}" for n, _ in named]
            problem = Problem(f"{name}, {mode} mode", labels, arrays, run, line)
            part = check_problem(problem, directions, seed=seed)
            guard_layer(f"{name}, {mode} mode", run, arrays, line)
            total.compared += part.compared
            total.worst = max(total.worst, part.worst)
            total.kinks += part.kinks
    finally:
        for p, data, grad in kept:
            p.data, p.grad = data, grad
        for module, was in training.values():
            module.training = was
    return total


class Named:
    """Stands in a line to reproduce for what only the caller can make."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def guard_layer(name: str, run: Callable[..., tuple[Tensor, list[Tensor]]], arrays: list[Array], line: str) -> None:
    """Run forward and backward on protected arrays: nothing may be written to, and float64 must stay float64."""

    def fail(rule: str) -> None:
        raise CheckError(f"check_layer: {name}: {rule}\nreproduce: {line}")

    with writing_refused(fail, "expected inputs and parameters to be left as they are; it writes to one"):
        output, leaves = run([protected(npx.asarray(a)) for a in arrays])
    if output.dtype != npx.float64:
        fail(f"expected float64 from float64 inputs and parameters; got {output.dtype}")
    backward_guarded(output, leaves, npx.ones_like(output.data), fail)
