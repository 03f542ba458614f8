"""Cases of the kernels (npx/kernels): functions that build the arguments of a call from the choices of a `Draw`.

A case ensures that the arguments fit together. For each size or option it states the choices of every kind of `Draw`:

    Hypothesis  small arrays of any memory layout, in float32 or float64    fast versions against references, mutants
    Edges       all combinations of the `edges`, one after another          the same, and CUDA kernels in the emulator
    Large       the sizes of a training step                                threads, and benchmarks/kernels.py

Kernels are checked together with their gradients, whose options are `Call.gradient_options`.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import npx
from autograd.testing import strategies as s
from npx import AttentionSpec
from tests.cases.base import CASES, Call, edges, leading, size
from tests.cases.neural import BOUNDED, attention_sizes, keys
from tests.cases.special import SPECIAL

KERNEL_CASES: dict[str, Callable[["Draw"], Call]] = {}
KEY = npx.Key(2**40 + 3, 7, 5)
ROWS = (5, 1), (3, 31), (2, 9, 33), (17, 64), (0, 5), (2, 513)  # shapes
LONG = (2, 1025)  # needs another variant of the kernels that hold rows in registers; float32 only


def kernel_case(function):
    """Register the case of the kernel with the function's name, here and, drawn by hypothesis, in `CASES`."""
    KERNEL_CASES[function.__name__] = function
    CASES[f"kernel {function.__name__}"] = st.composite(
        lambda draw: function(Hypothesis(draw, draw(st.sampled_from(["float64", "float32"]))))
    )()
    edges(f"kernel {function.__name__}")(
        lambda: (
            replace(call, vary_inputs=True)
            for dtype in ("float64", "float32")
            for call in edge_calls(function.__name__, dtype)
        )
    )
    return function


class Draw:
    """A source of sizes, values, memory layouts and options for a call."""

    dtype: Any

    def pick(self, small: Any, edges: Any, large: Any = None) -> Any:
        """Return a choice.

        Args:
            small: the strategy from which `Hypothesis` draws.
            edges: the values that `Edges` tries one after another.
            large: a function that takes a `Large` and returns the choice for the size of a training step.
        """
        raise NotImplementedError

    def option(self, *values: Any) -> Any:
        """Return one of the values; large calls take the first."""
        return self.pick(st.sampled_from(values), values, lambda sizes: values[0])

    def values(self, *shape: int, styles: tuple[str, ...] = BOUNDED, scale: float = 1.0, shift: float = 0.0) -> Any:
        """Return floats of the dtype: in one of the styles for hypothesis, else normal numbers, scaled and shifted."""
        raise NotImplementedError

    def ids(self, rows: int, *shape: int) -> Any:
        """Return integers below `rows`, some of them repeated."""
        raise NotImplementedError

    def masks(self, *shape: int) -> Any:
        """Return booleans, with some rows all False."""
        raise NotImplementedError

    def writable(self, *shape: int) -> Any:
        """Return numbers that the kernel may overwrite."""
        return self.values(*shape).copy()

    def dropout(self) -> dict[str, Any]:
        """Return the `drop` option."""
        rate = self.pick(st.sampled_from([0.3, 0.1, 0.9]), (0.3,), lambda large: 0.1)
        key = self.pick(st.none() | keys(), (KEY, None), lambda large: KEY)
        return {"drop": key and npx.DropoutSpec(rate, key)}


class Hypothesis(Draw):
    """Small arguments drawn by hypothesis, simplest first."""

    def __init__(self, draw: Any, dtype: str) -> None:
        self.draw = draw
        self.dtype = np.dtype(dtype)

    def pick(self, small, edges, large=None):
        return self.draw(small)

    def values(self, *shape, styles=BOUNDED, scale=1.0, shift=0.0):
        return self.draw(s.arrays(shape, styles, self.dtype.name))

    def ids(self, rows, *shape):
        return self.draw(s.indices(rows, shape)).astype(self.draw(st.sampled_from(["int64", "int32"])))

    def masks(self, *shape):
        return self.draw(s.masks(shape, allow_none=False))


