"""`Problem`: the function and the inputs that a check examines, and the ways to evaluate them."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import npx
from autograd.engine import Node, Tensor, is_floating, no_grad, toposort
from autograd.saved import iterate_captured_arrays
from autograd.testing import progress
from autograd.testing.report import (
    REJECTIONS,
    CheckError,
    GradientError,
    describe_error,
    explain,
    rejections_converted,
)
from npx import Array


@dataclass
class Problem:
    """A function and the inputs at which it is checked.

    Attributes:
        name: the prefix of error messages.
        call: called with `values`, in which Tensors replace the floating-point arrays; returns the output as a Tensor.
        values: the positional arguments. Gradients are checked for those that are floating-point arrays.
        names: the names of the values, for messages; by default `input 0` and so on.
        constant_indices: the positions of floating-point arrays in `values` for which no gradient is checked.
        parameters: further arrays for which gradients are checked, by name, such as the parameters of a layer.
        parameter_tensors: the Tensors from which `call` reads the `parameters`.
        updating_call: like `call`, but without restoring the state that is held fixed; None if there is no such state.
        reproduce: called with a Problem; returns a line of Python that repeats its check.
        likely_cause: returns the likely cause of a wrong gradient, or "" if it is unknown.
    """

    name: str
    call: Callable[[list[Any]], Any]
    values: list[Any]
    parameters: dict[str, Array] = field(default_factory=dict)
    parameter_tensors: list[Tensor] = field(default_factory=list)
    reproduce: Callable[["Problem"], str] = lambda problem: ""
    names: Sequence[str] = ()
    constant_indices: tuple[int, ...] = ()
    updating_call: Callable[[list[Any]], Any] | None = None
    likely_cause: Callable[[], str] = lambda: ""

    @property
    def float_indices(self) -> list[int]:
        """The positions in `values` of the floating-point arrays for which gradients are checked."""
        return [i for i, x in enumerate(self.values) if is_float(x) and i not in self.constant_indices]

    @property
    def arrays(self) -> list[Array]:
        """The arrays for which gradients are checked: floating-point inputs, then parameters."""
        return [*(self.values[i] for i in self.float_indices), *self.parameters.values()]

    @property
    def labels(self) -> list[str]:
        """The name of each of the `arrays`, for messages."""
        return [self.name_of(i) for i in self.float_indices] + [f"parameter {n}" for n in self.parameters]

    def name_of(self, i: int) -> str:
        """Return the name of a value, for messages."""
        return self.names[i] if self.names else f"input {i}"

    def with_arrays(self, arrays: Sequence[Array]) -> "Problem":
        """Return the same problem with other `arrays`."""
        values = list(self.values)
        for i, a in zip(self.float_indices, arrays, strict=False):
            values[i] = a
        parameters = dict(zip(self.parameters, arrays[len(self.float_indices) :], strict=True))
        return replace(self, values=values, parameters=parameters)

    def failure(
        self,
        rule: str,
        text: str,
        error: type[CheckError | GradientError] = CheckError,
        cause: str = "",
        reproduce: bool = True,
    ) -> CheckError | GradientError:
        """Return an error that names the broken rule and its likely cause, with a line that reproduces the failure."""
        line = self.reproduce(self) if reproduce else ""
        cause = (self.likely_cause() if rule == "gradient" else "") or cause
        failure = error(explain(f"{self.name}: {text}", rule, line, cause))
        failure.rule = rule
        return failure

    # Evaluation

    def output_and_leaves(
        self, arrays: Sequence[Array] | None = None, require: Sequence[int] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the output and the leaf Tensors of the arrays.

        Args:
            arrays: used in place of `self.arrays`.
            require: the positions of the leaves that require gradients; None selects all.
        """
        arrays = [npx.asarray(a) for a in (self.arrays if arrays is None else arrays)]
        leaves = [Tensor(a) for a in arrays[: len(self.float_indices)]] + self.parameter_tensors
        for i, (leaf, a) in enumerate(zip(leaves, arrays, strict=True)):
            leaf.data = a
            leaf.node = None
            leaf.grad = None
            leaf.requires_grad = require is None or i in require
        progress.step(self.name)
        return self.output(leaves), leaves

    def output_from_tensors(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the output when the arrays are replaced by Tensors that other operations computed."""
        for parameter, t in zip(self.parameter_tensors, tensors[len(self.float_indices) :], strict=True):
            parameter.data = t.data
            parameter.node = t.node
            parameter.grad = None
            parameter.requires_grad = True
        output = self.output(tensors)
        for parameter in self.parameter_tensors:
            parameter.node = None
        return output

    def output(self, tensors: Sequence[Tensor]) -> Tensor:
        """Call the function with Tensors in place of the floating-point inputs."""
        values = list(self.values)
        for i, t in zip(self.float_indices, tensors, strict=False):
            values[i] = t
        if tensors:
            for i in self.constant_indices:
                values[i] = values[i].astype(tensors[0].dtype)
        with self.no_writes("expected the function not to modify its inputs and parameters; it wrote to one of them"):
            with rejections_converted():
                output = self.call(values)
        if not isinstance(output, Tensor):
            raise TypeError(f"{self.name}: expected the function to return a Tensor; got {type(output).__name__}")
        return output

    def output_value(self, arrays: Sequence[Array] | None = None) -> Array:
        """Compute the output without a graph and return it on the host, in float64."""
        with no_grad():
            return npx.to_host(self.output_and_leaves(arrays)[0].data).astype("float64")

    def gradients(self, output: Tensor, leaves: list[Tensor], c: Array) -> list[Array]:
        """Return the gradients of sum(output * c) on the host; raise GradientError if the backward pass fails."""
        if output.requires_grad:
            self.run_backward(output, npx.from_host(c.copy()))
        return [npx.to_host(leaf_gradient(t)).copy() for t in leaves]

    def run_backward(self, output: Tensor, g: Array) -> None:
        """Run the backward pass; raise GradientError if the engine rejects a gradient or the vjp raises an error."""
        try:
            output.backward(g)
        except (CheckError, GradientError):
            raise
        except Exception as error:
            text = f"backward raised {describe_error(error)}"
            raise self.failure("valid gradient", text, GradientError) from error

    def output_and_gradients(self, c: Array, require: Sequence[int] | None = None) -> tuple[Array, list[Array]]:
        """Compute the output and the gradients of sum(output * c) from write-protected arrays."""
        output, leaves = self.run_protected(require)
        y = npx.to_host(output.data).copy()
        return y, self.protected_gradients(output, leaves, c)

    def run_protected(self, require: Sequence[int] | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return the result of `output_and_leaves` on write-protected arrays."""
        guarded = self.with_arrays([isolated(a) for a in self.arrays])
        guarded.values = [isolated(x) if is_array(x) else x for x in guarded.values]
        return guarded.output_and_leaves(require=require)

    def protected_gradients(self, output: Tensor, leaves: list[Tensor], c: Array) -> list[Array]:
        """Return the result of `gradients` for a write-protected incoming gradient c."""
        for leaf in leaves:
            leaf.grad = None
        g = protected(npx.from_host(c))
        before = npx.to_host(c).copy()
        if output.requires_grad:
            try:
                with self.no_writes(
                    "expected the vjp not to modify an input or the incoming gradient; it wrote to one of them"
                ):
                    output.backward(g)
            except (CheckError, GradientError):
                raise
            except RuntimeError as error:
                raise self.failure("valid gradient", f"backward raised {describe_error(error)}") from error
            except Exception as error:
                text = f"expected the vjp to accept any incoming gradient; got {describe_error(error)}"
                raise self.failure("incoming gradient layout", text) from error
        if not npx.array_equal(npx.to_host(g), before, equal_nan=True):
            raise self.failure(
                "no mutation", "expected the vjp not to modify the incoming gradient; its values changed"
            )
        return [npx.to_host(leaf_gradient(t)) for t in leaves]

    @contextmanager
    def no_writes(self, text: str) -> Iterator[None]:
        """Raise CheckError if the block writes to a protected array."""
        try:
            yield
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            raise self.failure("no mutation", f"{text} ({error})") from error


def is_array(x: Any) -> bool:
    """Return whether x is a NumPy or CuPy array; a class such as np.float32 is not, although it has a dtype."""
    return isinstance(x, npx.ndarray) or (hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, type))


