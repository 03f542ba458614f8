"""Mistakes in the small operations (autograd/operations.py)."""

import npx
from autograd.operations import _expand, unbroadcast
from tests.mutants.base import operation, raw, rounded, scale_in_place, scatter_overwriting, vjp, with_extra_array_saved

# Arithmetic

operation("add", "broadcast reduction lost", "arithmetic", lambda a, b: (a + b, lambda g: (g, g)))
operation(
    "multiply", "summed over one broadcast axis only", "arithmetic",
    lambda a, b: (a * b, lambda g: (
        unbroadcast(g * b, a) if hasattr(a, "shape") else None,
        g * a if getattr(b, "shape", ()) == g.shape else (g * a).sum(axis=0) if hasattr(b, "shape") else None,
    )), "special value")  # fmt: skip
vjp("subtract", "sign of the second lost", "arithmetic", lambda r, g, y, a, b: (r(g)[0], unbroadcast(g, b)))
vjp("multiply", "gradients given to the wrong inputs", "arithmetic", lambda r, g, y, a, b: r(g)[::-1])
vjp("tanh", "incoming gradient written over", "functions", lambda r, g, y, x: (scale_in_place(g, 1 - y * y),), "state")
vjp(
    "divide",
    "square of the denominator lost",
    "arithmetic",
    lambda r, g, y, a, b: (r(g)[0], None if isinstance(b, (int, float)) else unbroadcast(-g * a / b, b)),
)
vjp("divide", "gradient of the denominator missing", "arithmetic", lambda r, g, y, a, b: (r(g)[0], None))
vjp("negative", "sign", "arithmetic", lambda r, g, y, x: (g,))
vjp("power", "exponent not lowered", "arithmetic", lambda r, g, y, x, n: (g * n * x**n,))
operation(
    "negative", "input written over", "arithmetic", lambda x: (npx.multiply(x, -1, out=x), lambda g: (-g,)), "state"
)
vjp("add", "factor two", "arithmetic", lambda r, g, y, a, b: tuple(None if x is None else 2 * x for x in r(g)))

# Functions of each entry

vjp("exp", "derivative of e^x lost", "functions", lambda r, g, y, x: (g,))
vjp("log", "multiplied instead of divided", "functions", lambda r, g, y, x: (g * x,))
vjp("sqrt", "factor 1/2 lost", "functions", lambda r, g, y, x: (g / y,))
vjp("tanh", "1 - y instead of 1 - y^2", "functions", lambda r, g, y, x: (g * (1 - y),))
vjp("sigmoid", "factor y lost", "functions", lambda r, g, y, x: (g * (1 - y),))
vjp("sigmoid", "second order in g", "functions", lambda r, g, y, x: (r(g)[0] * (1 + 1e-7 * g),), "incoming gradient")
vjp("relu", "mask inverted", "functions", lambda r, g, y, x: (g * (x <= 0),))
vjp("relu", "gradient cast to float32", "functions", lambda r, g, y, x: ((g * (x > 0)).astype("float32"),), "dtype")
vjp("tanh", "rounded to float32 on the way", "functions", lambda r, g, y, x: (rounded(r(g)[0]),), "dtype")
operation(
    "exp",
    "output turned into float32 by default",
    "functions",
    lambda x: (npx.exp(x).astype("float32"), lambda g: (g.astype(x.dtype) * npx.exp(x),)),
    "dtype",
)
vjp("absolute", "sign lost", "functions", lambda r, g, y, x: (g,))
vjp(
    "maximum",
    "ties given to both",
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
    "right only for contiguous input",
    "functions",
    lambda r, g, y, x: (g * npx.exp(npx.asarray(x).view() if x.flags.c_contiguous else npx.sort(x, axis=-1)),),
    "special value",
)
operation(
    "tanh",
    "something large kept",
    "functions",
    lambda x: with_extra_array_saved(npx.tanh(x), npx.zeros(100), lambda g, y: g * (1 - y * y)),
    "state",
)

# Products

