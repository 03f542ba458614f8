"""Cases of the small operations (autograd/operations.py): drawn calls, then edges."""

from hypothesis import strategies as st

import npx
from autograd.testing import strategies as s
from tests.cases.base import CASES, REAL, Call, array, case, edges, sample, size


def unary(styles=s.STYLES, positive=False):
    """Draw a call with one array."""
    return (s.positive(s.shapes(max_side=3)) if positive else s.arrays(s.shapes(max_side=3), styles)).map(
        lambda x: Call((x,))
    )


@st.composite
def binary(draw, styles=s.SMOOTH, positive=False):
    """Draw a call with two arrays that broadcast, or with an array and a number in either order."""
    first, second = draw(s.broadcastable(max_side=3))
    a = draw(s.arrays(first, styles))
    b = draw(s.positive(second) if positive else s.arrays(second, styles))
    number = draw(st.sampled_from([None, None, None, 2, 0.75]))
    return Call((a, b)) if number is None else Call(draw(st.sampled_from([(a, number), (number, b)])))


@st.composite
def reduction(draw, styles=s.STYLES, min_side=0):
    """Draw a call with an axis and keepdims."""
    x = draw(s.arrays(s.shapes(min_side=min_side, max_side=3), styles))
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
CASES["operation mean"] = reduction(min_side=1)
CASES["operation max"] = CASES["operation min"] = reduction(min_side=1)


@case
def operation_power(draw):
    exponent = draw(st.sampled_from([2, 0, 1, 3, -1, 0.5, -1.5]))
    return Call((draw(s.positive(s.shapes(max_side=3))), exponent))


@case
def operation_astype(draw):
    return Call((draw(s.arrays(s.shapes(max_side=3))), "float64"), compare_float32=False)


@case
def operation_where(draw):
    *shapes, mask_shape = draw(s.broadcastable(3, max_side=3))
    mask = draw(s.masks(mask_shape, allow_none=False))
    return Call((mask, *(draw(s.arrays(shape, s.STYLES)) for shape in shapes)))