def is_float(x: Any) -> bool:
    """Return whether x is a floating-point array."""
    return is_array(x) and is_floating(x.dtype)


def require_floats(name: str, values: Sequence[Any]) -> None:
    """Raise TypeError unless at least one of the values is a floating-point array."""
    if not any(map(is_float, values)):
        dtypes = ", ".join(str(getattr(x, "dtype", type(x).__name__)) for x in values) or "none"
        raise TypeError(f"{name}: expected a floating-point input; got {dtypes}; try np.asarray(x, 'float64')")


def leaf_gradient(leaf: Tensor) -> Array:
    """Return the gradient of a leaf; zeros if it received none."""
    return npx.zeros_like(leaf.data) if leaf.grad is None else leaf.grad


def protected(x: Array) -> Array:
    """Return a view of x in the same memory layout; with NumPy, the view is read-only."""
    return npx.read_only(npx.asarray(x))


def isolated(x: Array) -> Array:
    """Return a read-only view of a NumPy array, or a copy of an array on a GPU, which has no read-only views."""
    return protected(x) if isinstance(x, npx.host.ndarray) else x.copy("K")


@contextmanager
def floating_point_warnings_ignored() -> Iterator[None]:
    """Suppress floating-point warnings, because overflow and division by zero are expected."""
    with npx.host.errstate(all="ignore"):
        yield


