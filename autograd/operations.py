"""Small operations from which all others can be composed: arithmetic, shapes, reductions, matrix products.

Each function takes plain arrays and returns its output and a vjp; `differentiable` turns it into an operation on
Tensors. `g` is the gradient of the output. Operands are broadcast as in NumPy; the gradient of a broadcast operand is
summed over the broadcast axes (`unbroadcast`).
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import npx
from autograd.engine import Result, differentiable
from autograd.operation_checks import check_result
from npx import Array

Operand = Any  # an array, or a number that needs no gradient


def unbroadcast(g: Array, like: Operand) -> Any:
    """Sum g over the axes along which `like` was broadcast. Return None for a Python number, which has no gradient."""
    if not hasattr(like, "shape"):
        return None
    if g.shape == like.shape:
        return g
    g = npx.sum(g, axis=tuple(range(g.ndim - like.ndim)))  # axes that broadcasting prepended
    repeated_axes = tuple(i for i, n in enumerate(like.shape) if n == 1 and g.shape[i] != 1)
    return npx.sum(g, axis=repeated_axes, keepdims=True) if repeated_axes else g


# Arithmetic


def check_dtypes(function: Callable[[Operand, Operand], Result]) -> Callable[..., Result]:
    """Make a function raise TypeError if the dtype of its result differs from that of a floating operand."""

    @wraps(function)
    def checked(a: Operand, b: Operand) -> Result:
        y, vjp = function(a, b)
        if not (getattr(a, "dtype", None) is getattr(b, "dtype", None) is y.dtype):
            if type(a) is float or type(b) is float:
                y, vjp = _narrow(y, vjp, b if type(a) is float else a)
            check_result(function.__name__, y, a, b)
        return y, vjp

    return checked


def _narrow(y: Array, vjp: Any, x: Array) -> Result:
    """Convert the result of x and a Python float, and its gradients, to bfloat16 if x is; NumPy returns float32."""
    if x.dtype.kind != "V" or y.dtype == x.dtype:  # bfloat16 is the only dtype of this kind
        return y, vjp
    return y.astype(x.dtype), lambda g: tuple(gx if gx is None else gx.astype(x.dtype) for gx in vjp(g))


@differentiable
@check_dtypes
def add(a: Operand, b: Operand) -> Result:
    """Return a + b."""
    return a + b, lambda g: (unbroadcast(g, a), unbroadcast(g, b))


@differentiable
@check_dtypes
def subtract(a: Operand, b: Operand) -> Result:
    """Return a - b."""
    return a - b, lambda g: (unbroadcast(g, a), None if is_number(b) else unbroadcast(-g, b))


@differentiable
@check_dtypes
def multiply(a: Operand, b: Operand) -> Result:
    """Return a * b."""
    return a * b, lambda g: (
        None if is_number(a) else unbroadcast(g * b, a),
        None if is_number(b) else unbroadcast(g * a, b),
    )


@differentiable
@check_dtypes
def divide(a: Operand, b: Operand) -> Result:
    """Return y = a / b; dy/db = -y / b."""
    y = a / b
    return y, lambda g: (
        None if is_number(a) else unbroadcast(g / b, a),
        None if is_number(b) else unbroadcast(-g * y / b, b),
    )


def is_number(x: Any) -> bool:
    """Return whether x is a Python number: a constant that does not change a floating operand's dtype."""
    return isinstance(x, (int, float))


@differentiable
def negative(x: Array) -> Result:
    """Return -x."""
    return -x, lambda g: (-g,)


@differentiable
def power(x: Array, exponent: float) -> Result:
    """Return x ** exponent, where the exponent is a Python number."""
    if not is_number(exponent):
        kind = type(exponent).__name__
        raise TypeError(f"power: expected a Python number as the exponent; got {kind}; try exp(log(x) * exponent)")
    exponent = exponent if isinstance(exponent, int) else float(exponent)  # np.float64 would widen the result
    vjp = lambda g: (g * exponent * x ** (exponent - 1) if exponent else npx.zeros_like(g),)  # noqa: E731
    return _narrow(x**exponent, vjp, x)


@differentiable
def exp(x: Array) -> Result:
    """Return y = e^x; dy/dx = y."""
    y = npx.exp(x)
    return y, lambda g: (g * y,)


@differentiable
def log(x: Array) -> Result:
    """Return the natural logarithm of x."""
    return npx.log(x), lambda g: (g / x,)


