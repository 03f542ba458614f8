"""`from_jax`: wraps a JAX function, with or without a custom_vjp, as one operation."""

from collections.abc import Callable
from typing import Any

import npx
from autograd.testing.adapters import jaxpr
from autograd.testing.adapters.base import (
    Backward,
    ForeignOperation,
    Unflatten,
    foreign_errors_converted,
    import_framework,
)
from autograd.testing.problem import floating_point_warnings_ignored, is_array
from npx import Array


def from_jax(function: Callable[..., Any], numpy: bool = True) -> "JaxOperation":
    """Return an operation for `check_operation` and `gradcheck` from a function of JAX arrays.

    Args:
        function: takes arrays and returns an array or a tuple, list or dict of arrays. `jax.vjp` computes its gradient
            and runs any custom_vjp or custom_jvp.
        numpy: whether to evaluate the traced function in NumPy. JAX takes ten times as long, because it compiles every
            operation for every shape. JAX always evaluates functions that branch on values: they cannot be traced.

    64-bit floats are enabled if an input is float64, and disabled otherwise.
    """
    jax = import_framework("jax", "from_jax")
    if not callable(function) or isinstance(function, type):
        got = function.__name__ if isinstance(function, type) else type(function).__name__
        raise TypeError(f"from_jax: expected a function of arrays; got {got}; try lambda x: model(x)")
    return JaxOperation(jax, function, numpy)


class JaxOperation(ForeignOperation):
    """See `from_jax`."""

    adapter = "from_jax"

    def __init__(self, jax: Any, function: Callable[..., Any], numpy: bool) -> None:
        super().__init__(function)
        self.jax, self.numpy = jax, numpy
        self.programs: dict[Any, Any] = {}

    def evaluate(
        self, values: list[Any], requires_grad: list[bool], unflatten: Unflatten
    ) -> tuple[list[Array], Backward | None]:
        def of_arrays(*arrays: Any) -> list[Any]:
            given = iter(arrays)
            arguments, options = unflatten([next(given) if is_array(x) else x for x in values])
            return self.outputs(self.functions[0](*arguments, **options))

        arrays = [npx.to_host(x) for x in values if is_array(x)]
        differentiated = [is_needed for x, is_needed in zip(values, requires_grad, strict=True) if is_array(x)]

        def pull_back(*arrays: Any) -> tuple[list[Any], Callable[..., Any]]:
            """Return the outputs and the backward function. The forward rule of a custom_vjp computes the outputs."""
            floats = [x for x, is_needed in zip(arrays, differentiated, strict=True) if is_needed]

            def of_floats(*floats: Any) -> list[Any]:
                given = iter(floats)
                pairs = zip(arrays, differentiated, strict=True)
                return of_arrays(*[next(given) if is_needed else x for x, is_needed in pairs])

            return self.jax.vjp(of_floats, *floats)

        def gradients_of(*arguments: Any) -> list[Any]:
            backward = pull_back(*arguments[: len(arrays)])[1]
            return [*backward([*arguments[len(arrays) :]])]

        key = repr((unflatten([None if is_array(x) else x for x in values]), differentiated))
        function = (lambda *arrays: pull_back(*arrays)[0]) if any(requires_grad) else of_arrays
        outputs = [npx.host.array(y) for y in self.run(function, arrays, f"outputs {any(requires_grad)} {key}")]

        def run_backward(gradients: list[Array | None]) -> list[Array | None]:
            arguments = [*arrays, *(npx.to_host(g) for g in gradients if g is not None)]
            given = iter(self.run(gradients_of, arguments, f"gradients {key}"))
            return [npx.host.array(next(given)) if is_needed else None for is_needed in requires_grad]

        return outputs, run_backward if any(requires_grad) else None

    def outputs(self, result: Any) -> list[Any]:
        """Return the floating-point outputs."""
        leaves = [self.jax.numpy.asarray(y) for y in self.jax.tree_util.tree_leaves(result)]
        has_gradient = [self.jax.numpy.issubdtype(y.dtype, self.jax.numpy.floating) for y in leaves]
        self.require_gradient([y.dtype for y in leaves], has_gradient)
        return [y for y, keep in zip(leaves, has_gradient, strict=True) if keep]

    def run(self, function: Callable[..., Any], arrays: list[Array], key: str) -> list[Any]:
        """Return the results of a function. Calls with equal keys, shapes and dtypes share a traced program."""
        with (
            self.x64(any(x.dtype == "float64" for x in arrays)),
            floating_point_warnings_ignored(),
            foreign_errors_converted(),
        ):
            if self.numpy:
                signature = key, *((x.shape, x.dtype.name) for x in arrays)
                try:
                    if signature not in self.programs:
                        self.programs[signature] = self.jax.make_jaxpr(function)(*arrays)
                    return jaxpr.evaluate(self.programs[signature], arrays)
                except (self.jax.errors.ConcretizationTypeError, self.jax.errors.TracerArrayConversionError):
                    self.numpy = False  # the function branches on values, such as `if x > 0`
            return function(*map(self.jax.numpy.asarray, arrays))

    def cost(self, backward: Backward) -> tuple[int, int]:
        return max((jaxpr.cost(program) for program in [*self.programs.values()][-1:]), default=(1, 0))

    def x64(self, enabled: bool) -> Any:
        """Return a context manager that enables or disables 64-bit floats."""
        if hasattr(self.jax, "enable_x64"):
            return self.jax.enable_x64(enabled)
        return import_framework("jax.experimental", self.adapter).enable_x64(enabled)