@case
def operation_matmul(draw):
    n, m, k = (draw(size(min_side=0)) for _ in range(3))
    if draw(st.booleans()):  # square, so that a missing transpose does not change a shape
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
    """Draw an index: a slice, an integer, an ellipsis, a new axis, repeated integers, a mask, or a mixture."""
    x = draw(s.arrays(s.shapes(min_dims=1, min_side=1, max_side=4)))
    n = len(x)
    index = draw(
        s.indices(n)
        | s.masks((n,), allow_none=False)
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


# Edges

POSITIVE = 0.0, npx.inf
EXPONENTS = 0, 1, 2, 3, 4, 5, -1, -2, 0.5, 1.5, -1.5
SIGNS = -2.5, -1.0, -0.3, 0.3, 1.0, 2.5
TINY, HUGE = 1e-6, 1e6
# Shapes of equal and of different rank; axes of length 1 reveal a sum over too many or too few axes.
PAIRS = (
    ((3, 1, 2), (2,)),
    ((3, 1, 2), ()),
    ((3, 1, 2), (1, 1, 1, 1)),
    ((1,), (2, 1, 3)),
    ((2, 1), (1, 3)),
    ((1, 1), (1,)),
    ((2, 3), (2, 3)),
)
AXES = None, 0, -1, -3, 1, (0, -1), (-3, 2), (1,), (-1, 0, 1), ()


def unary_edges(*arrays):
    return lambda: (Call((npx.asarray(x, "float64"),)) for x in arrays)


for name in ("negative", "absolute", "relu"):
    edges(f"operation {name}", REAL)(unary_edges(SIGNS, [TINY, -TINY], [HUGE, -HUGE], [0.0, -0.0, 1.0], 0.5))
for name in ("tanh", "sigmoid"):
    edges(f"operation {name}", REAL)(
        unary_edges(SIGNS, [TINY, -TINY], [800.0, -800.0], [12.0, -12.0], [0.0, -0.0, 0.5], 0.5)
    )
for name in ("log", "sqrt"):
    edges(f"operation {name}", POSITIVE)(
        unary_edges([0.3, 1.0, 7.0], [TINY, 2 * TINY], [1e-3, 2e-3], [1e4, 3e4], [HUGE, 2 * HUGE])
    )


@edges("operation exp")
def exp_edges():
    yield Call((array(*SIGNS, 0.0),), domain=(-80.0, 80.0))
    for ends in ([6.0, 9.0], [-9.0, -6.0], [85.0, 88.0], [-85.0, -80.0]):
        yield Call((npx.asarray(ends),))
    for end in (700.0, 709.0, -700.0):  # beyond float32
        yield Call((array(end),), compare_float32=False, domain=(-745.0, 709.7))


@edges("operation power")
def power_edges():
    for n in EXPONENTS:
        is_integer = n == int(n)
        domain = None if is_integer else POSITIVE
        yield Call((array(0.3, 1.0, 2.5), n), domain=domain)
        yield Call((array(1e-3, 2e-3), n), domain=domain)
        yield Call((array(3e3, 1e4), n), compare_float32=abs(n) < 4, domain=domain)
        if is_integer:
            yield Call((array(*SIGNS), n))
        if is_integer and n >= 0:
            yield Call((array(0.0, -0.0, 1.0), n))


def pairs(a_style="normal", b_style="normal"):
    """Yield calls with two arrays of each of `PAIRS`, in both orders."""
    for first, second in PAIRS:
        yield Call((sample(*first, style=a_style), sample(*second, style=b_style, seed=1)))
        if first != second:
            yield Call((sample(*second, style=a_style), sample(*first, style=b_style, seed=1)))


def numbers(*values):
    """Yield calls with an array and a number, in both orders."""
    for number in values:
        yield Call((array(*SIGNS), number))
        yield Call((number, array(*SIGNS)))


def sum_edges():
    yield from pairs()
    yield from numbers(-2, 0, 0.75)


def product_edges():
    yield from sum_edges()
    for scale in (1e-4, 1e4):
        yield Call((scale * sample(3), sample(3, seed=1)))
        yield Call((sample(3), scale * sample(3, seed=1)))
    yield Call((array(0.0, 2.0, 0.0), array(3.0, 0.0, 0.0)))


edges("operation add")(sum_edges)
edges("operation subtract")(sum_edges)
edges("operation multiply")(product_edges)


@edges("operation divide")
def divide_edges():
    yield from pairs(b_style="plain")
    yield from numbers(-2, 0.75)
    for magnitude in (1e-3, 0.03, 1.0, 1e3, 1e4):
        yield Call((sample(4), magnitude * array(-1.0, -2.0, 1.5, 3.0)))
    yield Call((array(0.0, 0.0), array(-2.0, 2.0)))


def choice_edges():
    yield from pairs()
    yield from numbers(1.0, -0.3, 0)  # ties with one of them
    yield from pairs(a_style="ties", b_style="ties")
    yield Call((array(0.0, -0.0), array(0.0, 0.0)))
    yield Call((array(1e-6, 3e-6), array(2e-6, 2e-6)))


edges("operation maximum", REAL)(choice_edges)
edges("operation minimum", REAL)(choice_edges)


def reduction_edges(*styles):
    def calls():
        for style in styles:
            for axis in AXES:
                for keepdims in (False, True):
                    yield Call((sample(2, 3, 2, style=style),), {"axis": axis, "keepdims": keepdims})
        yield Call((sample(1, 3, 1),), {"axis": (0, -1), "keepdims": False})
        yield Call((sample(1, 3, 1),), {"axis": 1, "keepdims": True})
        yield Call((sample(2, 1),), {"axis": 1, "keepdims": False})
        for axis in (0, 1, -2):  # a square, in which every axis has the same length
            yield Call((sample(3, 3),), {"axis": axis, "keepdims": axis == 1})
        yield Call((sample(),), {})

    return calls


edges("operation sum")(reduction_edges("normal"))
edges("operation mean")(reduction_edges("normal"))


def extreme_edges():
    yield from reduction_edges("normal", "ties")()
    for near in ([1.0, 1.0005, 1.0, 0.3], [-1.0, -1.0005, -1.0, -0.3]):
        yield Call((npx.asarray(near),), {"axis": 0})


edges("operation max")(extreme_edges)
edges("operation min")(extreme_edges)


@edges("operation astype")
def astype_edges():
    for source in ("float64", "float32"):
        for dtype in ("float64", "float32"):
            yield Call((sample(2, 3).astype(source), dtype), compare_float32=False, output_dtype=dtype)
            yield Call((sample().astype(source), dtype), compare_float32=False, output_dtype=dtype)


@edges("operation where")
def where_edges():
    mask = npx.asarray([[True], [False], [True]])
    for m in (mask, mask[:, 0], npx.asarray(True), npx.asarray(False), npx.zeros((2, 3, 1), "bool"), mask[None]):
        for first, second in (((3, 3), (3, 3)), ((3,), ()), ((1, 3), (3, 1)), ((2, 1, 1), (1, 3))):
            yield Call((m, sample(*first), sample(*second, seed=1)))
    yield Call((mask, sample(3, 1), 0.5))
    yield Call((mask, -2, sample(3, 1)))


@edges("operation matmul")
def matmul_edges():
    matrices = "23@34 22@22 20@03 223@32 23@432 2123@332 122@322 322@122"
    for pair in f"{matrices} 3@3 1@1 3@32 23@3 3@432 423@3 3@2132 2123@3".split():
        a, b = ([int(n) for n in shape] for shape in pair.split("@"))
        yield Call((sample(*a), sample(*b, seed=1)))
    for scale in (1e-3, 1e3):
        yield Call((scale * sample(2, 3), sample(3, 2, seed=1)))


@edges("operation reshape")
def reshape_edges():
    shapes = ((2, 3), (3, 2)), ((2, 3), -1), ((4, 3), (2, -1)), ((1,), ()), ((), (1, 1)), ((2, 0), (0, 3))
    for shape, new_shape in shapes:
        yield Call((sample(*shape), new_shape))


@edges("operation transpose")
def transpose_edges():
    for axes in (None, (1, 2, 3, 0), (1, 3, 0, 2), (-3, -1, -4, -2), (-1, 0, 1, 2), (0, 1, 2, 3), [3, -2, 0, 1]):
        yield Call((sample(2, 3, 1, 4), axes))
        yield Call((sample(2, 2, 2, 2), axes))  # so that a wrong order has the right shape
    yield Call((sample(), ()))


@edges("operation swapaxes")
def swapaxes_edges():
    for first, second in ((0, -1), (-2, 0), (1, 1), (1, -2), (2, 0)):
        yield Call((sample(2, 3, 4), first, second))
        yield Call((sample(3, 3, 3), first, second))


@edges("operation broadcast_to")
def broadcast_to_edges():
    for shape, new_shape in (
        ((3, 1, 2), (2, 3, 4, 2)),
        ((), (2, 3)),
        ((1,), (3,)),
        ((1, 1), (2, 1, 3, 2)),
        ((2, 1), (2, 1)),
        ((3, 1), (1, 3, 1)),
        ((1, 2), (0, 2)),
    ):
        yield Call((sample(*shape), new_shape))


@edges("operation getitem")
def getitem_edges():
    x = sample(3, 4, 2)
    all_rows = slice(None)
    mask = npx.asarray([[True, False, True, True], [False] * 4, [True, True, False, False]])
    for index in (
        ([0, 2, 0], [1, 1, 1]),
        ([[0, 2], [2, 0]], [3, 3]),
        (slice(1, None), [0, 3, 0]),
        (all_rows, [0, 0, -4], [1, 1, 1]),
        ([0, 0, 1], all_rows, [1, 1, 0]),
        ([0, -3, 1], Ellipsis),  # 0 and -3 are the same index
        (0, [1, 1]),
        ([1, 1], 0),
        (Ellipsis, [1, 1, -1]),
        (None, [0, 0], None, slice(None, None, -2)),
        (Ellipsis, None, 0),
        -1,
        [-1, 0, -1, 2],
        npx.asarray([[2, 2], [0, 2]]),
        mask,
        npx.asarray([True, False, True]),
        (all_rows, npx.asarray([True, False, True, True]), [0, 0, 1]),
        npx.zeros((3, 4), "bool"),
        npx.asarray([], "int64"),
        (slice(2, 0, -1), slice(3, None, -2)),
        slice(1, 1),
        (),
        Ellipsis,
        None,
        (1, 2, 0),
    ):
        yield Call((x, index))


@edges("operation concatenate")
def concatenate_edges():
    for axis, along in ((0, (2, 1, 3)), (-1, (2, 0, 1)), (1, (0, 2)), (-2, (1, 1, 1)), (-3, (2, 2)), (2, (3,))):
        arrays = []
        for i, length in enumerate(along):
            shape = [2, 2, 2]
            shape[axis] = length
            arrays.append(sample(*shape, seed=i))
        yield Call(tuple(arrays), {"axis": axis})


@edges("operation stack")
def stack_edges():
    for axis in (0, 1, 2, -1, -2, -3):
        yield Call(tuple(sample(2, 2, seed=i) for i in range(3)), {"axis": axis})
    yield Call((sample(), sample(seed=1)), {"axis": -1})
    yield Call((sample(2, 0),), {"axis": 1})
