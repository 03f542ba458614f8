"""Calls of the kernels for a GPU, odd sizes, masks, padding and repeated ids among them (tests/test_cuda_kernels.py).

A call is (function, *args): `evaluate` gives the function a way to run a kernel and the arguments on some engine. What
a forward kernel keeps for its gradient is handed on within the function.
"""

import zlib
from itertools import product

import numpy as np

import npx
from npx.kernels.cross_entropy import SMOOTHING_OVER

KEY = npx.Key(2**40 + 3, 7, 5)
CASES = {}
ROWS = (5, 1), (3, 31), (2, 9, 33), (17, 64), (0, 5), (2, 513), (2, 1025)


def case(function):
    """Enter the calls of a kernel: tuples (function, *args) for `evaluate`."""
    CASES[function.__name__] = function
    return function


def forward(name):
    """The function of a case that calls one kernel."""
    return lambda run, *args: run(name, *args)


class Draw:
    """Random inputs of one dtype, always the same for the same name.

    What takes another compilation of a kernel, ids of 32 bits and the longest rows, is drawn for float32 alone.
    """

    def __init__(self, name, dtype):
        self.rng, self.dtype = np.random.default_rng(zlib.crc32(name.encode())), dtype
        self.rows = ROWS if dtype == "float32" else ROWS[:-1]
        self.dropped = [(KEY, row) for row in self.rows] + [(None, (3, 31))]

    def real(self, *shape, scale=1.0):
        return (self.rng.normal(size=shape) * scale).astype(self.dtype)

    def bools(self, *shape):
        return self.rng.random(shape) < 0.6

    def mask(self, *shape):
        """Some positions, and none at all in the first row."""
        mask = self.bools(*shape)
        mask[..., 0, :] = False
        return mask

    def ids(self, rows, *shape, dtype="int64"):
        return self.rng.integers(0, rows, shape).astype(dtype if self.dtype == "float32" else "int64")


@case
def softmax(d):
    for shape, mask in (
        ((3, 1), None),
        ((2, 3, 31), d.bools(3, 31)),
        ((2, 3, 2, 33), d.mask(2, 1, 2, 33)),
        ((2, 1, 1, 33), d.bools(1, 3, 4, 33)),  # a mask larger than x
        ((2, 2, 2, 2, 9), d.mask(2, 1, 2, 2, 9)),
        ((1, 2050), d.bools(2050)),
        ((4, 513), d.bools(4, 1)),
        ((0, 5), None),
        ((5, 0), None),
    ):
        yield forward("softmax"), d.real(*shape, scale=3), mask


@case
def softmax_grad(d):
    def call(run, g, x):
        return run("softmax_grad", g, run("softmax", x))

    for shape in ((3, 1), (2, 3, 31), (4, 513), (1, 2050), (0, 5), (5, 0)):
        yield call, d.real(*shape), d.real(*shape)


@case
def layer_norm(d):
    for *n, size in d.rows:
        yield forward("layer_norm"), d.real(*n, size, scale=4) + d.dtype.type(1), d.real(size), d.real(size), 1e-3


@case
def layer_norm_grad(d):
    def call(run, g, x, gamma, beta):
        _, xhat, rstd = run("layer_norm", x, gamma, beta, 1e-2)
        return run("layer_norm_grad", g, gamma, xhat, rstd)

    for *n, size in d.rows:
        yield call, d.real(*n, size), d.real(*n, size), d.real(size), d.real(size)


@case
def dropout(d):
    for shape in d.rows:
        yield forward("dropout"), d.real(*shape), 0.3, KEY
    yield forward("dropout"), d.real(3, 7), 1.0, KEY


@case
def dropout_grad(d):
    def call(run, g, x):
        return run("dropout_grad", g, 0.3, run("dropout", x, 0.3, KEY)[1])

    for shape in d.rows:
        yield call, d.real(*shape), d.real(*shape)


@case
def dropout_residual_norm(d):
    for key, (*n, size) in d.dropped:
        arrays = d.real(*n, size), d.real(*n, size), d.real(size), d.real(size)
        yield forward("dropout_residual_norm"), *arrays, 0.3, key, 1e-3


@case
def dropout_residual_norm_grad(d):
    def call(run, g, x, residual, gamma, beta, key):
        _, xhat, rstd, keep = run("dropout_residual_norm", x, residual, gamma, beta, 0.3, key, 1e-2)
        return run("dropout_residual_norm_grad", g, gamma, xhat, rstd, keep, 0.3)

    for key, (*n, size) in d.dropped:
        yield call, d.real(*n, size), d.real(*n, size), d.real(*n, size), d.real(size), d.real(size), key


SIZES = ((5, 3, 1), (130, 7, 31), (3, 8, 264), (0, 3, 4), (2, 5, 513))  # N, I, O
YES_OR_NO = (True, False)


