"""The sums of gradients that the engine computes in the backward pass."""

from typing import Any

import npx
from npx import Array


class GradientSum:
    """The sum of the gradients that have arrived at a node.

    Attributes:
        array: the sum.
        is_owned: whether later gradients may be added to the array in place. If not, the array is the result of a vjp,
            and other nodes may use it.
    """

    __slots__ = ("array", "is_owned")

    def __init__(self, array: Array, is_owned: bool) -> None:
        self.array, self.is_owned = array, is_owned

    def add(self, gradient: Array) -> None:
        """Add a gradient, in place if the array is owned and otherwise in a new array."""
        if self.is_owned:
            self.array += gradient
        else:
            self.array, self.is_owned = npx.asarray(self.array + gradient), True  # NumPy returns 0-d sums as scalars


def add_to_leaf(leaf: Any, gradient: Array, is_owned: bool = False) -> None:
    """Add a gradient to the `grad` of a leaf Tensor; the first gradient is copied unless `is_owned`."""
    if leaf.grad is not None:
        leaf.grad += gradient
    elif is_owned:
        leaf.grad = gradient
    else:
        # The array is copied, because it may also be the gradient of other inputs of the operation.
        leaf.grad = npx.asarray(gradient.copy())
