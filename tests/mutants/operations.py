"""Bugs in the elementary operations (autograd/operations.py)."""

import npx
from autograd.operations import _expand, unbroadcast
from tests.mutants.base import operation, raw, rounded, scale_in_place, scatter_overwriting, vjp, with_extra_array_saved

# Arithmetic

operation("add", "sum over broadcast axes missing", "arithmetic", lambda a, b: (a + b, lambda g: (g, g)))
operation(
    "multiply", "sum over one broadcast axis only", "arithmetic",
    lambda a, b: (a * b, lambda g: (
        unbroadcast(g * b, a) if hasattr(a, "shape") else None,
        g * a if getattr(b, "shape", ()) == g.shape else (g * a).sum(axis=0) if hasattr(b, "shape") else None,
    )), "special value")  # fmt: skip
vjp("subtract", "sign of the second gradient missing", "arithmetic", lambda r, g, y, a, b: (r(g)[0], unbroadcast(g, b)))
vjp("multiply", "gradients swapped between inputs", "arithmetic", lambda r, g, y, a, b: r(g)[::-1])
vjp("tanh", "incoming gradient overwritten", "functions", lambda r, g, y, x: (scale_in_place(g, 1 - y * y),), "state")
vjp(
    "divide",
    "denominator not squared",
    "arithmetic",
    lambda r, g, y, a, b: (r(g)[0], None if isinstance(b, (int, float)) else unbroadcast(-g * a / b, b)),
)
vjp("divide", "gradient of the denominator missing", "arithmetic", lambda r, g, y, a, b: (r(g)[0], None))
vjp("negative", "wrong sign", "arithmetic", lambda r, g, y, x: (g,))
vjp("power", "exponent not lowered", "arithmetic", lambda r, g, y, x, n: (g * n * x**n,))
operation(
    "negative", "input overwritten", "arithmetic", lambda x: (npx.multiply(x, -1, out=x), lambda g: (-g,)), "state"
)
vjp("add", "extra factor of two", "arithmetic", lambda r, g, y, a, b: tuple(None if x is None else 2 * x for x in r(g)))

# Elementwise functions

vjp("exp", "factor e^x missing", "functions", lambda r, g, y, x: (g,))
vjp("log", "multiplied instead of divided", "functions", lambda r, g, y, x: (g * x,))
vjp("sqrt", "factor 1/2 missing", "functions", lambda r, g, y, x: (g / y,))
vjp("tanh", "1 - y instead of 1 - y^2", "functions", lambda r, g, y, x: (g * (1 - y),))
vjp("sigmoid", "factor y missing", "functions", lambda r, g, y, x: (g * (1 - y),))
vjp("sigmoid", "second order in g", "functions", lambda r, g, y, x: (r(g)[0] * (1 + 1e-7 * g),), "incoming gradient")
vjp("relu", "mask inverted", "functions", lambda r, g, y, x: (g * (x <= 0),))
vjp("relu", "gradient cast to float32", "functions", lambda r, g, y, x: ((g * (x > 0)).astype("float32"),), "dtype")
vjp("tanh", "intermediate rounded to float32", "functions", lambda r, g, y, x: (rounded(r(g)[0]),), "dtype")
operation(
    "exp",
    "output always float32",
    "functions",
    lambda x: (npx.exp(x).astype("float32"), lambda g: (g.astype(x.dtype) * npx.exp(x),)),
    "dtype",
)
vjp("absolute", "sign missing", "functions", lambda r, g, y, x: (g,))
vjp(
    "maximum",
    "ties counted for both inputs",
    "functions",
    lambda r, g, y, a, b: (
        unbroadcast(g * (a >= b), a) if hasattr(a, "shape") else None,
        unbroadcast(g * (b >= a), b) if hasattr(b, "shape") else None,
    ),
    "special value",
)
vjp(
    "where",
    "condition swapped",
    "functions",
    lambda r, g, y, m, a, b: (None, unbroadcast(npx.where(m, 0, g), a), unbroadcast(npx.where(m, g, 0), b)),
)
vjp(
    "exp",
    "correct for contiguous input only",
    "functions",
    lambda r, g, y, x: (g * npx.exp(npx.asarray(x).view() if x.flags.c_contiguous else npx.sort(x, axis=-1)),),
    "special value",
)
operation(
    "tanh",
    "large array saved unnecessarily",
    "functions",
    lambda x: with_extra_array_saved(npx.tanh(x), npx.zeros(100), lambda g, y: g * (1 - y * y)),
    "state",
)

