"""The sums of gradients that the engine computes in the backward pass."""

import npx
from npx import Array


class GradientSum:
    """The sum of the gradients that have arrived at a node. It owns its `array` or borrows it from a vjp's result."""

    __slots__ = ("array", "is_owned")

    def __init__(self, array: Array, is_owned: bool) -> None:
        self.array, self.is_owned = array, is_owned

    def add(self, gradient: Array) -> None:
        """Add a gradient: in place if the array is owned, otherwise in a new array."""
        if self.is_owned:
            self.array += gradient
        else:
            self.array, self.is_owned = npx.asarray(self.array + gradient), True  # NumPy returns 0-d sums as scalars
