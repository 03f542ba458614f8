"""`from_pair`: wraps a forward and a backward function on NumPy arrays as one operation."""

import copy
import inspect
import re
from collections.abc import Callable
from typing import Any

import npx
from autograd.engine import is_floating
from autograd.testing.adapters.base import Backward, ForeignOperation, Unflatten, foreign_errors_converted, name_of
from autograd.testing.problem import is_array, is_float
from npx import Array


def from_pair(forward: Callable[..., Any], backward: Callable[..., Any]) -> "PairOperation":
    """Return an operation for `check_operation` and `gradcheck` from two functions on NumPy arrays.

    Args:
        forward: called with the inputs. Returns `(out, cache)`, `(out, *saved)`, or `out` alone; `out` is an array, a
            number or a tuple of arrays.
        backward: called as `backward(dout, cache)`, as `backward(dout, *saved)` if it takes that many arguments, or as
            `backward(dout, *inputs)` if forward returns `out` alone. Returns the gradient of each array input, of each
            floating-point input, or of each floating-point array passed by position: one array, a tuple, or a dict
            with the names of the inputs ("dx" or "x"). None in place of a gradient says that the input is a constant.

    If the functions are two methods of one object, each call runs `layer.forward(x)` and then `layer.backward(dout)` on
    a new copy of the object. Lists and dicts among the inputs are copied for each call. Outputs and gradients that are
    wider than the inputs (float64 for float32) are accepted.
    """
    return PairOperation(forward, backward)


class PairOperation(ForeignOperation):
    """See `from_pair`."""

    adapter = "from_pair"
    none_is_constant = True
    placeholders = ("forward", "backward")

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        for function in (forward, backward):
            if not callable(function):
                raise TypeError(
                    f"{self.adapter}: expected two functions, forward and backward; got {type(function).__name__}"
                )
        super().__init__(forward, backward)
        self.names = positional_names(forward)
        self.backward_names = positional_names(backward, required=True) or []

    def evaluate(
        self, values: list[Any], requires_grad: list[bool], unflatten: Unflatten
    ) -> tuple[list[Array], Backward | None]:
        forward, backward = self.functions
        owner = getattr(forward, "__self__", None)
        is_method = owner is not None and owner is getattr(backward, "__self__", None)
        if is_method:  # so that values saved in attributes belong to this call
            owner = copy.deepcopy(owner)
            forward, backward = (getattr(owner, f.__name__) for f in self.functions)
        foreign, options = unflatten([self.to_foreign(x) for x in values])
        with foreign_errors_converted():
            result = forward(*foreign, **options)
        out, *saved = result if isinstance(result, tuple) else (result,)
        if out is None or out is ...:
            self.not_implemented(f"expected forward to return its output and a cache; got {out} as the output")
        if len(saved) > 1 and self.backward_names[1:2] and is_second_output(self.backward_names[1], saved[0]):
            self.likely_cause = (
                f"{name_of(self.functions[1])} gets the second value that {self.__name__} returns as its argument "
                f"{self.backward_names[1]}; if the value is an output, return ((out, other), cache)"
            )
        outputs = [self.to_host(y) for y in (out if isinstance(out, (tuple, list)) else [out])]
        is_floating_output = [is_floating(y.dtype) for y in outputs]
        self.require_gradient([y.dtype for y in outputs], is_floating_output)
        widest = max((x.dtype for x in values if is_float(x)), key=lambda dtype: dtype.itemsize, default=None)
        results = [narrow(y, widest) for y, keep in zip(outputs, is_floating_output, strict=True) if keep]

        def run_backward(gradients: list[Array | None]) -> list[Array | None]:
            given = iter(gradients)
            douts = [
                self.to_foreign(next(given) if keep else npx.host.zeros_like(y))
                for y, keep in zip(outputs, is_floating_output, strict=True)
            ]
            dout = tuple(douts) if isinstance(out, (tuple, list)) else douts[0]
            if saved:
                arguments = saved if len(saved) == len(self.backward_names) - 1 else [tuple(saved)]
            else:
                arguments = [] if is_method else [*foreign]
            with foreign_errors_converted():
                returned = backward(dout, *arguments, **({} if saved or is_method else options))
            return self.order_gradients(returned, values, unflatten([*range(len(values))])[0])

        return results, run_backward

    def to_foreign(self, x: Any) -> Any:
        """Convert an argument to the type that the user's functions take."""
        return x

    def to_host(self, y: Any) -> Array:
        """Return an output as an array."""
        return npx.asarray(y)

    def order_gradients(self, returned: Any, values: list[Any], arguments: tuple[Any, ...]) -> list[Array | None]:
        """Return the gradients in the order of `values`.

        Args:
            arguments: the positional arguments, with each value replaced by its index in `values`.

        Raises RuntimeError if the number of gradients is wrong.
        """
        floats = [i for i, x in enumerate(values) if is_float(x)]
        names = self.names or [str(i) for i in range(len(values))]
        backward_name = getattr(self.functions[1], "__name__", "backward")
        by_position = [i for i in arguments if i in floats]
        if isinstance(returned, dict):
            keys = {i: next((k for k in (f"d{n}", n, f"grad_{n}") if k in returned), None) for i, n in enumerate(names)}
            missing = [names[i] for i in by_position if keys.get(i) is None]
            if missing:
                raise RuntimeError(f"expected {backward_name} to return d{missing[0]}; got the keys {[*returned]}")
            return [self.gradient(returned.get(keys.get(i))) for i in range(len(values))]
        gradients = [*returned] if isinstance(returned, (tuple, list)) else [returned]
        if all(g is None or g is ... for g in gradients):
            self.not_implemented(f"expected {backward_name} to return gradients; got {returned}")
        while len(gradients) > len(floats) and gradients[-1] is None:  # a trailing None is the gradient of an option
            gradients.pop()
        for positions in (range(len(values)), [i for i, x in enumerate(values) if is_array(x)], floats, by_position):
            if len(gradients) == len(positions):
                ordered = dict(zip(positions, gradients, strict=True))
                return [self.gradient(ordered.get(i)) for i in range(len(values))]
        expected = ", ".join(names[i] if i < len(names) else str(i) for i in floats)
        raise RuntimeError(
            f"expected {backward_name} to return {len(floats)} gradient{'s' * (len(floats) != 1)}, of {expected}; "
            f"got {len(gradients)}; try None as the gradient of a constant, or passing the constant by name"
        )

    def gradient(self, gx: Any) -> Array | None:
        """Return a gradient as an array."""
        return None if gx is None else self.to_host(gx)


def is_second_output(name: str, value: Any) -> bool:
    """Return whether `value`, which forward saves, is probably an output.

    If it is, backward's parameter for it has the `name` of a gradient, such as dc.
    """
    return is_float(value) and re.match("d[a-z]|grad_|g_", name) is not None


def narrow(y: Array, dtype: Any) -> Array:
    """Convert y to `dtype` if its own dtype is wider; otherwise, return it unchanged."""
    return y.astype(dtype) if dtype is not None and y.dtype.itemsize > dtype.itemsize else y


def positional_names(f: Callable[..., Any], required: bool = False) -> list[str] | None:
    """Return the names of the positional arguments, or None if unknown; `required` omits those with a default."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in parameters if p.kind in kinds and not (required and p.default is not p.empty)]