# Matmul

vjp(
    "matmul",
    "factor not transposed",
    "matmul",
    lambda r, g, y, a, b: (g @ b, r(g)[1]) if y.shape == a.shape == b.shape and a.ndim == 2 else r(g),
)
vjp(
    "matmul",
    "factors swapped",
    "matmul",
    lambda r, g, y, a, b: (r(g)[1].T.reshape(a.shape), r(g)[0].T.reshape(b.shape)) if a.size == b.size else r(g),
)
vjp(
    "matmul",
    "second gradient transposed",
    "matmul",
    lambda r, g, y, a, b: (r(g)[0], r(g)[1].swapaxes(-1, -2) if b.ndim > 1 and b.shape[-1] == b.shape[-2] else r(g)[1]),
)
vjp(
    "matmul",
    "first gradient zero for vectors",
    "matmul",
    lambda r, g, y, a, b: (npx.zeros_like(a) if a.ndim == 1 else r(g)[0], r(g)[1]),
)

# Reductions

operation(
    "sum",
    "expanded along the wrong axis",
    "reductions",
    lambda x, axis=None, keepdims=False: (
        npx.sum(x, axis=axis, keepdims=keepdims),
        lambda g: (
            npx.transpose(_expand(g, x, axis, keepdims))
            if x.ndim == 2 and x.shape[0] == x.shape[1]
            else _expand(g, x, axis, keepdims),
        ),
    ),
)
vjp(
    "sum",
    "gradient of the first entry only",
    "reductions",
    lambda r, g, y, x, **options: (r(g)[0] * (npx.arange(x.size).reshape(x.shape) == 0),),
)
vjp(
    "mean",
    "not divided by the count",
    "reductions",
    lambda r, g, y, x, axis, keepdims: (_expand(g, x, axis, keepdims),),
)
vjp(
    "max",
    "ties counted repeatedly",
    "reductions",
    lambda r, g, y, x, axis, keepdims: (_expand(g, x, axis, keepdims) * (x == _expand(y, x, axis, keepdims)),),
    "special value",
)
vjp(
    "min",
    "gradient of the maximum",
    "reductions",
    lambda r, g, y, x, axis, keepdims: (_expand(g, x, axis, keepdims) * (x == npx.max(x, axis=axis, keepdims=True)),),
)

# Shapes