vjp(
    "matmul",
    "factor not transposed",
    "products",
    lambda r, g, y, a, b: (g @ b, r(g)[1]) if y.shape == a.shape == b.shape and a.ndim == 2 else r(g),
)
vjp(
    "matmul",
    "factors exchanged",
    "products",
    lambda r, g, y, a, b: (r(g)[1].T.reshape(a.shape), r(g)[0].T.reshape(b.shape)) if a.size == b.size else r(g),
)
vjp(
    "matmul",
    "gradient of the second transposed",
    "products",
    lambda r, g, y, a, b: (r(g)[0], r(g)[1].swapaxes(-1, -2) if b.ndim > 1 and b.shape[-1] == b.shape[-2] else r(g)[1]),
)
vjp(
    "matmul",
    "gradients of rows lost for vectors",
    "products",
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
    "only the first of several",
    "reductions",
    lambda r, g, y, x, **how: (r(g)[0] * (npx.arange(x.size).reshape(x.shape) == 0),),
)
vjp(
    "mean",
    "not divided by the count",
    "reductions",
    lambda r, g, y, x, axis, keepdims: (_expand(g, x, axis, keepdims),),
)
vjp(
    "max",
    "ties given twice",
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

vjp("reshape", "order of the entries lost", "shapes", lambda r, g, y, x, shape: (g.reshape(-1)[::-1].reshape(x.shape),))
vjp(
    "transpose",
    "permutation not inverted",
    "shapes",
    lambda r, g, y, x, axes: (npx.transpose(g, axes).reshape(x.shape),),
)
vjp("swapaxes", "not swapped back", "shapes", lambda r, g, y, x, i, j: (g.reshape(x.shape),))
vjp(
    "broadcast_to",
    "one copy instead of their sum",
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

# Right in part of the domain


def slope(name, mistake, change, kind="domain"):
    """A wrong slope of a function of each entry: change(x, or x and exponent)."""
    vjp(name, mistake, "functions", lambda r, g, y, *inputs: (g * change(*inputs),), kind)


def power_slope(mistake, change, kind="domain"):
    """A wrong slope of x^n for n that is not 0."""
    slope("power", mistake, lambda x, n: change(x, n) if n else npx.zeros_like(x), kind)


power_slope("sign of negative bases lost", lambda x, n: n * abs(x) ** (n - 1))
power_slope("exponents above 3 taken for 3", lambda x, n: min(n, 3) * x ** (min(n, 3) - 1))
power_slope("bases kept 0.05 away from 0", lambda x, n: n * npx.where(abs(x) < 0.05, 0.05, x) ** (n - 1))
power_slope("through the logarithm of the base", lambda x, n: n * npx.exp((n - 1) * npx.log(x)), "not finite")
slope("power", "0 / 0 for exponent 0 at 0", lambda x, n: n * x ** (n - 1.0), "not finite")
slope("log", "guard of 0.05", lambda x: 1 / npx.maximum(x, 0.05))
slope("log", "above 1e4 taken for 1e4", lambda x: 1 / npx.minimum(x, 1e4))
slope("log", "1e-8 added to x", lambda x: 1 / (x + 1e-8))
slope("sqrt", "guard of 0.05", lambda x: 0.5 / npx.maximum(npx.sqrt(x), 0.05))
slope("exp", "gradient saturates at e^5", lambda x: npx.exp(npx.minimum(x, 5)))
slope("exp", "gradient never below e^-5", lambda x: npx.exp(npx.maximum(x, -5)))
slope("exp", "overflow at half the range", lambda x: npx.exp(2 * x) / npx.exp(x), "not finite")
slope("tanh", "gradient never below 1e-3", lambda x: npx.maximum(1 - npx.tanh(x) ** 2, 1e-3))
slope("tanh", "from e^2x, which overflows", lambda x: 4 * npx.exp(2 * x) / (npx.exp(2 * x) + 1) ** 2, "not finite")
slope("sigmoid", "from e^-x, which overflows", lambda x: npx.exp(-x) / (1 + npx.exp(-x)) ** 2, "not finite")
slope("relu", "threshold of 1e-3", lambda x: x > 1e-3)
slope("relu", "0 / 0 at 0", lambda x: 0.5 + 0.5 * x / abs(x), "not finite")
slope("absolute", "smoothed near 0", lambda x: npx.tanh(1e3 * x))
slope("absolute", "0 / 0 at 0", lambda x: x / abs(x), "not finite")
vjp(
    "divide",
    "sign of the denominator lost",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g / abs(b), a), r(g)[1]),
    "domain",
)
vjp(
    "divide",
    "denominators kept 0.02 away from 0",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g / npx.where(abs(b) < 0.02, 0.02 * npx.sign(b), b), a), r(g)[1]),
    "domain",
)
vjp(
    "divide",
    "denominators above 500 taken for 500",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g / npx.clip(b, -500, 500), a), r(g)[1]),
    "domain",
)
vjp(
    "multiply",
    "gradient saturates at 1000",
    "arithmetic",
    lambda r, g, y, a, b: (unbroadcast(g * npx.clip(b, -1e3, 1e3), a), r(g)[1]),
    "domain",
)


def choice(share):
    """The gradient of a maximum of which a gets share(a, b)."""

    def change(r, g, y, a, b):
        to_a = g * share(a, b)
        return unbroadcast(to_a, a), unbroadcast(g - to_a, b)

    return change


