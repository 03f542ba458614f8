"""The operators and methods of a Tensor: each is the operation of that name, attached to the engine's class."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autograd import operations as ops
from autograd.engine import Tensor
from npx import Array


def reflected(operation: Callable[..., Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """For `other - tensor`, which asks the right operand."""
    return lambda self, other: operation(other, self)


def reshape(self: Tensor, *shape: Any) -> Tensor:
    """`x.reshape(2, 3)` or `x.reshape((2, 3))`."""
    return ops.reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape)


def transpose(self: Tensor, *axes: Any) -> Tensor:
    """`x.transpose()`, `x.transpose(1, 0)` or `x.transpose((1, 0))`."""
    return ops.transpose(self, axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes or None)


def compared(comparison: Callable[[Any, Any], Array]) -> Callable[[Tensor, Any], Array]:
    """An array of bools, for `where` and for indices: steps have no gradient."""
    return lambda self, other: comparison(self.data, other.data if isinstance(other, Tensor) else other)


BINARY = {"add": ops.add, "sub": ops.subtract, "mul": ops.multiply, "truediv": ops.divide, "matmul": ops.matmul}


def elements(self: Tensor) -> Iterator[Tensor]:
    """Its parts along the first axis; TypeError where it has none."""
    return (self[i] for i in range(len(self)))


def refused(self: Tensor, *how: Any, **named: Any) -> Any:
    """NumPy would take it apart, and lose the gradient."""
    raise TypeError(
        "Tensor: expected an operation of autograd; got one of NumPy's, or a list of Tensors; "
        "try ops.stack(a, b) for Tensors one by one, x.numpy() for bare values"
    )


COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
METHODS = {
    **{f"__{comparison.__name__}__": compared(comparison) for comparison in COMPARISONS},
    **{f"__{name}__": operation for name, operation in BINARY.items()},
    **{f"__r{name}__": reflected(operation) for name, operation in BINARY.items()},
    **{"__pow__": ops.power, "__neg__": ops.negative, "__getitem__": ops.getitem},
    **{"sum": ops.sum, "mean": ops.mean, "max": ops.max, "min": ops.min},
    **{"__iter__": elements, "__array__": refused, "__hash__": object.__hash__},  # as keys Tensors are themselves
    **{"__bool__": lambda self: bool(self.data), "__float__": lambda self: float(self.item())},
    **{"reshape": reshape, "transpose": transpose, "swapaxes": ops.swapaxes, "astype": ops.astype},
}
for name, method in METHODS.items():
    setattr(Tensor, name, method)