vjp("reshape", "entries in reversed order", "shapes", lambda r, g, y, x, shape: (g.reshape(-1)[::-1].reshape(x.shape),))
vjp(
    "transpose",
    "permutation not inverted",
    "shapes",
    lambda r, g, y, x, axes: (npx.transpose(g, axes).reshape(x.shape),),
)
vjp("swapaxes", "not swapped back", "shapes", lambda r, g, y, x, i, j: (g.reshape(x.shape),))
vjp(
    "broadcast_to",
    "one copy instead of the sum of all",
    "shapes",
    lambda r, g, y, x, shape: (r(g)[0] / max(1, g.size // max(1, x.size)),),
)
operation(
    "getitem",
    "repeats overwritten instead of summed",
    "shapes",
    lambda x, index: (x[index], lambda g: (scatter_overwriting(x.shape, index, g),)),
    "special value",
)
vjp(
    "concatenate",
    "parts swapped",
    "shapes",
    lambda r, g, y, *a, axis: r(g) if len({x.shape for x in a}) > 1 else r(g)[::-1],
)
vjp("stack", "every part gets the first", "shapes", lambda r, g, y, *a, axis: (r(g)[0],) * len(a))

# Wrong on part of the domain


def derivative(name, bug, change, kind="domain"):
    """Register an elementwise function with the wrong derivative change(*inputs)."""
    vjp(name, bug, "functions", lambda r, g, y, *inputs: (g * change(*inputs),), kind)


def power_derivative(bug, change, kind="domain"):
    """Register x^n with the wrong derivative change(x, n) for n != 0."""
    derivative("power", bug, lambda x, n: change(x, n) if n else npx.zeros_like(x), kind)


power_derivative("sign of negative bases missing", lambda x, n: n * abs(x) ** (n - 1))
power_derivative("exponents clamped to 3", lambda x, n: min(n, 3) * x ** (min(n, 3) - 1))
power_derivative("bases clamped away from 0 by 0.05", lambda x, n: n * npx.where(abs(x) < 0.05, 0.05, x) ** (n - 1))
power_derivative(
    "computed from the logarithm of the base", lambda x, n: n * npx.exp((n - 1) * npx.log(x)), "not finite"
)
derivative("power", "0 / 0 for exponent 0 at 0", lambda x, n: n * x ** (n - 1.0), "not finite")
derivative("log", "denominator clamped to 0.05", lambda x: 1 / npx.maximum(x, 0.05))
derivative("log", "x clamped to 1e4", lambda x: 1 / npx.minimum(x, 1e4))
derivative("log", "1e-8 added to x", lambda x: 1 / (x + 1e-8))
derivative("sqrt", "denominator clamped to 0.05", lambda x: 0.5 / npx.maximum(npx.sqrt(x), 0.05))
derivative("exp", "gradient clamped to at most e^5", lambda x: npx.exp(npx.minimum(x, 5)))
derivative("exp", "gradient clamped to at least e^-5", lambda x: npx.exp(npx.maximum(x, -5)))
derivative("exp", "overflows at half the range", lambda x: npx.exp(2 * x) / npx.exp(x), "not finite")
derivative("tanh", "gradient clamped to at least 1e-3", lambda x: npx.maximum(1 - npx.tanh(x) ** 2, 1e-3))
derivative(
    "tanh",
    "computed from e^2x, which overflows",
    lambda x: 4 * npx.exp(2 * x) / (npx.exp(2 * x) + 1) ** 2,
    "not finite",
)
derivative(
    "sigmoid", "computed from e^-x, which overflows", lambda x: npx.exp(-x) / (1 + npx.exp(-x)) ** 2, "not finite"
)
derivative("relu", "threshold 1e-3 instead of 0", lambda x: x > 1e-3)
derivative("relu", "0 / 0 at 0", lambda x: 0.5 + 0.5 * x / abs(x), "not finite")
derivative("absolute", "smoothed near 0", lambda x: npx.tanh(1e3 * x))
derivative("absolute", "0 / 0 at 0", lambda x: x / abs(x), "not finite")
vjp(
    "divide",
    "sign of the denominator missing",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g / abs(b), a), r(g)[1]),
    "domain",
)
vjp(
    "divide",
    "denominators clamped away from 0 by 0.02",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g / npx.where(abs(b) < 0.02, 0.02 * npx.sign(b), b), a), r(g)[1]),
    "domain",
)
vjp(
    "divide",
    "denominators clamped to 500",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g / npx.clip(b, -500, 500), a), r(g)[1]),
    "domain",
)
vjp(
    "multiply",
    "gradient clamped to 1000",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g * npx.clip(b, -1e3, 1e3), a), r(g)[1]),
    "domain",
)


def split(fraction):
    """Return a vjp of `maximum` that gives the fraction fraction(a, b) of g to a, the rest to b."""

    def change(r, g, y, a, b):
        to_a = g * fraction(a, b)
        return unbroadcast(to_a, a), unbroadcast(g - to_a, b)

    return change


