"""Mistakes in the small operations (autograd/operations.py)."""

import npx
from autograd.operations import _expand, unbroadcast
from tests.mutants.base import corrupting, keeping, operation, overwritten, rounded, vjp

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
vjp("tanh", "incoming gradient written over", "functions", lambda r, g, y, x: (corrupting(g, 1 - y * y),), "state")
vjp("divide", "square of the denominator lost", "arithmetic",
    lambda r, g, y, a, b: (r(g)[0], None if isinstance(b, (int, float)) else unbroadcast(-g * a / b, b)))
vjp("divide", "gradient of the denominator missing", "arithmetic", lambda r, g, y, a, b: (r(g)[0], None))
vjp("negative", "sign", "arithmetic", lambda r, g, y, x: (g,))
vjp("power", "exponent not lowered", "arithmetic", lambda r, g, y, x, n: (g * n * x**n,))
operation("negative", "input written over", "arithmetic",
          lambda x: (npx.multiply(x, -1, out=x), lambda g: (-g,)), "state")
vjp("add", "factor two", "arithmetic",
    lambda r, g, y, a, b: tuple(None if x is None else 2 * x for x in r(g)))

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
operation("exp", "output turned into float32 by default", "functions",
          lambda x: (npx.exp(x).astype("float32"), lambda g: (g.astype(x.dtype) * npx.exp(x),)), "dtype")
vjp("absolute", "sign lost", "functions", lambda r, g, y, x: (g,))
vjp("maximum", "ties given to both", "functions",
    lambda r, g, y, a, b: (unbroadcast(g * (a >= b), a) if hasattr(a, "shape") else None,
                           unbroadcast(g * (b >= a), b) if hasattr(b, "shape") else None), "special value")
vjp("where", "condition swapped", "functions",
    lambda r, g, y, m, a, b: (None, unbroadcast(npx.where(m, 0, g), a), unbroadcast(npx.where(m, g, 0), b)))
vjp("exp", "right only for contiguous input", "functions",
    lambda r, g, y, x: (g * npx.exp(npx.asarray(x).view() if x.flags.c_contiguous else npx.sort(x, axis=-1)),),
    "special value")
operation("tanh", "something large kept", "functions",
          lambda x: keeping(npx.tanh(x), npx.zeros(100), lambda g, y: g * (1 - y * y)), "state")

# Products

vjp("matmul", "factor not transposed", "products",
    lambda r, g, y, a, b: (g @ b, r(g)[1]) if y.shape == a.shape == b.shape and a.ndim == 2 else r(g))
vjp("matmul", "factors exchanged", "products",
    lambda r, g, y, a, b: (r(g)[1].T.reshape(a.shape), r(g)[0].T.reshape(b.shape)) if a.size == b.size else r(g))
vjp("matmul", "gradient of the second transposed", "products",
    lambda r, g, y, a, b: (r(g)[0], r(g)[1].swapaxes(-1, -2) if b.ndim > 1 and b.shape[-1] == b.shape[-2] else r(g)[1]))
vjp("matmul", "gradients of rows lost for vectors", "products",
    lambda r, g, y, a, b: (npx.zeros_like(a) if a.ndim == 1 else r(g)[0], r(g)[1]))

# Reductions

operation("sum", "expanded along the wrong axis", "reductions", lambda x, axis=None, keepdims=False: (
    npx.sum(x, axis=axis, keepdims=keepdims),
    lambda g: (npx.transpose(_expand(g, x, axis, keepdims)) if x.ndim == 2 and x.shape[0] == x.shape[1]
               else _expand(g, x, axis, keepdims),)))
vjp("sum", "only the first of several", "reductions",
    lambda r, g, y, x, **how: (r(g)[0] * (npx.arange(x.size).reshape(x.shape) == 0),))
vjp("mean", "not divided by the count", "reductions",
    lambda r, g, y, x, axis, keepdims: (_expand(g, x, axis, keepdims),))
vjp("max", "ties given twice", "reductions",
    lambda r, g, y, x, axis, keepdims: (
        _expand(g, x, axis, keepdims) * (x == _expand(y, x, axis, keepdims)),), "special value")
vjp("min", "gradient of the maximum", "reductions",
    lambda r, g, y, x, axis, keepdims: (
        _expand(g, x, axis, keepdims) * (x == npx.max(x, axis=axis, keepdims=True)),))

# Shapes

vjp("reshape", "order of the entries lost", "shapes", lambda r, g, y, x, shape: (g.reshape(-1)[::-1].reshape(x.shape),))
vjp("transpose", "permutation not inverted", "shapes",
    lambda r, g, y, x, axes: (npx.transpose(g, axes).reshape(x.shape),))
vjp("swapaxes", "not swapped back", "shapes", lambda r, g, y, x, i, j: (g.reshape(x.shape),))
vjp("broadcast_to", "one copy instead of their sum", "shapes",
    lambda r, g, y, x, shape: (r(g)[0] / max(1, g.size // max(1, x.size)),))
operation("getitem", "repeats overwritten instead of summed", "shapes",
          lambda x, index: (x[index], lambda g: (overwritten(x.shape, index, g),)), "special value")
vjp("concatenate", "parts swapped", "shapes",
    lambda r, g, y, *a, axis: r(g) if len({x.shape for x in a}) > 1 else r(g)[::-1])
vjp("stack", "every part gets the first", "shapes", lambda r, g, y, *a, axis: (r(g)[0],) * len(a))