@differentiable
def sqrt(x: Array) -> Result:
    """Return y = sqrt(x); dy/dx = 1 / (2 y)."""
    y = npx.sqrt(x)
    return y, lambda g: (g / (2 * y),)


@differentiable
def tanh(x: Array) -> Result:
    """Return y = tanh(x); dy/dx = 1 - y^2."""
    y = npx.tanh(x)
    return y, lambda g: (g * (1 - y * y),)


@differentiable
def sigmoid(x: Array) -> Result:
    """Return y = 1 / (1 + e^-x); dy/dx = y (1 - y)."""
    if x.dtype.kind in "iub":
        x = x.astype(npx.result_type(x, npx.float32))  # -x of an unsigned integer would wrap around
    y = npx.elementwise(logistic, x)
    return y, lambda g: (g * y * (1 - y),)


def logistic(x: Array) -> Array:
    """Compute 1 / (1 + e^-x). Where e^-x overflows to infinity, the result is 0, the correct limit."""
    with npx.host.errstate(over="ignore"):
        return 1 / (1 + npx.exp(-x))


@differentiable
def relu(x: Array) -> Result:
    """Return max(0, x); the gradient at 0 is 0."""
    return npx.maximum(x, 0), lambda g: (g * (x > 0),)


@differentiable
def absolute(x: Array) -> Result:
    """Return |x|; the gradient at 0 is 0."""
    return npx.absolute(x), lambda g: (g * npx.sign(x),)


@differentiable
@check_dtypes
def maximum(a: Operand, b: Operand) -> Result:
    """Return the elementwise maximum of a and b; equal elements share the gradient equally."""
    return npx.maximum(a, b), lambda g: _choice_grad(g, a, b, a > b)


@differentiable
@check_dtypes
def minimum(a: Operand, b: Operand) -> Result:
    """Return the elementwise minimum of a and b; equal elements share the gradient equally."""
    return npx.minimum(a, b), lambda g: _choice_grad(g, a, b, a < b)


def _choice_grad(g: Array, a: Operand, b: Operand, a_wins: Array) -> tuple[Array | None, ...]:
    """Return the gradients (ga, gb) of a choice between a and b.

    Where a == b, both gradients are g / 2. Elsewhere, the chosen operand gets g and the other one 0. `a_wins` is True
    where a is chosen.
    """
    ga = g * npx.where(a == b, 0.5, a_wins).astype(g.dtype)
    return unbroadcast(ga, a), unbroadcast(g - ga, b)


@differentiable
def where(condition: Array, a: Operand, b: Operand) -> Result:
    """Return a where `condition` (a bool array) is True, and b elsewhere."""
    y: Any = npx.where(condition, a, b)
    if float in (type(a), type(b)) and hasattr(x := b if type(a) is float else a, "dtype"):
        y, _ = _narrow(y, None, x)  # the vjp below already returns the dtype of g
    check_result("where", y, a, b)
    return y, lambda g: (
        None,
        unbroadcast(npx.where(condition, g, 0).astype(g.dtype, copy=False), a),
        unbroadcast(npx.where(condition, 0, g).astype(g.dtype, copy=False), b),
    )


# Matrix products


@differentiable
@check_dtypes
def matmul(a: Array, b: Array) -> Result:
    """Return a @ b for any ranks, as in NumPy: a 1-D operand is a row on the left and a column on the right."""

    def vjp(g: Array) -> tuple[Array | None, ...]:
        rows = a[None, :] if a.ndim == 1 else a
        columns = b[:, None] if b.ndim == 1 else b
        if b.ndim == 1:
            g = g[..., None]
        if a.ndim == 1:
            g = npx.expand_dims(g, -2)
        ga = unbroadcast(g @ columns.swapaxes(-1, -2), rows)
        gb = unbroadcast(rows.swapaxes(-1, -2) @ g, columns)
        return ga.reshape(a.shape), gb.reshape(b.shape)

    return a @ b, vjp


# Reductions


def _expand(g: Array, x: Array, axis: Any, keepdims: bool) -> Array:
    """Broadcast g, the gradient of a reduction of x, to the shape of x. The result is a view."""
    if axis is not None and not keepdims:
        g = npx.expand_dims(g, axis)
    return npx.broadcast_to(g, x.shape)


