"""Hypothesis strategies for inputs that reveal wrong gradients, ordered so that failures shrink to simple examples.

For speed, numbers come from a seed and a style instead of being drawn one by one. A failing example shrinks to the
smallest shape, the style "plain" and seed 0. Empty arrays and single numbers are drawn as well.
"""

from typing import Any

import npx
from autograd.testing.rules import with_layout
from npx import Array

try:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp
except ImportError as error:  # pragma: no cover
    from npx.messages import pip_install

    raise ImportError(
        f"autograd.testing.strategies: the package hypothesis is not installed; try {pip_install('check')}"
    ) from error

STYLES = ("plain", "normal", "ties", "large", "tiny", "zeros")  # the default; "overflow" makes exp overflow
SMOOTH = ("plain", "normal", "large", "tiny")  # styles without equal values, where some operations have a kink
LAYOUTS = ("plain", "column-major", "reversed", "every second", "read-only")


def sides(max_side: int = 3, min_side: int = 0) -> st.SearchStrategy[int]:
    """Draw the length of an axis, from `min_side` to `max_side`; lengths of 0 are rarer than the others."""
    return st.sampled_from([*range(max(1, min_side), max_side + 1)] * 3 + [0] * (min_side == 0))


@st.composite
def shapes(draw: st.DrawFn, min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 4) -> Any:
    """Draw a shape: an ordinary one, an empty one, or a square, where a wrong axis causes no shape error.

    Args:
        min_dims, max_dims: the number of axes.
        min_side, max_side: the lengths of the axes; min_side 0 permits empty shapes.
    """
    is_square = draw(st.sampled_from((False, False, True)))
    ndim = draw(st.integers(min_dims, max_dims))
    shape = tuple(draw(sides(max_side, min_side)) for _ in range(ndim))
    # Both kinds take the same number of draws, so a failing example shrinks to the smallest shape.
    return (min(max_side, max(2, shape[0])),) * ndim if is_square and ndim else shape


def broadcastable(n: int = 2, max_dims: int = 3, max_side: int = 4, min_side: int = 0) -> st.SearchStrategy[Any]:
    """Draw a tuple of n shapes that broadcast together; max_dims, min_side, max_side as for `shapes`."""

    def with_min_side(min_side: int) -> st.SearchStrategy[Any]:
        return hnp.mutually_broadcastable_shapes(num_shapes=n, max_dims=max_dims, max_side=max_side, min_side=min_side)

    nonempty, any_shapes = with_min_side(max(1, min_side)), with_min_side(min_side)
    return (nonempty | nonempty | nonempty | any_shapes).map(lambda result: result.input_shapes)


def orders(ndim: int) -> st.SearchStrategy[Any]:
    """Draw an `axes` argument of transpose: None, a permutation, or a rotation, which is not its own inverse."""
    rotation = st.integers(1, max(1, ndim - 1)).map(lambda k: tuple((i + k) % max(1, ndim) for i in range(ndim)))
    negative = rotation.map(lambda axes: tuple(i - ndim for i in axes))
    return rotation | st.permutations(range(ndim)).map(tuple) | negative | st.none()


def axes(ndim: int) -> st.SearchStrategy[Any]:
    """Draw an `axis` argument for `ndim` dimensions: None, an integer, or a tuple."""
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
    """Draw a floating-point array.

    Args:
        shape: a shape, or a strategy for shapes.
        styles: the styles of `numbers` to choose from.
        layouts: the memory layouts of `with_drawn_layout` to choose from.
    """
    shape = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    style = draw(st.sampled_from(styles))
    seed = draw(st.integers(0, 999))
    return with_drawn_layout(npx.asarray(numbers(shape, style, seed).astype(dtype)), draw(st.sampled_from(layouts)))


def numbers(shape: tuple[int, ...], style: str, seed: int = 0) -> Array:
    """Return float64 numbers of a style; "plain" ones are distinct odd multiples of 1/8 that differ by 1/4.

    The styles "normal", "tiny" (1e-3), "large" (30), "overflow" (800) and "zeros" scale standard normal numbers. The
    numbers of the style "ties" are -1 or 1.
    """
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
    """Draw an array of numbers of at least 1/2, for logarithms, roots and denominators; shape as for `arrays`."""
    return arrays(shape, styles=("plain", "normal")).map(lambda x: npx.asarray(0.5 + abs(x)))


def with_drawn_layout(x: Array, layout: str) -> Array:
    """Return the same values in one of the memory `LAYOUTS`; "read-only" arrays cannot be written to."""
    if layout == "read-only":
        x = x.copy()
        x.flags.writeable = False
    return x if layout in ("read-only", "plain") else with_layout(x, layout)


@st.composite
def indices(draw: st.DrawFn, n: int, shape: Any = None) -> Array:
    """Draw int64 indices in [0, n), n >= 1: all equal, arbitrary, or only 0 and 1.

    Args:
        shape: the shape of the array; None draws a shape with up to two axes.
    """
    shape = draw(shapes(max_dims=2) if shape is None else st.just(shape))
    style = draw(st.sampled_from(("equal", "arbitrary", "few")))
    seed = draw(st.integers(0, 999))
    if style == "equal":
        return npx.full(shape, seed % n, "int64")
    upper = n if style == "arbitrary" else min(n, 2)
    return npx.random.uniform(npx.Key(seed, 0, 1), shape, "float64", high=upper).astype("int64")


@st.composite
def masks(draw: st.DrawFn, shape: tuple[int, ...], allow_none: bool = True) -> Array | None:
    """Draw a boolean mask (True = attend), which may have rows that are all False.

    Args:
        shape: the shape of the mask.
        allow_none: whether to draw None (no mask) as well.
    """
    styles = ("none", "all", "random", "first row masked", "random", "nothing")
    style = draw(st.sampled_from(styles if allow_none else styles[1:]))
    seed = draw(st.integers(0, 999))
    if style == "none":
        return None
    if style in ("all", "nothing"):
        return npx.full(shape, style == "all", "bool")
    mask = npx.asarray(npx.random.uniform(npx.Key(seed, 0, 2), shape, "float64") < 0.6)
    if style == "first row masked" and mask.size and shape:
        mask.reshape(-1, shape[-1])[0] = False
    return mask


def lengths(batch: int, longest: int) -> st.SearchStrategy[Any]:
    """Draw a list of `batch` sequence lengths, from 1 to `longest`."""
    return st.lists(st.integers(1, longest), min_size=batch, max_size=batch)
