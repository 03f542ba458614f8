"""`ForeignOperation` wraps a function of another framework as one operation on Tensors, with one vjp."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

import npx
from autograd.engine import Tensor, is_grad_enabled, record_node
from autograd.saved import iterate_captured_arrays
from autograd.testing.report import CheckError, explain, rejections_converted
from autograd.testing.reproduction import is_importable
from npx import Array

Gradients = Sequence[Array | None]
# Maps the gradients of the outputs to those of the arguments; both are flat lists.
Backward = Callable[[list[Array | None]], Gradients]
# Turns the flat list of arguments into (positional arguments, options).
Unflatten = Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class ForeignOperation:
    """A function of another framework as an operation on Tensors.

    Subclasses define `evaluate`. Arguments that are not Tensors are passed on unchanged, except that arrays are
    converted to the framework's own type. Several outputs are concatenated into one vector, so that one random incoming
    gradient checks all of them.

    Args:
        functions: the user's functions, whose closures and globals may hold state.

    Attributes:
        notes: lines for the Report that say what was not checked.
        likely_cause: the likely cause of a wrong gradient, or "".
    """

    adapter = ""  # the name of the function that creates it, such as "from_torch"
    likely_cause = ""
    placeholders: tuple[str, ...] = ("my_function",)  # names for functions that the caller has to define
    none_is_constant = False  # whether None in place of a gradient says that the input is a constant
    materializes_zeros = True  # whether an unused output gets a gradient of zeros instead of None

    def __init__(self, *functions: Any) -> None:
        self.functions = functions
        self.__name__ = name_of(functions[0])
        self.notes: list[str] = []

    def evaluate(
        self, values: list[Any], requires_grad: list[bool], unflatten: Unflatten
    ) -> tuple[list[Array], Backward | None]:
        """Return the outputs and a function that runs the backward pass (None if no output has a gradient).

        Outputs without a gradient are omitted and recorded with `note`.

        Args:
            values: the arguments, in a flat list.
            requires_grad: whether each argument needs a gradient.
            unflatten: turns a list of arguments into positional arguments and options.
        """
        raise NotImplementedError

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        parts: list[Any] = []
        flatten((args, options), parts)
        values = [a.data if isinstance(a, Tensor) else a for a in parts]
        for value in values:
            if getattr(getattr(value, "dtype", None), "kind", "") == "c":
                raise TypeError(
                    f"{self.__name__}: expected real arrays; got {value.dtype}; try passing the real and the imaginary "
                    "part as two inputs"
                )
        requires_grad = [is_grad_enabled() and isinstance(a, Tensor) and a.requires_grad for a in parts]
        outputs, backward = self.evaluate(
            values, requires_grad, lambda values: unflatten((args, options), iter(values))
        )
        y = outputs[0] if len(outputs) == 1 else npx.concatenate([npx.asarray(y).reshape(-1) for y in outputs])
        if backward is None:
            return record_node(self.__name__, y, reject_backward, tuple(parts), any(requires_grad))

        def vjp(g: Array) -> tuple[Array | None, ...]:
            gradients = backward(self.split(g, outputs))
            pairs = zip(values, requires_grad, gradients, strict=True)
            return tuple(
                self.convert_gradient(i, x, gx) if is_needed else None for i, (x, is_needed, gx) in enumerate(pairs)
            )

        vjp.cost = lambda: self.cost(backward)  # type: ignore[attr-defined]
        return record_node(self.__name__, y, vjp, tuple(parts), any(requires_grad))

    def cost(self, backward: Backward) -> tuple[int, int]:
        """Return how many operations the forward pass runs, and how many values they compute or save."""
        return 1, sum(x.size for x in iterate_captured_arrays(backward) if isinstance(x, npx.ndarray))

    def split(self, g: Array, outputs: list[Array]) -> list[Array | None]:
        """Split g, the gradient of the concatenated outputs, into one gradient per output.

        An output whose gradient is 0 counts as unused in the loss, unless the gradients of all outputs are 0.
        """
        if len(outputs) == 1:
            return [g]
        parts = []
        start = 0
        for output in outputs:
            parts.append(g[start : start + output.size].reshape(output.shape).astype(output.dtype, copy=False))
            start += output.size
        if self.materializes_zeros or not npx.any(g):
            return [*parts]
        return [part if npx.any(part) else None for part in parts]

    def convert_gradient(self, i: int, x: Array, gx: Any) -> Array | None:
        """Return the gradient of input i in the dtype of x.

        Raises RuntimeError unless it is a real array of the shape of x.
        """
        if gx is None:
            return None
        gx = npx.asarray(gx)
        if gx.shape != x.shape or gx.dtype.kind == "c":
            raise RuntimeError(
                f"expected a gradient of shape {x.shape} for input {i} of {self.__name__}; got {gx.shape} {gx.dtype}"
            )
        return gx.astype(x.dtype, copy=False)

    def note(self, text: str) -> None:
        """Add a line to the notes of the Report, unless they contain it already."""
        if text not in self.notes:
            self.notes.append(text)

    def require_gradient(self, dtypes: Sequence[Any], has_gradient: Sequence[bool]) -> None:
        """Record the outputs without a gradient.

        Raises TypeError if no output has a gradient or if an output is complex.
        """
        for i, (dtype, differentiable) in enumerate(zip(dtypes, has_gradient, strict=True)):
            if "complex" in str(dtype):
                self.reject(f"expected real outputs; got {dtype} as output {i}", "returning real and imaginary parts")
            if not differentiable:
                self.note(f"not checked: output {i} ({dtype}), which has no gradient")
        if not any(has_gradient):
            got = ", ".join(map(str, dtypes)) or "no array"
            self.reject(f"expected a floating-point output; got {got}", "returning the part that has a gradient")

    def reject(self, problem: str, advice: str) -> NoReturn:
        raise TypeError(f"{self.__name__}: {problem}; try {advice}")

    def not_implemented(self, text: str) -> NoReturn:
        """Raise CheckError for a function without a body."""
        error = CheckError(explain(f"{self.__name__}: {text}", "not implemented"))
        error.rule = "not implemented"
        raise error

    # The line that reproduces a failure

    def __repr__(self) -> str:
        pairs = zip(self.functions, self.placeholders, strict=True)
        return f"{self.adapter}({', '.join(source_of(f, placeholder) for f, placeholder in pairs)})"

    def imports(self) -> list[tuple[str, str]]:
        """Return the (module, name) pairs to import before the `repr` of this object is evaluated."""
        owners = [owner_of(f) for f in self.functions]
        names = [(f.__module__, f.__name__) for f in owners if is_importable(f)]
        return [("autograd.testing", self.adapter), *names]


def flatten(x: Any, parts: list[Any]) -> None:
    """Append the items of x, a possibly nested list, tuple or dict, to a flat list."""
    if type(x) in (list, tuple, dict):
        for item in x.values() if type(x) is dict else x:
            flatten(item, parts)
    else:
        parts.append(x)


def unflatten(x: Any, values: Iterator[Any]) -> Any:
    """Return a copy of x whose items, in the order of `flatten`, are replaced by `values`."""
    if type(x) is dict:
        return {key: unflatten(item, values) for key, item in x.items()}
    return type(x)(unflatten(item, values) for item in x) if type(x) in (list, tuple) else next(values)


def reject_backward(g: Array) -> tuple[None, ...]:
    raise RuntimeError("expected an output that depends on the inputs; got an output without a gradient")


def import_framework(name: str, adapter: str) -> Any:
    """Import a framework. Raises ImportError with a one-line message if the framework is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{adapter}: the package {name} cannot be imported ({error}); try pip install {name}"
        ) from error


@contextmanager
def foreign_errors_converted() -> Iterator[None]:
    """Convert the exceptions of a foreign function, and ignore its warnings, because derived inputs cause many.

    PyTorch raises RuntimeError for shapes that do not fit; the engine raises it for invalid gradients, so the two must
    be told apart.
    """
    with rejections_converted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def owner_of(f: Any) -> Any:
    """Return the class of a bound class method such as `MyFunction.apply`; return any other function unchanged."""
    owner = getattr(f, "__self__", None)
    return owner if isinstance(owner, type) else f


def name_of(f: Any) -> str:
    """Return the name of a function, or of the class of MyFunction.apply."""
    f = owner_of(f)
    return getattr(f, "__name__", type(f).__name__)


def source_of(f: Any, placeholder: str) -> str:
    """Return the name of a function as source code, or the placeholder if the caller has to define the function."""
    name = name_of(f)
    owner = owner_of(f)
    if owner is not f:
        return f"{name}.{f.__name__}"
    return name if name.isidentifier() and hasattr(f, "__name__") else placeholder