vjp(
    "maximum",
    "values within 1e-3 count as tied",
    "functions",
    split(lambda a, b: npx.where(abs(a - b) < 1e-3, 0.5, a > b)),
    "domain",
)
vjp("maximum", "0 / 0 at a tie", "functions", split(lambda a, b: 0.5 + 0.5 * (a - b) / abs(a - b)), "not finite")


def tie_gradient(r, g, y, x, axis=None, keepdims=False, near=0.0):
    """Return gx, the mask of the entries within `near` of the extremum y, and their number, for max or min."""
    mask = (abs(x - _expand(y, x, axis, keepdims)) <= near).astype(g.dtype)
    return _expand(g, x, axis, keepdims) * mask, mask, npx.sum(mask, axis=axis, keepdims=True)


def near_tie(*args, **options):
    gx, _, count = tie_gradient(*args, **options, near=1e-3)
    return (gx / count,)


def tie_of_the_last_axis(*args, axis=None, keepdims=False):
    gx, mask, count = tie_gradient(*args, axis=axis, keepdims=keepdims)
    return (gx / (npx.sum(mask, axis=axis[-1], keepdims=True) if isinstance(axis, tuple) and axis else count),)


def infinite_tie(*args, **options):
    gx, _, count = tie_gradient(*args, **options)
    return (gx / (count == 1),)


vjp("max", "values within 1e-3 count as tied", "reductions", near_tie, "domain")
vjp("max", "divided by the ties of the last axis only", "reductions", tie_of_the_last_axis, "special value")
vjp("min", "infinite at a tie", "reductions", infinite_tie, "not finite")

# Non-finite values


def with_entry(gx, index, value):
    """Return gx with `value` at a flat index, modulo its size."""
    return npx.where(npx.arange(gx.size).reshape(gx.shape) == index % max(1, gx.size), value, gx).astype(gx.dtype)


vjp(
    "exp",
    "one entry infinite, all others wrong",
    "functions",
    lambda r, g, y, x: (with_entry(g, 0, npx.inf),),
    "not finite",
)
vjp(
    "mean",
    "last entry NaN",
    "reductions",
    lambda r, g, y, x, **options: (with_entry(r(g)[0], -1, npx.nan),),
    "not finite",
)

# The incoming gradient

vjp(
    "sigmoid",
    "incoming gradient clipped at 100",
    "functions",
    lambda r, g, y, x: r(npx.clip(g, -100, 100)),
    "incoming gradient",
)
vjp(
    "relu",
    "incoming gradient below 1e-5 flushed to 0",
    "functions",
    lambda r, g, y, x: r(npx.where(abs(g) < 1e-5, 0, g)),
    "incoming gradient",
)
vjp(
    "tanh",
    "divided by the incoming gradient",
    "functions",
    lambda r, g, y, x: (g * g * (1 - y * y) / g,),
    "incoming gradient",
)
vjp(
    "tanh",
    "incoming gradient of ones passed through",
    "functions",
    lambda r, g, y, x: (g,) if (g == 1).all() else r(g),
    "incoming gradient",
)
vjp(
    "multiply",
    "incoming gradient read in memory order",
    "arithmetic",
    lambda r, g, y, a, b: r(g.ravel("K").reshape(g.shape)),
    "incoming gradient",
)
vjp(
    "reshape",
    "incoming gradient read in memory order",
    "shapes",
    lambda r, g, y, x, shape: (g.ravel("K").reshape(x.shape),),
    "incoming gradient",
)
vjp(
    "log",
    "writeable incoming gradient overwritten",
    "functions",
    lambda r, g, y, x: (npx.divide(g, x, out=g) if g.flags.writeable else g / x,),
    "incoming gradient",
)
vjp(
    "matmul",
    "a small constant added",
    "matmul",
    lambda r, g, y, a, b: tuple(gx + 1e-8 for gx in r(g)),
    "incoming gradient",
)
vjp(
    "sum",
    "incoming gradient divided by its norm",
    "reductions",
    lambda r, g, y, x, **options: r(g / (n := npx.sqrt(npx.sum(g * g))) * n),
    "incoming gradient",
)
vjp(
    "absolute",
    "incoming gradient squared above 1000",
    "functions",
    lambda r, g, y, x: r(npx.where(abs(g) > 1e3, g * abs(g), g)),
    "incoming gradient",
)