class Edges(Draw):
    """One combination of the edges of a kernel, with reproducible values.

    Args:
        digits: the position in each sequence of edges, in the order in which the case picks them.
    """

    def __init__(self, name: str, dtype: Any, digits: list[int]) -> None:
        self.rng = np.random.default_rng(zlib.crc32(f"{name}{digits}".encode()))
        self.dtype = np.dtype(dtype)
        self.digits = digits
        self.limits = []

    def pick(self, small, edges, large=None):
        position = len(self.limits)
        self.limits.append(len(edges))
        return edges[self.digits[position] if position < len(self.digits) else 0]

    def next_digits(self) -> list[int] | None:
        """Return the digits of the next combination; None after the last."""
        digits = [*self.digits, *[0] * (len(self.limits) - len(self.digits))]
        for i in reversed(range(len(digits))):
            if digits[i] + 1 < self.limits[i]:
                return [*digits[:i], digits[i] + 1]
        return None

    def values(self, *shape, styles=BOUNDED, scale=1.0, shift=0.0):
        return (scale * self.rng.normal(size=shape) + shift).astype(self.dtype)

    def ids(self, rows, *shape):
        dtype = "int32" if self.dtype == "float32" and self.rng.random() < 0.5 else "int64"
        return self.rng.integers(0, rows, shape).astype(dtype)

    def masks(self, *shape):
        mask = self.rng.random(shape) < 0.6
        mask[..., 0, :] = False
        return mask


def edge_calls(name: str, dtype: Any) -> Iterator[Call]:
    """Yield the special calls to a kernel, from which others are derived, and all combinations of its edges.

    In float64 on a CPU, a large call that fills several blocks follows.
    """
    yield from (replace(call, vary_inputs=True) for call in SPECIAL[name](Edges(f"special {name}", dtype, [])))
    digits: list[int] | None = []
    while digits is not None:
        draw = Edges(name, dtype, digits)
        yield KERNEL_CASES[name](draw)
        digits = draw.next_digits()
    if dtype == "float64" and npx.device() == "cpu":
        yield KERNEL_CASES[name](Large(tokens=2112, vocab=2100, dtype=np.dtype(dtype)))


