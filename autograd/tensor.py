"""The operators and methods of a Tensor: each is the operation of that name, attached to the engine's class."""

from collections.abc import Callable, Sequence
from typing import Any

from autograd import operations as ops
from autograd.engine import Tensor


def reflected(operation: Callable[..., Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """For `other - tensor`, which asks the right operand."""
    return lambda self, other: operation(other, self)


def reshape(self: Tensor, *shape: Any) -> Tensor:
    """`x.reshape(2, 3)` or `x.reshape((2, 3))`."""
    return ops.reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape)


def transpose(self: Tensor, *axes: int) -> Tensor:
    """`x.transpose()` or `x.transpose(1, 0)`."""
    return ops.transpose(self, axes or None)


BINARY = {"add": ops.add, "sub": ops.subtract, "mul": ops.multiply, "truediv": ops.divide, "matmul": ops.matmul}
METHODS = {
    **{f"__{name}__": operation for name, operation in BINARY.items()},
    **{f"__r{name}__": reflected(operation) for name, operation in BINARY.items()},
    **{"__pow__": ops.power, "__neg__": ops.negative, "__getitem__": ops.getitem},
    **{"sum": ops.sum, "mean": ops.mean, "max": ops.max, "min": ops.min},
    **{"reshape": reshape, "transpose": transpose, "swapaxes": ops.swapaxes, "astype": ops.astype},
}
for name, method in METHODS.items():
    setattr(Tensor, name, method)
