"""Is a gradient right? Compare it with central differences, and say which entry is wrong.

For a function f and a fixed random c, backward gives the gradient of phi(x) = sum(c * f(x)). Moving x by +-h along a
direction d must change phi by 2 h (gradient . d), up to O(h^3) of truncation and O(eps / h) of rounding, which balance
near h = eps^(1/3): in float64 about ten digits can be compared, in float32 about two.

Where phi has a kink (a ReLU at 0, a tie of a maximum) there is no gradient to compare with. A kink shows by its two
one-sided slopes, which differ by as much however small the step: such entries are reported, not failed. Moved together,
entries that tie stay tied: along that direction there is a slope again, and the gradient is held to it.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import npx
from autograd.engine import FLOATS, Tensor, no_grad
from npx import Array

STEP = {"float32": 5e-3, "float64": 1e-5}  # times the magnitude of the entry, where that is above 1
RTOL = {"float32": 2e-2, "float64": 1e-5}  # of the larger of both values and of the gradient's typical entry
ATOL = {"float32": 2e-3, "float64": 1e-7}
SHOWN = 64  # entries up to which gradients are printed whole
WRITTEN = 512  # entries up to which an array is written out in the line that reproduces


class GradientError(AssertionError):
    """An analytic gradient and the numeric one differ."""


@dataclass
class Report:
    """What a passed check saw.

    `compared` slopes, the largest difference `worst` among them, the `kinks` left out, and the bytes that an operation
    kept for its backward beyond inputs and output (`saved_bytes`; `check_operation` alone fills it in).
    """

    compared: int = 0
    worst: float = 0.0
    kinks: list[str] = field(default_factory=list)
    saved_bytes: int = 0


@dataclass
class Problem:
    """A function to check: named arrays, and how to run it on changed copies of them.

    `run(arrays)` returns the output Tensor and, for each array, the Tensor whose `grad` is its gradient.
    """

    name: str
    labels: list[str]
    arrays: list[Array]
    run: Callable[[list[Array]], tuple[Tensor, list[Tensor]]]
    reproduce: str = ""


def gradcheck(
    function: Callable[..., Tensor],
    *inputs: Any,
    directions: int | None = None,
    step: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Report:
    """Check the gradients of `function(*inputs, **options)` with respect to its floating inputs.

    inputs: arrays or Tensors, float64 preferred; integers, booleans and everything else are passed on as they are.
    directions None: every entry; k: k random directions through all inputs at once, then, if one is wrong, the entries.
    step, rtol, atol: for each dtype they have a default that fits its rounding.
    Raises GradientError with both gradients side by side and a line to reproduce it; TypeError for no floating input,
    or a function that returns no Tensor; ValueError for a function that is not the same twice, a value that is not
    finite, or a tolerance that the dtype cannot reach.
    """
    values = [x.data if isinstance(x, Tensor) else x for x in inputs]
    checked = [i for i, x in enumerate(values) if hasattr(x, "dtype") and x.dtype.name in FLOATS]
    name = getattr(function, "__name__", type(function).__name__)
    if not checked:
        found = ", ".join(str(getattr(x, "dtype", type(x).__name__)) for x in values) or "none"
        raise TypeError(f"gradcheck: {name}: expected a floating input; got {found}; try .astype('float64')")

    def run(arrays: list[Array]) -> tuple[Tensor, list[Tensor]]:
        tensors = [Tensor(npx.asarray(a), requires_grad=True) for a in arrays]
        replaced = dict(zip(checked, tensors, strict=True))
        return function(*[replaced.get(i, x) for i, x in enumerate(values)], **options), tensors

    line = reproduction("gradcheck", function, values, options)
    problem = Problem(name, [f"input {i}" for i in checked], [values[i] for i in checked], run, line)
    return check_problem(problem, directions, step, rtol, atol, seed)


def check_problem(
    problem: Problem,
    directions: int | None = None,
    step: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> Report:
    """`gradcheck` of a Problem, which layers use too."""
    name, arrays = problem.name, [npx.to_host(a).copy() for a in problem.arrays]
    dtype = str(npx.result_type(*[a.dtype for a in arrays]))
    lowest = next((a.dtype.name for a in arrays if a.dtype.name != "float64"), dtype)
    if lowest not in STEP:
        raise TypeError(f"gradcheck: {name}: expected float64 or float32; got {lowest}; try .astype('float64')")
    if rtol is not None and rtol < RTOL[lowest] / 100:
        raise ValueError(
            f"gradcheck: {name}: expected rtol of at least {RTOL[lowest] / 100:g} for {lowest}; got {rtol:g}; "
            "try .astype('float64') on the inputs"
        )
    h = STEP[lowest] if step is None else step
    rtol, atol = RTOL[lowest] if rtol is None else rtol, ATOL[lowest] if atol is None else atol

    def forward(values: list[Array]) -> tuple[Array, list[Tensor], Tensor]:
        output, leaves = problem.run([npx.from_host(v) for v in values])
        if not isinstance(output, Tensor):
            raise TypeError(f"gradcheck: {name}: expected it to return a Tensor; got {type(output).__name__}")
        return npx.to_host(output.data), leaves, output

    y, leaves, output = forward([a.copy() for a in arrays])
    with no_grad():
        again = forward([a.copy() for a in arrays])[0]
    if not npx.array_equal(y, again, equal_nan=True):
        raise ValueError(
            f"gradcheck: {name}: expected the same output for the same input; got another; "
            "try giving its random numbers a fixed key (npx.Key, or `with npx.keyed(...)` inside the function)"
        )
    if not npx.isfinite(y).all():
        raise ValueError(f"gradcheck: {name}: expected finite values; got {y!r}; try other inputs")
    c = npx.to_host(npx.random.normal(npx.Key(seed, 0, 0), y.shape, y.dtype))
    if output.requires_grad:
        try:
            output.backward(npx.from_host(c.copy()))
        except RuntimeError as error:  # the engine refused what a vjp gave
            raise GradientError(f"gradcheck: {error}\nreproduce: {problem.reproduce}") from error
    pairs = zip(arrays, leaves, strict=True)
    gradients = [npx.zeros_like(a) if t.grad is None else npx.to_host(t.grad) for a, t in pairs]
    typical = max((float(abs(g).max()) for g in gradients if g.size), default=0.0)

    def phi(moves: dict[int, Array], scale: float) -> float:
        moved = [a + scale * moves[i].astype(a.dtype) if i in moves else a.copy() for i, a in enumerate(arrays)]
        with no_grad():
            return float(npx.sum(forward(moved)[0].astype("float64") * c))

    here = float(npx.sum(y.astype("float64") * c))

    def slope(moves: dict[int, Array], h: float) -> tuple[float, float]:
        """The central difference, and by how much the two one-sided ones differ."""
        ahead, behind = phi(moves, h), phi(moves, -h)
        return (ahead - behind) / (2 * h), abs(ahead - 2 * here + behind) / h

    report = Report()

    def agrees(where: str, analytic: float, moves: dict[int, Array], size: float) -> tuple[bool, float]:
        """Whether the slope along `moves`, of entries of magnitude `size`, is the analytic one; the numeric slope."""

        def close(numeric: float) -> bool:
            return abs(analytic - numeric) <= atol + rtol * max(abs(analytic), abs(numeric), typical)

        width = h * max(1.0, size)
        numeric, bend = slope(moves, width)
        noticeable = 20 * (atol + rtol * typical)
        report.compared += 1
        if close(numeric) and bend <= noticeable:
            report.worst = max(report.worst, abs(analytic - numeric))
            return True, numeric
        nearer, sharper = slope(moves, width / 16)
        # At a kink the slopes differ as before; curvature would have faded with the step, and noise would have grown.
        if max(bend / 4, noticeable) < sharper < 2 * bend:
            report.kinks.append(f"{where}: kink, one-sided slopes differ by {sharper:.3g}")
            return True, nearer
        if close(nearer):  # the wider step reached over a kink, or over strong curvature
            return True, nearer
        return close(numeric), numeric

    def check_tied(value: float) -> None:
        """Compare along the direction that moves every entry equal to `value`, of all inputs, together."""
        moves = {i: (a == value).astype(a.dtype) for i, a in enumerate(arrays)}
        analytic = sum(float(npx.sum(g * moves[i])) for i, g in enumerate(gradients))
        fine, numeric = agrees(f"all entries equal to {value!r}", analytic, moves, abs(value))
        if not fine:
            raise GradientError(
                f"gradcheck: {name}: wrong gradient where entries tie: moving all that equal {value!r} together\n"
                f"    analytic   {analytic!r}\n    numeric    {numeric!r}\nreproduce: {problem.reproduce}"
            )

    def check_entries() -> None:
        tied: set[float] = set()
        for i, (label, a, g) in enumerate(zip(problem.labels, arrays, gradients, strict=True)):
            numeric = npx.zeros_like(g, dtype=npx.float64)
            wrong: list[tuple[float, tuple[int, ...]]] = []
            for position in range(a.size):
                index = tuple(int(k) for k in npx.unravel_index(position, a.shape))
                move = npx.zeros_like(a)
                move[index] = 1
                kinks = len(report.kinks)
                fine, numeric[index] = agrees(f"{label} {index}", float(g[index]), {i: move}, abs(float(a[index])))
                if len(report.kinks) > kinks:
                    tied.add(float(a[index]))
                if not fine:
                    wrong.append((abs(float(g[index]) - numeric[index]), index))
            if wrong:
                raise GradientError(_failure(problem, i, g, numeric, wrong, f"{atol:g} + {rtol:g}"))
        for value in sorted(tied):
            check_tied(value)

    if directions is None:
        check_entries()
        return report
    for k in range(directions):
        moves = {
            i: npx.to_host(npx.random.normal(npx.Key(seed, 1 + k, i), a.shape, "float64")) for i, a in enumerate(arrays)
        }
        analytic = sum(float(npx.sum(g * moves[i])) for i, g in enumerate(gradients))
        if not agrees(f"random direction {k}", analytic, moves, 1.0)[0]:
            check_entries()  # names the entry; a difference spread over very many may pass each single one
            raise GradientError(f"gradcheck: {name}: wrong along random direction {k}\nreproduce: {problem.reproduce}")
    return report


def _failure(problem: Problem, i: int, analytic: Array, numeric: Array, wrong: list[Any], tolerance: str) -> str:
    """What is said of array i, whose gradient is wrong in the entries `wrong`: (difference, index) of each."""
    (worst, index), label, a = max(wrong), problem.labels[i], problem.arrays[i]
    lines = [
        f"gradcheck: {problem.name}: wrong gradient of {label}, {a.shape} {a.dtype}, "
        f"in {len(wrong)} of {a.size} entries; most at {index}:",
        f"    analytic   {float(analytic[index])!r}",
        f"    numeric    {float(numeric[index])!r}",
        f"    difference {worst:.3g}, tolerance {tolerance} of the magnitude",
    ]
    if a.size <= SHOWN:
        for other, array in zip(problem.labels, problem.arrays, strict=True):
            lines.append(f"{other} = {literal(npx.to_host(array))}")
        lines.append(f"gradient of {label}, analytic | numeric:")
        left, right = str(analytic).splitlines(), str(numeric.astype(analytic.dtype)).splitlines()
        width = max(map(len, left))
        lines += [f"    {x:<{width}}  |  {y}" for x, y in zip(left, right, strict=False)]
    if problem.reproduce:
        lines.append(f"reproduce: {problem.reproduce}")
    return "\n".join(lines)


def reproduction(check: str, function: Any, values: Sequence[Any], options: dict[str, Any], setup: str = "") -> str:
    """A line of Python that runs `check(function, *values, **options)` again.

    `setup`: statements before the check. Where `function` can be imported, the line stands alone; else the name in it
    is to be had from where the check was called.
    """
    written = [literal(function), *map(literal, values), *(f"{k}={literal(v)}" for k, v in options.items())]
    imports = ["from numpy import array, inf, nan", "from npx import Drop, Key, Scores, Smoothing"]
    imports.append(f"from autograd.testing import {check}")
    for f in (function, *values, *options.values()):
        if importable(f):
            imports.append(f"from {f.__module__} import {f.__name__}")
        elif (callable(f) or hasattr(f, "_fields")) and importable(type(f)):
            imports.append(f"from {type(f).__module__} import {type(f).__name__}")
    return "; ".join([*dict.fromkeys(imports), *([setup] if setup else []), f"{check}({', '.join(written)})"])


def importable(f: Any) -> bool:
    """Whether `from module import name` gives this very function or class."""
    name, module = getattr(f, "__name__", None), getattr(f, "__module__", None)
    return isinstance(name, str) and module != "__main__" and getattr(sys.modules.get(str(module)), name, None) is f


def literal(x: Any) -> str:
    """Python text that makes `x` again; a large array as its shape."""
    if isinstance(x, Tensor):
        return f"Tensor({literal(x.data)})"
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return f"{type(x).__name__}({', '.join(f'{name}={literal(v)}' for name, v in zip(x._fields, x, strict=True))})"
    if isinstance(x, (list, tuple)):
        inside = ", ".join(literal(v) for v in x)
        return f"[{inside}]" if isinstance(x, list) else f"({inside}{',' if len(x) == 1 else ''})"
    if not hasattr(x, "dtype") or not hasattr(x, "tolist"):
        named = callable(x) and hasattr(x, "__name__") and type(x).__repr__ is type(literal).__repr__
        return x.__name__ if named else repr(x)
    host = npx.to_host(x)
    if host.size > WRITTEN:
        return f"<array {host.shape} {host.dtype}>"
    kind = "" if host.dtype.name in ("float64", "int64", "bool") and host.size else f", dtype={host.dtype.name!r}"
    shape = f".reshape{host.shape}" if not host.size else ""
    return f"array({host.tolist()}{kind}){shape}"