# dtype

vjp("sigmoid", "derivative stored in float32", "functions", lambda r, g, y, x: (g * rounded(y * (1 - y)),), "dtype")
vjp(
    "exp",
    "derivative stored in float16 for float32",
    "functions",
    lambda r, g, y, x: (g * (rounded(y, "float16") if y.dtype == npx.float32 else y),),
    "dtype",
)
vjp("power", "incoming gradient rounded to float32", "functions", lambda r, g, y, x, n: r(rounded(g)), "dtype")
vjp("astype", "gradient in the output's dtype", "functions", lambda r, g, y, x, dtype: (g,), "dtype")
vjp(
    "astype",
    "gradient rounded to float16",
    "functions",
    lambda r, g, y, x, dtype: (g.astype("float16").astype(x.dtype),),
    "dtype",
)
vjp("mean", "gradient in float64", "reductions", lambda r, g, y, x, **options: (r(g)[0].astype("float64"),), "dtype")


def narrowed(name, family, dtype, inside):
    """Register an operation that computes its output for `dtype` in the narrower dtype `inside`."""
    right = raw(name)

    def function(*arrays, **options):
        y, vjp = right(*arrays, **options)
        if y.dtype == dtype:
            y = right(*(x.astype(inside) for x in arrays), **options)[0].astype(dtype)
        return y, vjp

    operation(name, f"computed in {inside} for {dtype}", family, function, "dtype")


narrowed("matmul", "matmul", "float32", "float16")
narrowed("sum", "reductions", "float32", "float16")
narrowed("matmul", "matmul", "float64", "float32")
narrowed("tanh", "functions", "float64", "float32")
narrowed("log", "functions", "float64", "float32")
narrowed("mean", "reductions", "float64", "float32")
MULTIPLY = raw("multiply")
operation(
    "multiply",
    "half of the gradient missing if both inputs are one array",
    "arithmetic",
    lambda a, b: (
        MULTIPLY(a, b)[0],
        lambda g: (MULTIPLY(a, b)[1](g)[0], npx.zeros_like(b) if a is b else MULTIPLY(a, b)[1](g)[1]),
    ),
    "special value",
)
operation(
    "multiply",
    "Python scalar promotes float32 to float64",
    "arithmetic",
    lambda a, b: (
        npx.multiply(a, npx.asarray([b], "float64")[0] if isinstance(b, (int, float)) else b),
        MULTIPLY(a, b)[1],
    ),
    "dtype",
)

# Special values and shapes


def first_of_stretched_axes(g, like):
    """Do what `unbroadcast` does but, if axes were added, take the first entry of stretched axes instead of the sum."""
    if not hasattr(like, "shape") or g.ndim == like.ndim:
        return unbroadcast(g, like)
    g = g.sum(axis=tuple(range(g.ndim - like.ndim)))
    return g[tuple(slice(n) for n in like.shape)]


vjp(
    "subtract",
    "first entry instead of the sum when axes were added",
    "arithmetic",
    lambda r, g, y, a, b: (first_of_stretched_axes(g, a), first_of_stretched_axes(-g, b)),
    "special value",
)
vjp(
    "broadcast_to",
    "first entry instead of the sum when axes were added",
    "shapes",
    lambda r, g, y, x, shape: (first_of_stretched_axes(g, x),),
    "special value",
)


