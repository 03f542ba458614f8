"""Cases of positions added to the scores as a bias: models/layers/{alibi,t5_positions,shaw_positions}.py."""

from hypothesis import strategies as st

from autograd.testing import strategies as s
from models.layers import AlibiBias, AlibiPositions, ShawBias, ShawPositions, T5Bias, T5Positions
from models.layers.positions import IdentityPositions
from tests.cases.base import CASES, Call, case, edges, packing, sample, size
from tests.cases.layers import draw_layer, layer_SinusoidalPositions, make_layer, position_edges
from tests.cases.neural import BOUNDED

LENGTHS = 2, 3, 1

for position_class in (IdentityPositions, AlibiPositions, T5Positions, ShawPositions):
    CASES[f"layer {position_class.__name__}"] = st.composite(layer_SinusoidalPositions)(layer_class=position_class)
    edges(f"layer {position_class.__name__}")(position_edges(position_class))


def draw_queries(draw, heads, d_k):
    """Draw queries (B, T, H, d_k) and a number of keys, at least T."""
    q = draw(s.arrays((draw(size(2)), draw(size(3)), heads, d_k), BOUNDED))
    return q, q.shape[1] + draw(st.integers(0, 4))


def bias_edges(layer):
    """Yield calls with as many keys as queries, calls with more keys, and packed calls."""
    for t, n_keys in ((6, 6), (1, 7), (2, 9), (1, 1)):
        yield Call((sample(2, t, 3, 2), n_keys), layer=layer)
    yield Call((sample(6, 3, 2), 3, packing(*LENGTHS)), layer=layer)


@case
def layer_AlibiBias(draw):
    heads = draw(size(6))
    return Call(draw_queries(draw, heads, 2), layer=AlibiBias(heads))


@case
def layer_T5Bias(draw):
    heads = draw(size(2))
    distance = draw(st.integers(3, 6))
    causal = draw(st.booleans())
    return Call(draw_queries(draw, heads, 2), layer=draw_layer(draw, T5Bias, heads, 4, distance, causal))


@case
def layer_ShawBias(draw):
    heads, d_k = draw(size(2)), draw(size(3))
    return Call(draw_queries(draw, heads, d_k), layer=draw_layer(draw, ShawBias, heads, d_k, draw(size(3))))


@case
def operation_relative_scores(draw):
    d_k, k = draw(size(3)), draw(size(3))
    q, n_keys = draw_queries(draw, draw(size(2)), d_k)
    return Call((q, draw(s.arrays((2 * k + 1, d_k), BOUNDED)), n_keys))


@edges("layer AlibiBias")
def alibi_edges():
    yield from bias_edges(AlibiBias(3))


@edges("layer T5Bias")
def bucket_edges():
    for causal in (True, False):
        yield from bias_edges(make_layer(T5Bias, 3, 4, 3, causal))


@edges("layer ShawBias")
def shaw_bias_edges():
    for k in (1, 3):
        yield from bias_edges(make_layer(ShawBias, 3, 2, k))


@edges("operation relative_scores")
def relative_scores_edges():
    for k in (0, 1, 2, 9):
        for t, n_keys in ((4, 4), (1, 6), (2, 5), (1, 1)):
            yield Call((sample(2, t, 2, 3), sample(2 * k + 1, 3, seed=1), n_keys))
    yield Call((sample(6, 2, 3), sample(3, 3, seed=1), 3, packing(*LENGTHS)))