def nodes(output: Tensor) -> list[Node]:
    """Return the graph nodes that the output depends on, in order of creation."""
    return toposort(output.node) if output.node else []


def is_accepted(problem: Problem) -> bool:
    """Return whether the function accepts a problem."""
    try:
        with floating_point_warnings_ignored():
            problem.output_value()
    except REJECTIONS:
        return False
    return True


def have_equal_values(problem: Problem, other: Problem) -> bool:
    """Return whether two problems have equal outputs, up to rounding."""
    try:
        with floating_point_warnings_ignored():
            y, z = problem.output_value(), other.output_value()
    except REJECTIONS:
        return False
    largest = float(abs(z[npx.isfinite(z)]).max(initial=0.0))
    return y.shape == z.shape and bool(npx.host.allclose(y, z, rtol=0, atol=1e-9 * largest, equal_nan=True))


def grows_superlinearly(problem: Problem, other: Problem, times: float) -> bool:
    """Return whether `other`, which is `times` times as long as `problem`, costs disproportionately more.

    This happens if the function runs operations for each position, or computes values for each pair of positions.
    """
    try:
        with floating_point_warnings_ignored():
            n_operations, n_values = cost(problem.output_and_leaves()[0])
            more_operations, more_values = cost(other.output_and_leaves()[0])
    except REJECTIONS:
        return False
    return more_operations > 1.2 * n_operations or more_values > 1.2 * times * n_values


def cost(output: Tensor) -> tuple[int, int]:
    """Return the number of operations in an output's graph, and the number of values that they compute and save."""
    n_operations = 0
    n_values = 0
    for node in nodes(output):
        n_values += math.prod(node.shape)
        if hasattr(node.vjp, "cost"):  # the vjp of a function from another framework, which counts its own operations
            operations, values = node.vjp.cost()  # type: ignore[union-attr]
        else:
            operations, values = 1, sum(x.size for x in iterate_captured_arrays(node.vjp))
        n_operations += operations
        n_values += values
    return n_operations, n_values
