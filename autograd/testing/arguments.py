"""`Arguments`: the arguments of a call as a flat list, including arrays inside containers and arrays passed by name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import npx
from autograd.engine import Tensor
from autograd.operation_checks import MissingGradientError
from autograd.testing.problem import Problem, floating_point_warnings_ignored, is_float, protected
from autograd.testing.report import REJECTIONS, GradientError

MAX_FLOAT = 1e3  # larger options, such as -1e9 for masked scores, are not varied
SMALL_FLOAT = 1e-2


class Arguments:
    """The arguments of one call.

    Attributes:
        values: a flat list of all positional arguments, followed by those options that contain arrays. A list, tuple or
            dict with arrays is replaced by its items. Arrays of integers and booleans are read-only copies.
        names: the name of each value, such as `input 0`, `input 1['gain']` or `option scale`.
    """

    def __init__(self, inputs: Sequence[Any], options: dict[str, Any]) -> None:
        self.inputs = [torch_to_numpy(x) for x in inputs]
        self.options = {name: torch_to_numpy(x) for name, x in options.items()}
        leaves = [leaf for i, x in enumerate(self.inputs) for leaf in flatten(f"input {i}", x)]
        self.array_options = [name for name, x in self.options.items() if has_arrays(x)]
        leaves += [leaf for name in self.array_options for leaf in flatten(f"option {name}", self.options[name])]
        self.names = [name for name, _ in leaves]
        self.positional_names = {f"input {i}" for i in range(len(inputs))}
        self.values = [on_device(x.data if isinstance(x, Tensor) else x) for _, x in leaves]

    def require_options(self, check: Callable[..., Any], function: Callable[..., Any]) -> None:
        """Raise TypeError if `function` requires an option with the same name as an option of the check.

        The check would take a value passed by that name, and the function would never receive it.
        """
        try:
            function_signature = signature(function)
            given = function_signature.bind_partial(*self.inputs, **self.options).arguments
        except (TypeError, ValueError):  # no signature, or arguments that the call itself will reject
            return
        check_options = {p.name for p in signature(check).parameters.values() if p.kind is p.KEYWORD_ONLY}
        for p in function_signature.parameters.values():
            if p.name in check_options - given.keys() and p.default is p.empty:
                name = getattr(function, "__name__", type(function).__name__)
                raise TypeError(
                    f"{check.__name__}: {name} needs the option {p.name!r}, which is also an option of "
                    f"{check.__name__} and is not passed on; try passing the option by position"
                )

    def unflatten(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the inputs and options with `values` in place of `self.values`."""
        new_values = iter(values)
        inputs = [unflatten(x, new_values) for x in self.inputs]
        options = {name: unflatten(self.options[name], new_values) for name in self.array_options}
        return inputs, self.options | options

    def adapt(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the flat values that calls `function` with the inputs and options."""

        def on_values(*values: Any) -> Any:
            inputs, options = self.unflatten(values)
            return function(*inputs, **options)

        return on_values

    def number_options(self, function: Callable[..., Any], kind: type[float]) -> dict[str, Any]:
        """Return the options of type int or float, such as a temperature, each with the value passed or its default."""
        try:
            parameters = [*signature(function).parameters.values()]
        except (TypeError, ValueError):  # the function has no signature
            parameters = []
        defaults: dict[str, Any] = {p.name: p.default for p in parameters[len(self.inputs) :]}
        return {name: x for name, x in (defaults | self.options).items() if type(x) is kind and abs(x) < MAX_FLOAT}

    def with_options(self, problem: Problem, changes: dict[str, Any]) -> Problem:
        """Return a problem with some options changed."""

        @contextmanager
        def changed() -> Iterator[None]:
            options = self.options
            self.options = options | changes
            try:
                yield
            finally:
                self.options = options

        return replace(problem, call=changed()(problem.call), reproduce=changed()(problem.reproduce))

    def with_other_floats(self, problem: Problem, function: Callable[..., Any]) -> Iterator[tuple[str, Problem]]:
        """Yield problems in which one Python float, either an option or an input, has a different value."""
        for name, x in self.number_options(function, float).items():
            other = vary(x, name)
            if other != x:
                yield f"{name}={other:.4g}", self.with_options(problem, {name: other})
        for i, x in enumerate(problem.values):
            if type(x) is float and abs(x) < MAX_FLOAT:
                values = [*problem.values]
                values[i] = vary(x)
                yield f"{vary(x):.4g} as {problem.name_of(i)}", replace(problem, values=values)

    def constant_indices(self, problem: Problem, notes: list[str], none_is_constant: bool = False) -> tuple[int, ...]:
        """Return the positions of the arrays that the function treats as constants, and add a note for each.

        These are floating-point arrays in containers and options that the function does not accept as Tensors, or to
        which no gradient flows. Raises GradientError if their gradient is invalid.

        Args:
            none_is_constant: whether an array passed by position is also a constant if no gradient flows to it.
        """
        candidates = [
            i for i in problem.float_indices if none_is_constant or self.names[i] not in self.positional_names
        ]
        constants = {*candidates}
        for i in candidates:
            trial = replace(problem, constant_indices=tuple(constants - {i}))
            with floating_point_warnings_ignored():
                try:
                    output, leaves = trial.output_and_leaves()
                    if output.requires_grad:
                        trial.run_backward(output, npx.ones_like(output.data))
                except REJECTIONS:
                    continue
                except GradientError as error:
                    # A vjp may omit the gradients of constants, and compute only with arrays.
                    if not isinstance(error.__cause__, (MissingGradientError, TypeError, AttributeError)):
                        raise
                    continue
            if leaves[trial.float_indices.index(i)].grad is not None:
                constants.remove(i)
        for i in sorted(constants):
            note = f"not checked: the gradient of {self.names[i]}, which the function treats as a constant"
            if note not in notes:
                notes.append(note)
        return tuple(sorted(constants))


def on_device(x: Any) -> Any:
    """Return x on the current device if it is a NumPy array of numbers; return any other value unchanged.

    Arrays of integers and booleans are copied and write-protected, and numbers get the byte order of this machine.
    """
    if type(x) is not npx.ndarray or x.dtype.kind not in "biuf":
        return x
    x = x.astype(x.dtype.newbyteorder("="), copy=not is_float(x))
    return npx.from_host(x) if is_float(x) else protected(npx.from_host(x))


def torch_to_numpy(x: Any) -> Any:
    """Return x, an argument or a container of arguments, with NumPy arrays in place of the tensors of PyTorch."""
    if type(x) is dict:
        return {key: torch_to_numpy(item) for key, item in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(torch_to_numpy, x))
    return x.detach().cpu().numpy() if type(x).__module__.partition(".")[0] == "torch" and hasattr(x, "detach") else x


def vary(x: float, name: str = "") -> float:
    """Return a different float of the same sign and order of magnitude; 1 becomes 0.83, so that a rate stays valid.

    A tolerance, an epsilon or any other small number becomes only twice as large.
    """
    if 0 < abs(x) < SMALL_FLOAT or "tol" in name or name.startswith("eps"):
        return 2 * x
    return 0.7 * x + (0.13 if x >= 0 else -0.13)


def has_arrays(x: Any) -> bool:
    """Return whether x is an array of numbers, or a list, tuple or dict that contains one.

    Tensors and single integers such as np.int64(3) do not count; single floats do.
    """
    if type(x) in (list, tuple, dict):
        return any(map(has_arrays, x.values() if type(x) is dict else x))
    is_array_of_integers = isinstance(x, npx.ndarray) and x.dtype.kind in "biu" and x.ndim > 0
    return is_array_of_integers or (is_float(x) and not isinstance(x, Tensor))


def flatten(name: str, x: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each item of a container with arrays, or of x itself."""
    if type(x) not in (list, tuple, dict) or not has_arrays(x):
        yield name, x
        return
    for key, item in x.items() if type(x) is dict else enumerate(x):
        yield from flatten(f"{name}[{key!r}]", item)


def unflatten(x: Any, new_values: Iterator[Any]) -> Any:
    """Return a copy of x in which `new_values`, in order, replace the values that `flatten` yields."""
    if type(x) not in (list, tuple, dict) or not has_arrays(x):
        return next(new_values)
    if type(x) is dict:
        return {key: unflatten(item, new_values) for key, item in x.items()}
    return type(x)(unflatten(item, new_values) for item in x)
