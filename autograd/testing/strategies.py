"""Hypothesis strategies for the inputs that break gradients: simplest first, so that failures shrink well.

Numbers come from a seed and a style instead of one by one: drawing is fast, and a failing example still shrinks to the
smallest shape, the plainest style and seed 0. Empty and one-element cases are drawn beside ordinary ones.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd import operations  # noqa: F401  fills the registry
from autograd.engine import OPERATIONS, Tensor
from autograd.testing.rules import relaid
from npx import Array

try:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "autograd.testing.strategies: expected hypothesis; it is not installed; try pip install hypothesis"
    ) from error

# One more, "overflow", is beyond what exp can write in float64; it is drawn only where it is asked for.
STYLES = ("plain", "normal", "ties", "large", "tiny", "zeros")
SMOOTH = ("plain", "normal", "large", "tiny")  # without ties, for operations that have a kink there
LAYOUTS = ("plain", "column-major", "reversed", "every second", "read-only")


def sides(most: int = 3, least: int = 0) -> st.SearchStrategy[int]:
    """Lengths of an axis: 0, if `least` allows it, in about one of eight."""
    return st.sampled_from([*range(max(1, least), most + 1)] * 3 + [0] * (least == 0))


@st.composite
def shapes(draw: st.DrawFn, min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 4) -> Any:
    """Shapes: ordinary ones; square ones, in which a wrong axis does not show by a wrong shape; empty ones."""
    square, ndim = draw(st.sampled_from((False, False, True))), draw(st.integers(min_dims, max_dims))
    shape = tuple(draw(sides(max_side, min_side)) for _ in range(ndim))
    # As many draws for either: the shortest failing example is then the smallest shape.
    return (min(max_side, max(2, shape[0])),) * ndim if square and ndim else shape


def broadcastable(n: int = 2, max_dims: int = 3, max_side: int = 4, min_side: int = 0) -> st.SearchStrategy[Any]:
    """n shapes that broadcast together, a tuple of them."""
    some, empty = (
        hnp.mutually_broadcastable_shapes(num_shapes=n, max_dims=max_dims, max_side=max_side, min_side=least)
        for least in (max(1, min_side), min_side)
    )
    return (some | some | some | empty).map(lambda found: found.input_shapes)


def orders(ndim: int) -> st.SearchStrategy[Any]:
    """An `axes` argument of transpose: None, a permutation, or a rotation, which is not its own inverse."""
    turned = st.integers(1, max(1, ndim - 1)).map(lambda k: tuple((i + k) % max(1, ndim) for i in range(ndim)))
    signed = turned.map(lambda t: tuple(i - ndim for i in t))
    return turned | st.permutations(range(ndim)).map(tuple) | signed | st.none()


def axes(ndim: int) -> st.SearchStrategy[Any]:
    """An `axis` argument for `ndim` dimensions: None, a number, or a tuple."""
    if not ndim:
        return st.none()
    return st.none() | st.integers(-ndim, ndim - 1) | hnp.valid_tuple_axes(ndim)


@st.composite
def arrays(
    draw: st.DrawFn,
    shape: Any,
    styles: tuple[str, ...] = SMOOTH,
    dtype: str = "float64",
    layouts: tuple[str, ...] = LAYOUTS,
) -> Array:
    """A floating array of `shape` (or of a drawn one): a style of numbers in some memory layout."""
    shape = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    style, seed = draw(st.sampled_from(styles)), draw(st.integers(0, 999))
    return laid_out(npx.asarray(numbers(shape, style, seed).astype(dtype)), draw(st.sampled_from(layouts)))


def numbers(shape: tuple[int, ...], style: str, seed: int = 0) -> Array:
    """float64 numbers of a style; "plain" ones are distinct multiples of 1/4, away from 0 and from each other."""
    key = npx.Key(seed, 0, 0)
    size = int(npx.prod(npx.asarray(shape, dtype="int64")))
    if style == "plain":
        order = npx.argsort(npx.random.uniform(key, (size,), "float64"))
        return ((order - size // 2 + 0.5) / 4).reshape(shape)
    normal = npx.random.normal(key, shape, "float64")
    if style == "ties":
        return npx.sign(normal)
    scale = {"normal": 1.0, "large": 30.0, "tiny": 1e-3, "zeros": 0.0, "overflow": 800.0}[style]
    return normal * scale


def positive(shape: Any) -> st.SearchStrategy[Any]:
    """Numbers from 1/2 up: for logarithms, roots and denominators."""
    return arrays(shape, styles=("plain", "normal")).map(lambda x: npx.asarray(0.5 + abs(x)))


def laid_out(x: Array, layout: str) -> Array:
    """The same values in a memory layout; "read-only" ones cannot be written to."""
    if layout == "read-only":
        x = x.copy()
        x.flags.writeable = False
    return x if layout in ("read-only", "plain") else relaid(x, layout)


@st.composite
def indices(draw: st.DrawFn, n: int, shape: Any = None) -> Array:
    """Integers in [0, n): all different, arbitrary, or all the same; n >= 1."""
    shape = draw(shapes(max_dims=2) if shape is None else st.just(shape))
    style, seed = draw(st.sampled_from(("same", "arbitrary", "few"))), draw(st.integers(0, 999))
    if style == "same":
        return npx.full(shape, seed % n, "int64")
    upper = n if style == "arbitrary" else min(n, 2)
    return npx.random.uniform(npx.Key(seed, 0, 1), shape, "float64", high=upper).astype("int64")


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...], none: bool = True) -> Array | None:
    """Booleans of `shape`, True = takes part, rows that are all False among them; also None, if `none`."""
    styles = ("none", "all", "random", "first row out", "random", "nothing")
    style, seed = draw(st.sampled_from(styles if none else styles[1:])), draw(st.integers(0, 999))
    if style == "none":
        return None
    if style in ("all", "nothing"):
        return npx.full(shape, style == "all", "bool")
    mask = npx.asarray(npx.random.uniform(npx.Key(seed, 0, 2), shape, "float64") < 0.6)
    if style == "first row out" and mask.size and shape:
        mask.reshape(-1, shape[-1])[0] = False
    return mask


def lengths(batch: int, longest: int) -> st.SearchStrategy[Any]:
    """Lengths of `batch` sequences, from 1 to `longest`."""
    return st.lists(st.integers(1, longest), min_size=batch, max_size=batch)


# Steps of expressions: operations of the registry, looked up when they run, kept to where they are smooth and bounded.
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda x: OPERATIONS["tanh"](x),
    "sigmoid": lambda x: OPERATIONS["sigmoid"](x),
    "negative": lambda x: OPERATIONS["negative"](x),
    "power": lambda x: OPERATIONS["power"](OPERATIONS["tanh"](x), 2),
    "exp": lambda x: OPERATIONS["exp"](OPERATIONS["tanh"](x)),
    "log": lambda x: OPERATIONS["log"](x * x + 1.0),
    "sqrt": lambda x: OPERATIONS["sqrt"](x * x + 1.0),
    "sum": lambda x: OPERATIONS["sum"](x, axis=-1, keepdims=True),
    "mean": lambda x: OPERATIONS["mean"](x, axis=0, keepdims=True),
    "getitem": lambda x: OPERATIONS["getitem"](x, slice(None, None, -1)),
    "repeats": lambda x: OPERATIONS["getitem"](x, [0, -1, 0]).sum(axis=0, keepdims=True),
    "reshape": lambda x: OPERATIONS["reshape"](OPERATIONS["reshape"](x, (-1,)), x.shape),
    "transpose": lambda x: OPERATIONS["transpose"](OPERATIONS["transpose"](x)),
    "swapaxes": lambda x: OPERATIONS["swapaxes"](OPERATIONS["swapaxes"](x, 0, 1), 0, 1),
    "softmax": lambda x: OPERATIONS["softmax"](x),
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda a, b: OPERATIONS["add"](a, b),
    "subtract": lambda a, b: OPERATIONS["subtract"](a, b),
    "multiply": lambda a, b: OPERATIONS["multiply"](a, b),
    "divide": lambda a, b: OPERATIONS["divide"](a, b * b + 1.0),
    "matmul": lambda a, b: OPERATIONS["matmul"](a, b.transpose()) if a.shape == b.shape == (len(a),) * 2 else a * b,
    "concatenate": lambda a, b: OPERATIONS["concatenate"](a * b, b * a, axis=0).sum(axis=0, keepdims=True),
}


class Expression:
    """A random function of Tensors: steps that each apply an operation to earlier values, several of them shared."""

    def __init__(self, steps: list[tuple[str, int, int]], inputs: int) -> None:
        self.steps, self.inputs = steps, inputs

    def __call__(self, *tensors: Tensor) -> Tensor:
        values = list(tensors)
        for name, i, j in self.steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[name](a) if name in UNARY else BINARY[name](a, b))
        result = values[-1].sum()
        for value in values[:-1]:  # every value counts, so that no gradient is trivially zero
            result = result + value.mean() * 0.5 if value.size else result
        return result

    def __repr__(self) -> str:
        return f"Expression({self.steps}, {self.inputs})"


@st.composite
def expressions(draw: st.DrawFn, max_steps: int = 8) -> tuple[Expression, list[Any]]:
    """A random small expression and inputs for it: composition finds what single operations hide."""
    n = draw(st.integers(1, 3))
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    inputs = [
        draw(arrays(draw(st.sampled_from([(rows, columns), (1, columns), (rows, 1)])), styles=("plain", "normal")))
        for _ in range(n)
    ]
    one = st.tuples(st.sampled_from([*BINARY, *UNARY]), st.integers(0, 9), st.integers(0, 9))
    return Expression(draw(st.lists(one, min_size=1, max_size=max_steps)), n), [0.5 * x for x in inputs]