vjp(
    "maximum", "a tie within 1e-3", "functions", choice(lambda a, b: npx.where(abs(a - b) < 1e-3, 0.5, a > b)), "domain"
)
vjp("maximum", "0 / 0 at a tie", "functions", choice(lambda a, b: 0.5 + 0.5 * (a - b) / abs(a - b)), "not finite")


def tied(r, g, y, x, axis=None, keepdims=False, near=0.0):
    """The share of each entry of x in a maximum or minimum, and how many have one, for `near` ones too."""
    share = (abs(x - _expand(y, x, axis, keepdims)) <= near).astype(g.dtype)
    return _expand(g, x, axis, keepdims) * share, share, npx.sum(share, axis=axis, keepdims=True)


def near_tie(*args, **how):
    gx, _, count = tied(*args, **how, near=1e-3)
    return (gx / count,)


def tie_of_the_last_axis(*args, axis=None, keepdims=False):
    gx, share, count = tied(*args, axis=axis, keepdims=keepdims)
    return (gx / (npx.sum(share, axis=axis[-1], keepdims=True) if isinstance(axis, tuple) and axis else count),)


def infinite_tie(*args, **how):
    gx, _, count = tied(*args, **how)
    return (gx / (count == 1),)


vjp("max", "a tie within 1e-3", "reductions", near_tie, "domain")
vjp("max", "divided by the ties of the last of several axes alone", "reductions", tie_of_the_last_axis, "special value")
vjp("min", "infinite at a tie", "reductions", infinite_tie, "not finite")

# Not finite


def spoiled(gx, place, value):
    """gx with `value` in its entry of a number, counted from the end if negative."""
    return npx.where(npx.arange(gx.size).reshape(gx.shape) == place % max(1, gx.size), value, gx).astype(gx.dtype)


vjp(
    "exp",
    "one entry infinite, all others wrong",
    "functions",
    lambda r, g, y, x: (spoiled(g, 0, npx.inf),),
    "not finite",
)
vjp(
    "mean",
    "last entry not a number",
    "reductions",
    lambda r, g, y, x, **how: (spoiled(r(g)[0], -1, npx.nan),),
    "not finite",
)

# The gradient that arrives

vjp(
    "sigmoid",
    "incoming gradient clipped at 100",
    "functions",
    lambda r, g, y, x: r(npx.clip(g, -100, 100)),
    "incoming gradient",
)
vjp(
    "relu",
    "incoming gradient below 1e-5 taken for 0",
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
    "incoming ones handed on as they are",
    "functions",
    lambda r, g, y, x: (g,) if (g == 1).all() else r(g),
    "incoming gradient",
)
vjp(
    "multiply",
    "incoming gradient in its order in memory",
    "arithmetic",
    lambda r, g, y, a, b: r(g.ravel("K").reshape(g.shape)),
    "incoming gradient",
)
vjp(
    "reshape",
    "incoming gradient in its order in memory",
    "shapes",
    lambda r, g, y, x, shape: (g.ravel("K").reshape(x.shape),),
    "incoming gradient",
)
vjp(
    "log",
    "incoming gradient written over where that is allowed",
    "functions",
    lambda r, g, y, x: (npx.divide(g, x, out=g) if g.flags.writeable else g / x,),
    "incoming gradient",
)
vjp(
    "matmul",
    "a small constant added",
    "products",
    lambda r, g, y, a, b: tuple(gx + 1e-8 for gx in r(g)),
    "incoming gradient",
)
vjp(
    "sum",
    "incoming gradient divided by its norm",
    "reductions",
    lambda r, g, y, x, **how: r(g / (n := npx.sqrt(npx.sum(g * g))) * n),
    "incoming gradient",
)
vjp(
    "absolute",
    "incoming gradient squared beyond 1000",
    "functions",
    lambda r, g, y, x: r(npx.where(abs(g) > 1e3, g * abs(g), g)),
    "incoming gradient",
)

# dtype

vjp("sigmoid", "slope kept in float32", "functions", lambda r, g, y, x: (g * rounded(y * (1 - y)),), "dtype")
vjp(
    "exp",
    "slope kept in float16, for float32",
    "functions",
    lambda r, g, y, x: (g * (rounded(y, "float16") if y.dtype == npx.float32 else y),),
    "dtype",
)
vjp("power", "incoming gradient rounded to float32", "functions", lambda r, g, y, x, n: r(rounded(g)), "dtype")
vjp("astype", "gradient in the output's dtype", "functions", lambda r, g, y, x, dtype: (g,), "dtype")
vjp(
    "astype",
    "gradient through float16",
    "functions",
    lambda r, g, y, x, dtype: (g.astype("float16").astype(x.dtype),),
    "dtype",
)
vjp("mean", "gradient in float64", "reductions", lambda r, g, y, x, **how: (r(g)[0].astype("float64"),), "dtype")


