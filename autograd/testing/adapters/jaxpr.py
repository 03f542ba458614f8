"""Evaluate a jaxpr, the program that JAX traces from a function, in NumPy.

JAX compiles every operation for each new shape, and that takes longer than a full check. Tracing takes milliseconds,
and most of the resulting primitives are one NumPy call each. JAX evaluates the primitives that are not listed here.
"""

import math
from collections.abc import Callable
from typing import Any

import npx

np = npx.host
Function = Callable[..., Any]

# Each of these functions implements a JAX primitive, with its arguments and parameters; see `PRIMITIVES` below.


def divide(a: Any, b: Any) -> Any:
    """Return a / b; integer quotients are truncated toward 0."""
    if a.dtype.kind in "fc" or a.dtype.name == "bfloat16":
        return np.divide(a, b)
    return (np.sign(a) * np.sign(b) * (abs(a) // np.maximum(abs(b), 1))).astype(a.dtype)


def logistic(x: Any, **params: Any) -> Any:
    positive = 1 / (1 + np.exp(-abs(x)))
    return np.where(x >= 0, positive, 1 - positive).astype(x.dtype)


def integer_pow(x: Any, y: int, **params: Any) -> Any:
    return np.power(x, y) if y >= 0 else 1 / np.power(x, -y)


def round_(x: Any, rounding_method: Any) -> Any:
    if getattr(rounding_method, "name", "") == "TO_NEAREST_EVEN":
        return np.rint(x)
    return (np.trunc(x + np.copysign(0.5, x))).astype(x.dtype)


def select_n(which: Any, *cases: Any) -> Any:
    if which.dtype == bool:
        return np.where(which, cases[1], cases[0])
    return np.choose(which, cases)


def broadcast_in_dim(x: Any, *dynamic: Any, shape: Any, broadcast_dimensions: Any, **params: Any) -> Any:
    lengths = [1] * len(shape)
    for axis, length in zip(broadcast_dimensions, x.shape, strict=True):
        lengths[axis] = length
    return np.broadcast_to(x.reshape(lengths), shape)


def reshape(x: Any, *dynamic: Any, new_sizes: Any, dimensions: Any, **params: Any) -> Any:
    return (x if dimensions is None else x.transpose(dimensions)).reshape(new_sizes)


def dot_general(a: Any, b: Any, dimension_numbers: Any, preferred_element_type: Any = None, **params: Any) -> Any:
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    free_a = [k for k in range(a.ndim) if k not in contract_a and k not in batch_a]
    free_b = [k for k in range(b.ndim) if k not in contract_b and k not in batch_b]
    batch = [a.shape[k] for k in batch_a]
    rows = [a.shape[k] for k in free_a]
    columns = [b.shape[k] for k in free_b]
    inner = [a.shape[k] for k in contract_a]
    size = int(np.prod(inner))
    left = a.transpose([*batch_a, *free_a, *contract_a]).reshape([*batch, int(np.prod(rows)), size])
    right = b.transpose([*batch_b, *contract_b, *free_b]).reshape([*batch, size, int(np.prod(columns))])
    dtype = preferred_element_type or a.dtype
    y = np.matmul(left.astype(dtype), right.astype(dtype)).astype(dtype, copy=False)  # JAX may ask for float32
    return y.reshape([*batch, *rows, *columns])


def pad(x: Any, value: Any, padding_config: Any) -> Any:
    shape = [
        low + high + n + max(n - 1, 0) * inner for n, (low, high, inner) in zip(x.shape, padding_config, strict=True)
    ]
    wide = [n + max(-low, 0) + max(-high, 0) for n, (low, high, _) in zip(shape, padding_config, strict=True)]
    y = np.full(wide, value, x.dtype)
    y[
        tuple(
            slice(max(low, 0), max(low, 0) + max(n - 1, 0) * (inner + 1) + 1 if n else max(low, 0), inner + 1)
            for n, (low, _, inner) in zip(x.shape, padding_config, strict=True)
        )
    ] = x
    return y[tuple(slice(max(-low, 0), max(-low, 0) + n) for n, (low, _, _) in zip(shape, padding_config, strict=True))]


def slice_(x: Any, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    steps = strides or [1] * x.ndim
    return x[tuple(slice(*parts) for parts in zip(start_indices, limit_indices, steps, strict=True))]


def clamp_slices(starts: Any, shape: Any, sizes: Any) -> tuple[slice, ...]:
    """Return slices that begin at `starts`, shifted to lie inside the array."""
    begins = [min(max(int(s), 0), n - size) for s, n, size in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(s, s + size) for s, size in zip(begins, sizes, strict=True))


def dynamic_slice(x: Any, *starts: Any, slice_sizes: Any) -> Any:
    return x[clamp_slices(starts, x.shape, slice_sizes)]


def dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    y = x.copy()
    y[clamp_slices(starts, x.shape, update.shape)] = update
    return y


def reduction(function: Function) -> Function:
    def reduced(x: Any, axes: Any, **params: Any) -> Any:
        return function(x, axis=tuple(axes)).astype(x.dtype)

    return reduced


def arg(function: Function) -> Function:
    def index(x: Any, axes: Any, index_dtype: Any) -> Any:
        return function(x, axis=axes[0]).astype(index_dtype)

    return index


def cumulative(function: Function) -> Function:
    def accumulated(x: Any, axis: int, reverse: bool) -> Any:
        ordered = np.flip(x, axis) if reverse else x
        y = function.accumulate(ordered, axis=axis, dtype=x.dtype)  # type: ignore[attr-defined]
        return np.flip(y, axis) if reverse else y

    return accumulated


def iota(dtype: Any, shape: Any, dimension: int, **params: Any) -> Any:
    lengths = [n if k == dimension else 1 for k, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(lengths), shape)


def windows(shape: Any, indices: Any, numbers: Any, sizes: Any) -> tuple[Any, Any, list[int]]:
    """Return index arrays for the windows of a gather or scatter, a mask, and the shape to which these broadcast.

    The mask is True for elements inside the array. The axes are the batch axes of `indices` followed by the window
    axes, as in XLA's definition of Gather.

    Args:
        sizes: the window's length along each axis of the operand.
    """
    indexed, operand_batch, index_batch = numbers
    batch = indices.shape[:-1]
    n_batch = len(batch)
    grid = []
    valid = np.ones(batch, dtype=bool)
    for axis, size in enumerate(sizes):
        if size > shape[axis]:
            raise IndexError("a window is larger than the array")
        start = np.zeros(batch, dtype="int64")
        if axis in indexed:
            start = indices[..., indexed.index(axis)].astype("int64")
            valid = valid & (start >= 0) & (start <= shape[axis] - size)
            start = np.clip(start, 0, shape[axis] - size)
        elif axis in operand_batch:
            k = index_batch[operand_batch.index(axis)]
            start = np.broadcast_to(np.arange(batch[k]).reshape([-1 if i == k else 1 for i in range(n_batch)]), batch)
        lengths = [size if k == axis else 1 for k in range(len(sizes))]
        grid.append(start.reshape([*batch, *[1] * len(sizes)]) + np.arange(size).reshape(lengths))
    return tuple(grid), valid.reshape([*batch, *[1] * len(sizes)]), [*batch, *sizes]


def require_promised(valid: Any, mode: Any) -> None:
    """Raise IndexError for indices outside the array, if JAX leaves the result undefined."""
    if "PROMISE" in str(mode) and not valid.all():
        raise IndexError("indices outside the array")


def gather(
    x: Any, indices: Any, dimension_numbers: Any, slice_sizes: Any, mode: Any, fill_value: Any, **params: Any
) -> Any:
    d = dimension_numbers
    numbers = ([*d.start_index_map], [*d.operand_batching_dims], [*d.start_indices_batching_dims])
    grid, valid, shape = windows(x.shape, indices, numbers, slice_sizes)
    y = np.broadcast_to(x[grid], shape)
    require_promised(valid, mode)
    if "FILL" in str(mode):
        missing = fill_value if fill_value is not None else np.nan if x.dtype.kind == "f" else 0
        y = np.where(valid, y, np.asarray(missing).astype(x.dtype))
    n_batch = indices.ndim - 1
    dropped = {n_batch + axis for axis in (*d.collapsed_slice_dims, *d.operand_batching_dims)}
    y = y.reshape([n for k, n in enumerate(shape) if k not in dropped])
    return np.moveaxis(y, range(n_batch, y.ndim), d.offset_dims)


def scatter(store: Function) -> Function:
    """Return a scatter primitive that applies its updates with `store(y, index, updates)`."""

    def scattered(x: Any, indices: Any, updates: Any, dimension_numbers: Any, mode: Any, **params: Any) -> Any:
        d = dimension_numbers
        numbers = ([*d.scatter_dims_to_operand_dims], [*d.operand_batching_dims], [*d.scatter_indices_batching_dims])
        window_axes = [k for k in range(x.ndim) if k not in (*d.inserted_window_dims, *d.operand_batching_dims)]
        sizes = [1] * x.ndim
        for axis, k in zip(window_axes, d.update_window_dims, strict=True):
            sizes[axis] = updates.shape[k]
        grid, valid, shape = windows(x.shape, indices, numbers, sizes)
        y = x.copy()
        n_batch = indices.ndim - 1
        u = np.moveaxis(updates, d.update_window_dims, range(n_batch, updates.ndim)).reshape(shape)
        require_promised(valid, mode)
        valid = np.broadcast_to(valid | ("CLIP" in str(mode)), shape)
        index = tuple(np.broadcast_to(part, shape)[valid] for part in grid)
        store(y, index, u[valid])
        return y

    return scattered


def convert_element_type(x: Any, new_dtype: Any, **params: Any) -> Any:
    return x.astype(new_dtype)


PRIMITIVES: dict[str, Function] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": divide, "neg": np.negative,
    "exp2": np.exp2, "expm1": np.expm1, "log1p": np.log1p, "square": np.square, "abs": np.abs, "sign": np.sign,
    "floor": np.floor, "ceil": np.ceil, "max": np.maximum, "min": np.minimum, "pow": np.power, "rem": np.fmod,
    "atan2": np.arctan2, "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
    "is_finite": np.isfinite, "integer_pow": integer_pow, "logistic": logistic, "round": round_,
    "select_n": select_n, "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "rsqrt": lambda x, **params: (1 / np.sqrt(x)).astype(x.dtype),
    "copy": np.copy, "copy_p": np.copy, "stop_gradient": lambda x, **params: x, "real": np.real,
    "convert_element_type": convert_element_type, "broadcast_in_dim": broadcast_in_dim, "reshape": reshape,
    "squeeze": lambda x, dimensions: np.squeeze(x, tuple(dimensions)),
    "expand_dims": lambda x, dimensions: np.expand_dims(x, tuple(dimensions)),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "rev": lambda x, dimensions: np.flip(x, tuple(dimensions)),
    "concatenate": lambda *parts, dimension: np.concatenate(parts, axis=dimension),
    "split": lambda x, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis=axis),
    "pad": pad, "slice": slice_, "dynamic_slice": dynamic_slice, "dynamic_update_slice": dynamic_update_slice,
    "reduce_sum": reduction(np.sum), "reduce_prod": reduction(np.prod), "reduce_max": reduction(np.max),
    "reduce_min": reduction(np.min), "reduce_and": reduction(np.all), "reduce_or": reduction(np.any),
    "argmax": arg(np.argmax), "argmin": arg(np.argmin), "cumsum": cumulative(np.add),
    "cumprod": cumulative(np.multiply), "cummax": cumulative(np.maximum), "cummin": cumulative(np.minimum),
    "iota": iota, "dot_general": dot_general, "gather": gather, "scatter-add": scatter(np.add.at),
    "scatter_add": scatter(np.add.at), "scatter-mul": scatter(np.multiply.at), "scatter_mul": scatter(np.multiply.at),
    "scatter": scatter(lambda y, index, updates: y.__setitem__(index, updates)),
    "optimization_barrier": lambda *parts: [*parts],
}  # fmt: skip
for _name in ("exp", "log", "sqrt", "cbrt", "sin", "cos", "tan", "sinh", "cosh", "tanh"):
    PRIMITIVES[_name] = getattr(np, _name)
for _name in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
    PRIMITIVES[_name] = getattr(np, f"arc{_name[1:]}")
for _name, _ufunc in PRIMITIVES.items():
    if isinstance(_ufunc, np.ufunc):
        PRIMITIVES[_name] = lambda *parts, _ufunc=_ufunc, **params: _ufunc(*parts)  # params: hints to the compiler


def evaluate(closed: Any, arguments: list[Any]) -> list[Any]:
    """Return the outputs of a ClosedJaxpr for NumPy arrays."""
    jaxpr = closed.jaxpr
    values: dict[Any, Any] = {}

    def read(variable: Any) -> Any:
        if hasattr(variable, "val"):  # a literal
            return np.asarray(variable.val, dtype=variable.aval.dtype)
        return values[variable]

    values.update(zip(jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
    for variable, x in zip(jaxpr.invars, arguments, strict=True):
        values[variable] = np.asarray(x, dtype=variable.aval.dtype)
    for equation in jaxpr.eqns:
        results = apply(equation.primitive, [read(v) for v in equation.invars], equation.params)
        values.update(zip(equation.outvars, map(np.asarray, results), strict=True))
    return [read(v) for v in jaxpr.outvars]


def cost(closed: Any) -> tuple[int, int]:
    """Return the numbers of operations in a program and of values that they compute; a loop or branch counts once."""
    equations = closed.jaxpr.eqns
    return len(equations), sum(math.prod(v.aval.shape) for equation in equations for v in equation.outvars)


def apply(primitive: Any, inputs: list[Any], params: dict[str, Any]) -> list[Any]:
    """Return the results of one primitive."""
    name = primitive.name
    if name in PRIMITIVES:
        results = PRIMITIVES[name](*inputs, **params)
        return results if isinstance(results, list) else [results]
    if name == "while":
        return loop(inputs, **params)
    if name == "scan":
        return scan(inputs, **params)
    if name == "cond":
        branch = params["branches"][min(max(int(inputs[0]), 0), len(params["branches"]) - 1)]
        return evaluate(branch, inputs[1:])
    inner = params.get("jaxpr") or params.get("call_jaxpr")  # jit, checkpoint, custom_jvp, custom_vjp
    if inner is not None and not primitive.name.startswith(("pmap", "shard_map", "pallas")):
        return evaluate(inner if hasattr(inner, "consts") else Closed(inner), inputs)
    results = primitive.bind(*inputs, **params)
    return [*results] if primitive.multiple_results else [results]


class Closed:
    """A jaxpr without constants."""

    consts: tuple[Any, ...] = ()

    def __init__(self, jaxpr: Any) -> None:
        self.jaxpr = jaxpr


def loop(inputs: list[Any], cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any) -> list[Any]:
    condition = inputs[:cond_nconsts]
    body = inputs[cond_nconsts : cond_nconsts + body_nconsts]
    state = inputs[cond_nconsts + body_nconsts :]
    while True:
        running = evaluate(cond_jaxpr, [*condition, *state])[0]  # an array with the batch axes under vmap
        if not running.any():
            return state
        n_batch = running.ndim
        pairs = zip(evaluate(body_jaxpr, [*body, *state]), state, strict=True)
        state = [np.where(running.reshape(running.shape + (1,) * (y.ndim - n_batch)), y, x) for y, x in pairs]


def scan(
    inputs: list[Any], jaxpr: Any, length: int, reverse: bool, num_consts: int, num_carry: int, **params: Any
) -> list[Any]:
    constants = inputs[:num_consts]
    carry = inputs[num_consts : num_consts + num_carry]
    sequences = inputs[num_consts + num_carry :]
    rows = []
    for t in reversed(range(length)) if reverse else range(length):
        results = evaluate(jaxpr, [*constants, *carry, *(x[t] for x in sequences)])
        carry = results[:num_carry]
        rows.append(results[num_carry:])
    rows = rows[::-1] if reverse else rows
    if not rows:
        stacked = [np.zeros((0, *v.aval.shape), v.aval.dtype) for v in jaxpr.jaxpr.outvars[num_carry:]]
    else:
        stacked = [np.stack(column) for column in zip(*rows, strict=True)]
    return [*carry, *stacked]