@case
def linear(d):
    for (n, i, o), bias, relu in product(SIZES, YES_OR_NO, YES_OR_NO):
        yield forward("linear"), d.real(n, i), d.real(i, o), d.real(o) if bias else None, relu


@case
def linear_grad(d):
    for (n, i, o), bias, relu in product(SIZES, YES_OR_NO, YES_OR_NO):
        y = np.maximum(d.real(n, o), d.dtype.type(0)) if relu else None
        yield forward("linear_grad"), d.real(n, o), d.real(n, i), d.real(i, o), y, bias


@case
def embedding(d):
    for shape, size, dtype in (
        ((7,), 1, "int32"),
        ((2, 3), 31, "int64"),
        ((4,), 513, "int32"),
        ((2, 0), 3, "int64"),
        ((), 3, "int64"),
    ):
        yield forward("embedding"), d.real(5, size), d.ids(5, *shape, dtype=dtype)


@case
def embedding_grad(d):
    for n, rows, size, dtype in ((200, 3, 31, "int64"), (9, 30, 513, "int32"), (30, 1, 8, "int32"), (0, 4, 5, "int64")):
        yield forward("embedding_grad"), d.real(n, size), d.ids(rows, n, dtype=dtype), rows + 2


def queries_keys_values(d, b, t, s, h, size):
    return d.real(b, t, h, size), d.real(b, s, h, size), d.real(b, s, h, size)


@case
def attention(d):
    for key in (None, KEY):
        masked, turned = npx.Scores(bias=npx.mask_bias(d.mask(2, 1, 5, 7))), npx.Scores(causal=True, rotary=10000.0)
        yield forward("attention"), *queries_keys_values(d, 2, 5, 7, 2, 16), masked, 0.3, key
        yield forward("attention"), *queries_keys_values(d, 1, 3, 33, 1, 64), turned, 0.3, key
        yield forward("attention"), *queries_keys_values(d, 2, 0, 3, 1, 16), npx.Scores(), 0.3, key


@case
def attention_grad(d):
    def call(run, g, q, k, v, scores, key):
        _, p, keep = run("attention", q, k, v, scores, 0.3, key)
        return run("attention_grad", g, q, k, v, p, keep, 0.3, scores=scores)

    for key in (None, KEY):
        for scores in (
            npx.Scores(bias=npx.mask_bias(d.mask(2, 1, 5, 7))),
            npx.Scores(causal=True, lengths=np.array([4, 7]), rotary=10.0, bias=d.real(2, 1, 7)),
        ):
            yield call, d.real(2, 5, 2, 16), *queries_keys_values(d, 2, 5, 7, 2, 16), scores, key


@case
def cross_entropy(d):
    sizes = (6, 5, 0.0, "int32"), (5, 33, 0.1, "int64"), (3, 1300, 0.6, "int32"), (0, 9, 0.1, "int64")
    for over, grad, (n, classes, smoothing, dtype) in product(SMOOTHING_OVER, YES_OR_NO, sizes):
        targets = d.ids(classes, n, dtype=dtype)
        targets[: n // 3] = 2  # padding
        yield forward("cross_entropy"), d.real(n, classes, scale=3), targets, smoothing, over, 2, grad


@case
def linear_cross_entropy(d):
    for over, (n, size, classes, grad) in product(
        SMOOTHING_OVER, ((7, 9, 33, True), (3, 5, 1300, True), (0, 3, 9, True), (4, 5, 6, False))
    ):
        targets = d.ids(classes, n)
        targets[:1] = 0  # padding
        yield forward("linear_cross_entropy"), d.real(n, size), d.real(classes, size), targets, 0.1, over, 0, grad


@case
def adam(d):
    """All in float32; a copy of the parameters has the dtype under test."""

    def call(run, p, g, m, v, low, options):
        run("adam", p, g, m, v, 3, 0.5, low=low, **options)
        return p, g, m, v, low

    for n, options in (
        (0, {}),
        (1, {"weight_decay": 0.1}),
        (33, {"eps_inside": True, "eps": 1e-3}),
        (2051, {"scale": 0.25, "weight_decay": 0.01}),
    ):
        arrays = d.rng.normal(size=(4, n)).astype("float32")
        yield call, *arrays[:3], abs(arrays[3]), None if d.dtype.itemsize == 4 else np.zeros(n, d.dtype), options


@case
def top_k(d):
    if d.dtype == "float32":  # what search asks of it
        for shape, k, never in (((3, 7), 4, (0, 1)), ((2, 2600), 4, (0, 5)), ((1, 5), 5, ()), ((0, 9), 2, (0,))):
            yield forward("top_k"), d.real(*shape), k, never