def first_only(g):
    """Return g with every g[i] but the first set to 0."""
    return npx.where((npx.arange(len(g)) == 0).reshape(-1, *(1,) * (g.ndim - 1)), g, 0)


vjp(
    "matmul",
    "stack times vector: first matrix only",
    "matmul",
    lambda r, g, y, a, b: (r(g)[0], r(first_only(g))[1]) if b.ndim == 1 and a.ndim > 2 else r(g),
    "special value",
)
vjp(
    "matmul",
    "stack of one times a stack: first matrix only",
    "matmul",
    lambda r, g, y, a, b: (r(first_only(g))[0], r(g)[1]) if a.ndim == b.ndim == 3 and len(a) < len(b) else r(g),
    "special value",
)
vjp(
    "where",
    "first entry only along an axis added by the condition",
    "functions",
    lambda r, g, y, m, a, b: r(first_only(g)) if y.ndim > max(npx.asarray(a).ndim, npx.asarray(b).ndim) else r(g),
    "special value",
)
vjp(
    "mean",
    "negative axes mixed with positive ones ignored",
    "reductions",
    lambda r, g, y, x, axis, keepdims: (
        r(g)[0]
        * (npx.prod([x.shape[a] for a in axis if a < 0] or 1) if isinstance(axis, tuple) and max(axis) >= 0 else 1)
        if axis != ()
        else r(g)[0],
    ),
    "special value",
)
vjp(
    "sum",
    "empty axes taken as all axes",
    "reductions",
    lambda r, g, y, x, axis, keepdims: (npx.broadcast_to(g.sum(), x.shape) if axis == () else r(g)[0],),
    "special value",
)


def several_overwritten(r, g, y, x, index):
    several = isinstance(index, tuple) and sum(isinstance(i, list) for i in index) > 1
    return (scatter_overwriting(x.shape, index, g),) if several else r(g)


def mask_by_columns(r, g, y, x, index):
    gx = npx.zeros(x.shape, g.dtype)
    if getattr(index, "ndim", 0) != 2 or index.dtype != bool:
        return r(g)
    npx.swapaxes(gx, 0, 1)[npx.transpose(index)] = g
    return (gx,)


def slice_from_0(r, g, y, x, index):
    if not (isinstance(index, tuple) and isinstance(index[-1], list) and index[0] == slice(1, None)):
        return r(g)
    gx = npx.zeros(x.shape, g.dtype)
    npx.add_at(gx, (slice(0, len(x) - 1), *index[1:]), g)
    return (gx,)


def ignoring_negative_aliases(r, g, y, x, index):
    if not isinstance(index, list) or not index or isinstance(index[0], list):
        return r(g)
    gx, indices = npx.zeros(x.shape, g.dtype), npx.asarray(index)
    for i in set(index):
        gx[i] = g[indices == i].sum(axis=0)
    return (gx,)


vjp("getitem", "repeats in several index arrays overwritten", "shapes", several_overwritten, "special value")
vjp("getitem", "two-dimensional mask read by columns", "shapes", mask_by_columns, "special value")
vjp("getitem", "slice before index arrays read from 0", "shapes", slice_from_0, "special value")
vjp("getitem", "0 and -n treated as different positions", "shapes", ignoring_negative_aliases, "special value")
vjp(
    "transpose",
    "negative axes not wrapped",
    "shapes",
    lambda r, g, y, x, axes: r(g) if axes is None else (npx.transpose(g, npx.argsort(axes).tolist()),),
    "special value",
)
vjp(
    "concatenate",
    "empty parts dropped",
    "shapes",
    lambda r, g, y, *a, axis: tuple(part for part in r(g) if part.size),
    "special value",
)
vjp(
    "stack",
    "negative axes counted in the parts",
    "shapes",
    lambda r, g, y, *a, axis: tuple(npx.moveaxis(g, axis if axis >= 0 else max(0, axis + a[0].ndim), 0)),
    "special value",
)
