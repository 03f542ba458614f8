"""The operators and methods of a Tensor: each applies the operation of the same name.

`TensorMethods` is the base class of `autograd.engine.Tensor`. Its methods look up operations by name in `OPERATIONS`,
where `differentiable` registers them, so neither this module nor the engine imports an operation.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import npx
from autograd import operation_checks
from autograd.html import tables
from npx import Array, Registry

OPERATIONS: Registry[Callable[..., Any]] = Registry("operation")


def _values(x: Any) -> Any:
    return x.data if isinstance(x, TensorMethods) else x


class TensorMethods:
    """Arithmetic, comparisons, indexing, reductions and shape methods of a Tensor.

    Arithmetic takes Tensors and arrays of one floating dtype, and Python numbers, and broadcasts as NumPy does.
    Comparisons return boolean arrays, which have no gradient, for use in `where` and as indices.
    """

    __slots__ = ()
    __array_ufunc__ = None  # makes `array * tensor` call Tensor.__rmul__ instead of building an array of Tensors
    data: Array
    requires_grad: bool
    node: Any
    grad: Array | None

    # The array

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.data.shape

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        return self.data.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.data.size

    def __len__(self) -> int:
        """Return the length of the first axis."""
        return len(self.data)

    def __bool__(self) -> bool:
        """Return the truth value of a Tensor of one element. Raises ValueError for a Tensor of several elements."""
        return bool(self.data)

    def __float__(self) -> float:
        """Return the value of a Tensor of one element."""
        return float(self.item())

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the first axis. Raises TypeError for a Tensor without axes."""
        return (self[i] for i in range(len(self)))

    def __getstate__(self) -> Any:
        """Return the state for a copy or pickle. Raises TypeError unless the Tensor is a leaf."""
        if self.node:
            operation_checks.reject_copy(self.node.name)
        return super().__getstate__()

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError: NumPy would return an array of Tensors and lose the gradient."""
        raise TypeError(
            "Tensor: NumPy cannot convert a Tensor without losing its gradient; "
            "try autograd.operations.stack(a, b) to join Tensors, or x.numpy() for their values without gradients"
        )

    def _repr_html_(self) -> str:
        """Return the values, and the gradient if there is one, as HTML for a notebook."""
        arrays = {f"Tensor {self.shape} {self.dtype}": self.data}
        return tables(arrays if self.grad is None else arrays | {"gradient": self.grad})

    def item(self) -> float:
        """Return the value of a Tensor of one element as a Python number."""
        return self.data.item()

    def numpy(self) -> Array:
        """Return the values as a NumPy array, which on a CPU shares memory with the Tensor."""
        return npx.to_host(self.data)

    def __dlpack__(self, **options: Any) -> Any:
        """Return the values for another library, without a copy: `torch.from_dlpack(tensor)`.

        Values in a graph, and those of a leaf with `requires_grad`, are marked read-only; PyTorch ignores the mark.
        """
        is_needed = self.requires_grad or self.node is not None
        return (npx.read_only(self.data) if is_needed else self.data).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Return DLPack's (device_type, device_id)."""
        return self.data.__dlpack_device__()

    @classmethod
    def from_dlpack(cls, array: Any, requires_grad: bool = False) -> Self:
        """Return a Tensor that shares memory with an array of another library, such as a PyTorch tensor."""
        return cls(npx.from_dlpack(array), requires_grad)  # type: ignore[call-arg]

    # Arithmetic

    def __add__(self, other: Any) -> Self:
        """Return self + other."""
        return OPERATIONS["add"](self, other)

    def __radd__(self, other: Any) -> Self:
        """Return other + self."""
        return OPERATIONS["add"](other, self)

    def __sub__(self, other: Any) -> Self:
        """Return self - other."""
        return OPERATIONS["subtract"](self, other)

    def __rsub__(self, other: Any) -> Self:
        """Return other - self."""
        return OPERATIONS["subtract"](other, self)

    def __mul__(self, other: Any) -> Self:
        """Return self * other."""
        return OPERATIONS["multiply"](self, other)

    def __rmul__(self, other: Any) -> Self:
        """Return other * self."""
        return OPERATIONS["multiply"](other, self)

    def __truediv__(self, other: Any) -> Self:
        """Return self / other."""
        return OPERATIONS["divide"](self, other)

    def __rtruediv__(self, other: Any) -> Self:
        """Return other / self."""
        return OPERATIONS["divide"](other, self)

    def __matmul__(self, other: Any) -> Self:
        """Return self @ other."""
        return OPERATIONS["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Self:
        """Return other @ self."""
        return OPERATIONS["matmul"](other, self)

    def __pow__(self, exponent: float) -> Self:
        """Return self ** exponent for a Python number."""
        return OPERATIONS["power"](self, exponent)

    def __neg__(self) -> Self:
        """Return -self."""
        return OPERATIONS["negative"](self)

    # Comparisons

    def __eq__(self, other: Any) -> Any:
        """Return self == other as an array of bools."""
        return self.data == _values(other)

    def __ne__(self, other: Any) -> Any:
        """Return self != other as an array of bools."""
        return self.data != _values(other)

    def __lt__(self, other: Any) -> Array:
        """Return self < other as an array of bools."""
        return self.data < _values(other)

    def __le__(self, other: Any) -> Array:
        """Return self <= other as an array of bools."""
        return self.data <= _values(other)

    def __gt__(self, other: Any) -> Array:
        """Return self > other as an array of bools."""
        return self.data > _values(other)

    def __ge__(self, other: Any) -> Array:
        """Return self >= other as an array of bools."""
        return self.data >= _values(other)

    __hash__ = object.__hash__  # by identity, because __eq__ compares elements

    # Indexing, reductions and shapes

    def __getitem__(self, index: Any) -> Self:
        """Return x[index]; an element that is selected several times receives the sum of its gradients."""
        return OPERATIONS["getitem"](self, index)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the sum over `axis`: None for all axes, an int or a tuple of ints."""
        return OPERATIONS["sum"](self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the mean over `axis`: None for all axes, an int or a tuple of ints."""
        return OPERATIONS["mean"](self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the maximum over `axis`; tied elements share the gradient equally."""
        return OPERATIONS["max"](self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the minimum over `axis`; tied elements share the gradient equally."""
        return OPERATIONS["min"](self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> Self:
        """Return the same elements in another shape: `x.reshape(2, 3)` or `x.reshape((2, -1))`."""
        return OPERATIONS["reshape"](self, shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape)

    def transpose(self, *axes: Any) -> Self:
        """Permute the axes, as in `x.transpose(1, 0)` or `x.transpose((1, 0))`; `x.transpose()` reverses them."""
        return OPERATIONS["transpose"](
            self, axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes or None
        )

    def swapaxes(self, first: int, second: int) -> Self:
        """Exchange two axes."""
        return OPERATIONS["swapaxes"](self, first, second)

    def astype(self, dtype: Any) -> Self:
        """Convert to another floating dtype; the gradient is converted back."""
        return OPERATIONS["astype"](self, dtype)