@dataclass
class Large(Draw):
    """Arguments of the size of a training step, on the current device."""

    tokens: int = 2048
    length: int = 64
    d_model: int = 256
    heads: int = 4
    d_ff: int = 512
    vocab: int = 2048
    parameters: int = 600_000
    dtype: Any = np.dtype("float32")
    rng: Any = field(default_factory=lambda: np.random.default_rng(0))

    def pick(self, small, edges, large=None):
        return large(self)

    @property
    def batch(self) -> int:
        return max(1, self.tokens // self.length)

    def attention(self):
        size = self.d_model // self.heads
        return self.batch, self.length, self.length, self.heads, size, size, AttentionSpec()

    def values(self, *shape, styles=BOUNDED, scale=1.0, shift=0.0):
        return npx.from_host(self.rng.standard_normal(shape, self.dtype))

    def writable(self, *shape):
        return self.values(*shape)

    def ids(self, rows, *shape):
        return npx.from_host(self.rng.integers(1, rows, shape))


def row_shape(d: Draw) -> tuple[int, ...]:
    """Choose the shape (..., D) of an array that a kernel processes row by row."""
    edges = (*ROWS, LONG) if d.dtype == "float32" else ROWS
    small = st.builds(lambda front, last: (*front, last), s.shapes(max_dims=2, max_side=3), size(9))
    return d.pick(small, edges, lambda large: (large.tokens, large.d_model))


@st.composite
def masked_shapes(draw):
    """Draw the shape of an array, and the shape of its mask or None."""
    shape = (*leading(draw), draw(size(5, min_side=0)))
    ones = tuple(1 if draw(st.booleans()) else n for n in shape)
    return shape, draw(st.sampled_from([None, shape, ones, ones[draw(st.integers(0, len(shape) - 1)) :]]))


@kernel_case
def softmax(d):
    edges = (
        ((3, 1), None),
        ((2, 3, 31), (3, 31)),
        ((2, 3, 2, 33), (2, 1, 2, 33)),
        ((2, 1, 1, 33), (1, 3, 4, 33)),  # a mask larger than x
        ((2, 2, 2, 2, 9), (2, 1, 2, 2, 9)),
        ((1, 2050), (1, 2050)),
        ((4, 513), (4, 1)),
        ((0, 5), None),
        ((5, 0), None),
    )
    shape, mask = d.pick(masked_shapes(), edges, lambda large: ((large.batch, large.heads, *[large.length] * 2), None))
    return Call((d.values(*shape, styles=s.STYLES, scale=3), mask and d.masks(*mask)))


def norm_inputs(d, count):
    """Return `count` arrays of one shape (..., D), then gamma and beta (D,)."""
    shape = row_shape(d)
    styles = ("plain", "normal", "large", "tiny", "zeros")
    arrays = [d.values(*shape, styles=styles, scale=4, shift=1) for _ in range(count)]
    return *arrays, *(d.values(shape[-1], styles=styles) for _ in range(2))


@kernel_case
def layer_norm(d):
    return Call(norm_inputs(d, 1), {"eps": 1e-2})


@kernel_case
def dropout(d):
    shape = row_shape(d)
    rate = d.pick(st.sampled_from([0.3, 0.1, 0.9, 1.0]), (0.3, 1.0), lambda large: 0.1)
    return Call((d.values(*shape, styles=s.STYLES), npx.DropoutSpec(rate, d.pick(keys(), (KEY,), lambda large: KEY))))


@kernel_case
def dropout_residual_norm(d):
    return Call(norm_inputs(d, 2), {**d.dropout(), "eps": 1e-2})


@kernel_case
def linear(d):
    n, i, o = d.pick(
        st.tuples(size(5, 0), size(), size()),
        ((5, 3, 1), (130, 7, 31), (3, 8, 264), (0, 3, 4), (2, 5, 513)),
        lambda large: (large.tokens, large.d_model, large.d_ff),
    )
    activation = d.option("relu", None)
    bias = d.option(True, False)
    return Call((d.values(n, i), d.values(i, o), d.values(o) if bias else None, activation))


@kernel_case
def embedding(d):
    shape, n_rows, width = d.pick(
        st.tuples(s.shapes(max_dims=3, max_side=4), size(5), size()),
        (((7,), 5, 1), ((2, 3), 5, 31), ((9,), 32, 513), ((2, 0), 5, 3), ((), 5, 3), ((200,), 5, 31), ((30,), 3, 8)),
        lambda large: ((large.tokens,), large.vocab, large.d_model),
    )
    ids = d.ids(n_rows, *shape) if n_rows < 3 else d.ids(n_rows - 1, *shape)  # the last row is not used
    table = d.values(n_rows, width)
    scale = d.option(1.0, 2.5)
    is_plain = d.option(False, True)
    if is_plain or not shape:
        return Call((table, ids, scale))
    length = ids.shape[-1]
    return Call((table, ids, scale, d.values(length, width)), d.dropout())


@kernel_case
def attention(d):
    sizes = ((2, 5, 7, 2, 16, 16), (1, 3, 33, 1, 64, 64), (2, 0, 3, 1, 16, 16), (1, 20, 17, 2, 6, 3))
    b, t, length, h, d_k, d_v, spec = d.pick(
        st.composite(lambda draw: attention_sizes(draw, min_side=0))(),
        [(*size, None) for size in sizes],
        lambda large: large.attention(),
    )
    if spec is None:
        name = d.option("masked", "all", "plain")
        spec = {
            "plain": lambda: AttentionSpec(),
            "masked": lambda: AttentionSpec(constant_bias=npx.mask_bias(d.masks(b, 1, max(t, 1), length)[:, :, :t])),
            "all": lambda: AttentionSpec(True, np.linspace(length, 1, b).astype(int), d.values(h, 1, length), 10.0),
        }[name]()
    arrays = d.values(b, t, h, d_k), d.values(b, length, h, d_k), d.values(b, length, h, d_v)
    gradient_options = {}
    if d.option(False, True):  # views of one array, as merged projections return them
        merged = d.writable(b, length, h * (d_k + d_v))
        gk = merged[..., : h * d_k].reshape(b, length, h, d_k)
        gv = merged[..., h * d_k :].reshape(b, length, h, d_v)
        gradient_options = {"out": (d.writable(b, t, h, d_k), gk, gv)}
    if spec.constant_bias is not None:
        gradient_options["return_bias_grad"] = True
    return Call((*arrays, spec), d.dropout(), gradient_options=gradient_options)


def loss_options(d, n, classes):
    """Return targets, some of them padding, and the options of the loss."""
    pad = d.pick(st.sampled_from([0, 2]), (2,), lambda large: 0)
    targets = np.array(d.ids(classes, n)) if isinstance(d, Edges) else d.ids(classes, n)
    if isinstance(d, Edges):
        targets[: n // 3] = pad
    smoothing = npx.LabelSmoothing(d.option(0.1, 0.0), d.option(*npx.SMOOTHING_CLASSES), pad)
    return targets, {"smoothing": smoothing, "grad": d.option(True, False)}


@kernel_case
def cross_entropy(d):
    n, classes = d.pick(
        st.tuples(size(6, 0), size(6, min_side=4)),
        ((6, 5), (5, 33), (3, 1300), (0, 9)),
        lambda large: (large.tokens, large.vocab),
    )
    targets, options = loss_options(d, n, classes)
    return Call((d.values(n, classes, styles=s.STYLES, scale=3), targets), options)


@kernel_case
def linear_cross_entropy(d):
    n, width, classes = d.pick(
        st.tuples(size(6, 0), size(), size(6, min_side=4)),
        ((7, 9, 33), (3, 5, 1300), (0, 3, 9), (4, 5, 6)),
        lambda large: (large.tokens, large.d_model, large.vocab),
    )
    targets, options = loss_options(d, n, classes)
    return Call((d.values(n, width), d.values(classes, width), targets), options)


@kernel_case
def adam(d):
    """Draw parameters in float32 or float64; `Edges` of a 16-bit dtype add a copy of the parameters in that dtype."""
    half = d.dtype if d.dtype.itemsize == 2 else None
    if half is not None:
        d.dtype = np.dtype("float32")
    n = d.pick(size(40, 0), (0, 1, 33, 2051), lambda large: large.parameters)
    p, m, v = (d.writable(n) for _ in range(3))
    step = d.pick(st.integers(1, 9999), (3,), lambda large: 3)
    options = {"weight_decay": d.option(0.0, 0.1), "grad_scale": d.option(1.0, 0.25)}
    options |= d.option({"eps": 1e-3}, {"eps": 1e-3, "eps_before_correction": True})
    is_mixed = half is not None or d.pick(st.booleans(), (False,), lambda large: False)
    rate = d.pick(st.sampled_from([0.5, 0.0]), (0.5,), lambda large: 1e-4)
    numbers = npx.adam_coefficients(step, rate, **options)
    return Call(
        (p, d.values(n), m, abs(v), numbers), {"p_compute": npx.zeros(n, half or "float16")} if is_mixed else {}
    )


@st.composite
def top_k_sizes(draw):
    columns = draw(size(9))
    excluded = draw(st.sets(st.integers(0, columns - 1), max_size=2))
    return draw(size()), columns, draw(st.integers(1, columns)), tuple(sorted(excluded))


@kernel_case
def log_softmax_top_k(d):
    n, columns, k, excluded = d.pick(
        top_k_sizes(),
        ((3, 7, 4, (0, 1)), (2, 2600, 4, (0, 5)), (1, 5, 5, ()), (0, 9, 2, (0,))),
        lambda large: (128, large.vocab, 4, (0, 1)),
    )
    return Call((d.values(n, columns, styles=s.STYLES), k, excluded))


def recurrent_inputs(d, n_gates, n_states):
    """Return z, w and, for a GRU, b; and the state."""
    steps, batch, width = d.pick(
        st.tuples(size(3, 0), size(3, 0), size(3)),
        ((3, 2, 5), (1, 1, 1), (4, 9, 40), (0, 2, 3), (2, 0, 3)),
        lambda large: (large.length, large.batch, large.d_model),
    )
    z, w = d.values(steps, batch, n_gates * width), d.values(width, n_gates * width)
    w = (w / width).astype(d.dtype)  # larger weights would amplify rounding errors from step to step
    b = () if n_gates == 4 else (d.values(width),)
    return z, w, *b, d.writable(n_states, batch, width)


@kernel_case
def lstm(d):
    return Call(recurrent_inputs(d, 4, 2))


@kernel_case
def gru(d):
    return Call(recurrent_inputs(d, 3, 1))
