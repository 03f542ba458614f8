"""Cases of the small operations (autograd/operations.py)."""

from hypothesis import strategies as st

import npx
from autograd.testing import strategies as s
from tests.cases.base import CASES, Call, case, size


def unary(styles=s.STYLES, positive=False):
    return (s.positive(s.shapes(max_side=3)) if positive else s.arrays(s.shapes(max_side=3), styles)).map(
        lambda x: Call((x,))
    )


@st.composite
def binary(draw, styles=s.SMOOTH, positive=False):
    """Two arrays that broadcast, or an array and a number on either side."""
    first, second = draw(s.broadcastable(max_side=3))
    a, b = draw(s.arrays(first, styles)), draw(s.positive(second) if positive else s.arrays(second, styles))
    number = draw(st.sampled_from([None, None, None, 2, 0.75]))
    return Call((a, b)) if number is None else Call(draw(st.sampled_from([(a, number), (number, b)])))


@st.composite
def reduction(draw, styles=s.STYLES, least=0):
    x = draw(s.arrays(s.shapes(min_side=least, max_side=3), styles))
    return Call((x,), {"axis": draw(s.axes(x.ndim)), "keepdims": draw(st.booleans())})


for name in ("negative", "tanh", "sigmoid", "relu", "absolute"):
    CASES[f"operation {name}"] = unary()
for name in ("log", "sqrt"):
    CASES[f"operation {name}"] = unary(positive=True)
CASES["operation exp"] = unary(("plain", "normal", "tiny", "zeros"))
for name in ("add", "subtract", "multiply", "maximum", "minimum"):
    CASES[f"operation {name}"] = binary(s.STYLES)
CASES["operation divide"] = binary(positive=True)
CASES["operation sum"] = reduction()
CASES["operation mean"] = reduction(least=1)
CASES["operation max"] = CASES["operation min"] = reduction(least=1)


@case
def operation_power(draw):
    exponent = draw(st.sampled_from([2, 0, 1, 3, -1, 0.5, -1.5]))
    return Call((draw(s.positive(s.shapes(max_side=3))), exponent))


@case
def operation_astype(draw):
    return Call((draw(s.arrays(s.shapes(max_side=3))), "float64"), float32=False)


@case
def operation_where(draw):
    *shapes, mask_shape = draw(s.broadcastable(3, max_side=3))
    mask = draw(s.masks(mask_shape, none=False))
    return Call((mask, *(draw(s.arrays(shape, s.STYLES)) for shape in shapes)))


@case
def operation_matmul(draw):
    n, m, k = (draw(size(least=0)) for _ in range(3))
    if draw(st.booleans()):  # square, where a factor not transposed does not show by its shape
        n = m = k = max(2, n)
    first, second = draw(s.broadcastable(max_dims=2, max_side=2))
    matrices = (n, m), (m, k)
    shapes = draw(st.sampled_from([matrices, matrices, ((m,), (m, k)), ((n, m), (m,)), ((m,), (m,)), None]))
    a, b = shapes or ((*first, n, m), (*second, m, k))
    return Call((draw(s.arrays(a)), draw(s.arrays(b))))


@case
def operation_reshape(draw):
    x = draw(s.arrays(s.shapes(min_dims=1, min_side=1, max_side=3)))
    return Call((x, draw(st.sampled_from([(-1,), x.shape[::-1], (1, *x.shape), (x.shape[0], -1)]))))


@case
def operation_transpose(draw):
    x = draw(s.arrays(s.shapes(max_dims=4, max_side=3)))
    return Call((x, draw(s.orders(x.ndim))))


@case
def operation_swapaxes(draw):
    x = draw(s.arrays(s.shapes(min_dims=1, max_side=3)))
    return Call((x, *(draw(st.integers(-x.ndim, x.ndim - 1)) for _ in range(2))))


@case
def operation_broadcast_to(draw):
    first, second = draw(s.broadcastable(max_side=3))
    return Call((draw(s.arrays(first)), npx.broadcast_shapes(first, second)))


@case
def operation_getitem(draw):
    """A slice, a number, an ellipsis, a new axis, integers with repeats, a mask, and a mixture."""
    x = draw(s.arrays(s.shapes(min_dims=1, min_side=1, max_side=4)))
    n = len(x)
    index = draw(
        s.indices(n)
        | s.masks((n,), none=False)
        | st.integers(-n, n - 1)
        | st.sampled_from([slice(None, None, -1), slice(1, None, 2), (Ellipsis, 0), (None, slice(1)), (0, None)])
        | s.indices(n, (3,)).map(lambda i: (i, Ellipsis))
        | s.indices(n, (2,)).map(lambda i: npx.to_host(i).tolist())
    )
    return Call((x, index))


@case
def operation_concatenate(draw):
    shape = list(draw(s.shapes(min_dims=1, max_side=3)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    arrays = []
    for length in draw(st.sampled_from([[1, 1], [2, 2, 2]]) | st.lists(st.integers(0, 3), min_size=1, max_size=3)):
        shape[axis] = length
        arrays.append(draw(s.arrays(tuple(shape))))
    return Call(tuple(arrays), {"axis": axis})


@case
def operation_stack(draw):
    shape = draw(s.shapes(max_dims=2, max_side=3))
    arrays = [draw(s.arrays(shape)) for _ in range(draw(size()))]
    return Call(tuple(arrays), {"axis": draw(st.integers(-len(shape) - 1, len(shape)))})