@differentiable
def sum(x: Array, axis: Any = None, keepdims: bool = False) -> Result:
    """Return the sum over `axis` (None, an int or a tuple of ints)."""
    return npx.sum(x, axis=axis, keepdims=keepdims), lambda g: (_expand(g, x, axis, keepdims),)


@differentiable
def mean(x: Array, axis: Any = None, keepdims: bool = False) -> Result:
    """Return the mean over `axis` (None, an int or a tuple of ints)."""
    y = npx.mean(x, axis=axis, keepdims=keepdims)
    fraction = y.size / (x.size or 1)
    return y, lambda g: (_expand((g * fraction).astype(g.dtype, copy=False), x, axis, keepdims),)


@differentiable
def max(x: Array, axis: Any = None, keepdims: bool = False) -> Result:
    """Return the maximum over `axis`; tied elements share the gradient equally."""
    y = npx.max(x, axis=axis, keepdims=keepdims)
    return y, lambda g: (_tie_grad(g, x, y, axis, keepdims),)


@differentiable
def min(x: Array, axis: Any = None, keepdims: bool = False) -> Result:
    """Return the minimum over `axis`; tied elements share the gradient equally."""
    y = npx.min(x, axis=axis, keepdims=keepdims)
    return y, lambda g: (_tie_grad(g, x, y, axis, keepdims),)


def _tie_grad(g: Array, x: Array, y: Array, axis: Any, keepdims: bool) -> Array:
    tied = x == _expand(y, x, axis, keepdims)
    fraction = tied / npx.sum(tied, axis=axis, keepdims=True)
    return _expand(g, x, axis, keepdims) * fraction.astype(g.dtype)


# Shapes


@differentiable
def reshape(x: Array, shape: Any) -> Result:
    """Change the shape; a length of -1 is inferred from the others."""
    return x.reshape(shape), lambda g: (g.reshape(x.shape),)


@differentiable
def transpose(x: Array, axes: Any = None) -> Result:
    """Permute the axes; None reverses them."""
    return npx.transpose(x, axes), lambda g: (
        npx.transpose(g, None if axes is None else sorted(range(x.ndim), key=lambda i: axes[i] % x.ndim)),
    )


@differentiable
def swapaxes(x: Array, first: int, second: int) -> Result:
    """Exchange two axes."""
    return npx.swapaxes(x, first, second), lambda g: (npx.swapaxes(g, first, second),)


@differentiable
def broadcast_to(x: Array, shape: Any) -> Result:
    """Repeat x along new axes and axes of length 1."""
    return npx.broadcast_to(x, shape), lambda g: (unbroadcast(g, x),)


@differentiable
def getitem(x: Array, index: Any) -> Result:
    """Return x[index]; an element selected several times receives the sum of its gradients."""

    def vjp(g: Array) -> tuple[Array | None, ...]:
        sum_dtype = npx.accumulation_dtype(x.dtype)
        gx = npx.zeros(x.shape, sum_dtype)
        npx.add_at(gx, index, g.astype(sum_dtype, copy=False))
        return (gx.astype(x.dtype, copy=False),)

    return x[index], vjp


@differentiable
def concatenate(*arrays: Array, axis: int = 0) -> Result:
    """Join arrays along an existing axis."""
    ends = [0]
    for a in arrays:
        ends.append(ends[-1] + a.shape[axis])

    def vjp(g: Array) -> tuple[Array | None, ...]:
        axis_first = npx.moveaxis(g, axis, 0)
        return tuple(npx.moveaxis(axis_first[i:j], 0, axis) for i, j in zip(ends, ends[1:], strict=False))

    y = npx.concatenate(arrays, axis=axis)
    check_result("concatenate", y, *arrays)
    return y, vjp


@differentiable
def stack(*arrays: Array, axis: int = 0) -> Result:
    """Join arrays of the same shape along a new axis."""
    y = npx.stack(arrays, axis=axis)
    check_result("stack", y, *arrays)
    return y, lambda g: tuple(npx.moveaxis(g, axis, 0))


@differentiable
def astype(x: Array, dtype: Any) -> Result:
    """Convert to another floating dtype; the gradient is converted back. Raises TypeError if it would be lost."""
    y = x.astype(dtype)
    if y.dtype.kind in "iub" and x.dtype.kind not in "iub":
        raise TypeError(f"astype: expected a floating dtype; got {y.dtype}; try x.data.astype('{y.dtype}')")
    return y, lambda g: (g.astype(x.dtype),)
