"""Bugs of stateful operations: data retained between calls, and arrays overwritten."""

import npx
from autograd.operations import _expand
from tests.mutants.base import operation, raw, vjp


def exp_workspace():
    buffers = {}

    def function(x):
        y = npx.exp(x, out=buffers.setdefault((x.shape, x.dtype.name), npx.empty(x.shape, x.dtype)))
        return y, lambda g: (g * y,)

    return function


def tanh_of_the_last_call():
    last = {}

    def function(x):
        last[x.shape, x.dtype.name] = y = npx.tanh(x)
        return y, lambda g: (g * (1 - last[x.shape, x.dtype.name] ** 2),)

    return function


def log_of_the_first_call():
    first = {}

    def function(x):
        slope = first.setdefault((x.shape, x.dtype.name), npx.asarray(1 / x))
        return npx.log(x), lambda g: (g * slope,)

    return function


def mean_of_the_first_count():
    first = []

    def function(x, axis=None, keepdims=False):
        y = npx.mean(x, axis=axis, keepdims=keepdims)
        first.append(x.size / max(1, y.size))
        return y, lambda g: (_expand(g / max(1, first[0]), x, axis, keepdims),)

    return function


def matmul_transposed_once():
    first, matmul = {}, raw("matmul")

    def function(a, b):
        y, right = matmul(a, b)
        if b.ndim != 2 or a.ndim != 2:
            return y, right
        w = first.setdefault((b.shape, b.dtype.name), npx.transpose(b).copy())
        return y, lambda g: (g @ w, right(g)[1])

    return function


def sqrt_with_one_buffer():
    buffers = {}

    def function(x):
        y = npx.sqrt(x)
        return y, lambda g: (
            npx.divide(g, 2 * y, out=buffers.setdefault((x.shape, x.dtype.name), npx.empty(x.shape, x.dtype))),
        )

    return function


def sigmoid_writing_over():
    def function(x):
        y = npx.asarray(0.5 * (npx.tanh(0.5 * x) + 1))
        return y, lambda g: (npx.multiply(g, npx.multiply(y, 1 - y, out=y), out=y),)

    return function


operation("exp", "output buffer shared by all calls", "functions", exp_workspace, "state", stateful=True)
operation("tanh", "output of the latest call used", "functions", tanh_of_the_last_call, "state", stateful=True)
operation(
    "log", "derivative of the first call of a shape used", "functions", log_of_the_first_call, "state", stateful=True
)
operation("mean", "count of the first call used", "reductions", mean_of_the_first_count, "state", stateful=True)
operation(
    "matmul",
    "transposed factor cached by shape",
    "matmul",
    matmul_transposed_once,
    "state",
    stateful=True,
)
operation("sqrt", "gradient buffer shared by all calls", "functions", sqrt_with_one_buffer, "state", stateful=True)
operation(
    "sigmoid", "output overwritten in the backward pass", "functions", sigmoid_writing_over, "state", stateful=True
)
vjp(
    "relu",
    "input overwritten in the backward pass",
    "functions",
    lambda r, g, y, x: (npx.multiply(g, x > 0, out=x),),
    "state",
)


# The operations of the Transformer


def softmax_with_one_buffer():
    buffers, softmax = {}, raw("softmax")

    def function(x, mask=None):
        y, right = softmax(x, mask)

        def vjp(g):
            gx = buffers.setdefault((x.shape, x.dtype.name), npx.empty(x.shape, x.dtype))
            npx.copyto(gx, right(g)[0])
            return (gx,)

        return y, vjp

    return function


def reusing_vjp(name, call):
    """Return an operation that uses the vjp of the first or last call with inputs of the same shapes."""

    def make():
        calls, operation = {}, raw(name)

        def function(*args, **options):
            y, right = operation(*args, **options)
            key = tuple((x.shape, x.dtype.name) if hasattr(x, "dtype") else repr(x) for x in args)
            calls[key] = right if call == "last" else calls.get(key, right)
            return y, lambda g: calls[key](g)

        return function

    return make


def embedding_adding_up():
    buffers, embedding = {}, raw("embedding")

    def function(table, ids, **options):
        y, right = embedding(table, ids, **options)

        def vjp(g):
            gtable = buffers.setdefault((table.shape, table.dtype.name), npx.zeros(table.shape, table.dtype))
            gtable += right(g)[0]
            return (gtable,)

        return y, vjp

    return function


def gelu_workspace():
    buffers, gelu = {}, raw("gelu")

    def function(x):
        y, _ = gelu(x)
        buffer = buffers.setdefault((x.shape, x.dtype.name), npx.empty(x.shape, x.dtype))
        npx.copyto(buffer, x)
        return y, lambda g: gelu(buffer)[1](g)

    return function


operation("softmax", "gradient buffer shared by all calls", "softmax", softmax_with_one_buffer, "state", stateful=True)
operation(
    "layer_norm",
    "normalized rows of the first call of a shape used",
    "layer norm",
    reusing_vjp("layer_norm", "first"),
    "state",
    stateful=True,
)
operation(
    "attention",
    "weights of the latest call of a shape used",
    "attention",
    reusing_vjp("attention", "last"),
    "state",
    stateful=True,
)
operation(
    "linear",
    "inputs of the latest call of a shape used",
    "linear",
    reusing_vjp("linear", "last"),
    "state",
    stateful=True,
)
operation(
    "dropout_residual_norm",
    "rows of the latest call of a shape used",
    "dropout",
    reusing_vjp("dropout_residual_norm", "last"),
    "state",
    stateful=True,
)
operation(
    "embedding",
    "gradient table not cleared between calls",
    "embedding",
    embedding_adding_up,
    "state",
    stateful=True,
)
operation("gelu", "input buffer shared by all calls", "functions", gelu_workspace, "state", stateful=True)
vjp(
    "layer_norm",
    "writeable incoming gradient changed in place",
    "layer norm",
    lambda r, g, y, *a, **k: r(npx.subtract(g, 0.5, out=g) + 0.5) if g.flags.writeable else r(g),
    "incoming gradient",
)