def narrowed(name, family, dtype, inside):
    """The output of an operation on one dtype computed in a narrower one."""
    right = raw(name)

    def function(*arrays, **how):
        y, vjp = right(*arrays, **how)
        if y.dtype == dtype:
            y = right(*(x.astype(inside) for x in arrays), **how)[0].astype(dtype)
        return y, vjp

    operation(name, f"{inside} inside, for {dtype}", family, function, "dtype")


narrowed("matmul", "products", "float32", "float16")
narrowed("sum", "reductions", "float32", "float16")
narrowed("matmul", "products", "float64", "float32")
narrowed("tanh", "functions", "float64", "float32")
narrowed("log", "functions", "float64", "float32")
narrowed("mean", "reductions", "float64", "float32")
MULTIPLY = raw("multiply")
operation(
    "multiply",
    "one array for both squared, half of its gradient lost",
    "arithmetic",
    lambda a, b: (
        MULTIPLY(a, b)[0],
        lambda g: (MULTIPLY(a, b)[1](g)[0], npx.zeros_like(b) if a is b else MULTIPLY(a, b)[1](g)[1]),
    ),
    "special value",
)
operation(
    "multiply",
    "a number makes float32 float64",
    "arithmetic",
    lambda a, b: (
        npx.multiply(a, npx.asarray([b], "float64")[0] if isinstance(b, (int, float)) else b),
        MULTIPLY(a, b)[1],
    ),
    "dtype",
)

# Single values and shapes


def one_of_stretched(g, like):
    """`unbroadcast` that takes the first instead of the sum where axes of length 1 stand beside added ones."""
    if not hasattr(like, "shape") or g.ndim == like.ndim:
        return unbroadcast(g, like)
    g = g.sum(axis=tuple(range(g.ndim - like.ndim)))
    return g[tuple(slice(n) for n in like.shape)]


vjp(
    "subtract",
    "first instead of the sum where axes were added too",
    "arithmetic",
    lambda r, g, y, a, b: (one_of_stretched(g, a), one_of_stretched(-g, b)),
    "special value",
)
vjp(
    "broadcast_to",
    "first instead of the sum where axes were added too",
    "shapes",
    lambda r, g, y, x, shape: (one_of_stretched(g, x),),
    "special value",
)


def first_alone(g):
    """g with zeros but in its first part."""
    return npx.where((npx.arange(len(g)) == 0).reshape(-1, *(1,) * (g.ndim - 1)), g, 0)


vjp(
    "matmul",
    "a vector against a stack: the first alone",
    "products",
    lambda r, g, y, a, b: (r(g)[0], r(first_alone(g))[1]) if b.ndim == 1 and a.ndim > 2 else r(g),
    "special value",
)
vjp(
    "matmul",
    "a stack of one against several: the first alone",
    "products",
    lambda r, g, y, a, b: (r(first_alone(g))[0], r(g)[1]) if a.ndim == b.ndim == 3 and len(a) < len(b) else r(g),
    "special value",
)
vjp(
    "where",
    "of the condition's added axis the first alone",
    "functions",
    lambda r, g, y, m, a, b: r(first_alone(g)) if y.ndim > max(npx.asarray(a).ndim, npx.asarray(b).ndim) else r(g),
    "special value",
)
vjp(
    "mean",
    "negative axes among positive ones not counted",
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
    "no axes taken for all",
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


def two_names(r, g, y, x, index):
    if not isinstance(index, list) or not index or isinstance(index[0], list):
        return r(g)
    gx, places = npx.zeros(x.shape, g.dtype), npx.asarray(index)
    for place in set(index):
        gx[place] = g[places == place].sum(axis=0)
    return (gx,)


vjp("getitem", "repeats of several index arrays overwritten", "shapes", several_overwritten, "special value")
vjp("getitem", "a mask of two dimensions read by columns", "shapes", mask_by_columns, "special value")
vjp("getitem", "a slice before index arrays read from 0", "shapes", slice_from_0, "special value")
vjp("getitem", "0 and -n taken for two places", "shapes", two_names, "special value")
vjp(
    "transpose",
    "negative axes not counted from the end",
    "shapes",
    lambda r, g, y, x, axes: r(g) if axes is None else (npx.transpose(g, npx.argsort(axes).tolist()),),
    "special value",
)
vjp(
    "concatenate",
    "empty parts left out",
    "shapes",
    lambda r, g, y, *a, axis: tuple(part for part in r(g) if part.size),
    "special value",
)
vjp(
    "stack",
    "negative axes counted from the parts",
    "shapes",
    lambda r, g, y, *a, axis: tuple(npx.moveaxis(g, axis if axis >= 0 else max(0, axis + a[0].ndim), 0)),
    "special value",
)
