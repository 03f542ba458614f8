"""`from_cupy`: a forward and a backward function on CuPy arrays, as one operation on host arrays."""

from collections.abc import Callable
from typing import Any

import npx
from autograd.testing.adapters.base import import_framework
from autograd.testing.adapters.pair import PairOperation
from autograd.testing.problem import is_array
from npx import Array


def from_cupy(forward: Callable[..., Any], backward: Callable[..., Any]) -> "CupyOperation":
    """Return an operation from two functions on CuPy arrays, as `from_pair` does for NumPy.

    The inputs and the incoming gradient are host arrays. Their copies on the GPU have the same memory layout: strided,
    in column-major order, or broadcast with strides of 0.
    """
    return CupyOperation(forward, backward)


class CupyOperation(PairOperation):
    """See `from_cupy`."""

    adapter = "from_cupy"

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        super().__init__(forward, backward)
        self.cupy = import_framework("cupy", self.adapter)

    def to_foreign(self, x: Any) -> Any:
        if not is_array(x):
            return x
        host = npx.to_host(x)
        base = host[tuple(slice(0, 1) if s == 0 else slice(None) for s in host.strides)]  # axes without repetition
        moved = self.cupy.asarray(npx.host.ascontiguousarray(base))
        if not base.flags.c_contiguous and base.ndim:
            axes = sorted(range(base.ndim), key=lambda axis: -abs(base.strides[axis]))
            if axes == [*range(base.ndim)]:
                moved = self.cupy.repeat(moved, 2, axis=-1)[..., ::2]
            else:
                inverse = [axes.index(axis) for axis in range(base.ndim)]
                moved = self.cupy.ascontiguousarray(moved.transpose(axes)).transpose(inverse)
        return self.cupy.broadcast_to(moved, host.shape)

    def to_host(self, y: Any) -> Array:
        return self.cupy.asnumpy(y)
