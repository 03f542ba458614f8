"""The cases of models/layers/gelu.py and swiglu.py."""

from autograd.testing import strategies as s
from models.layers.gelu import GELU
from models.layers.swiglu import SwiGLU
from tests.cases.base import REAL, Call, array, case, edges, leading, size, some
from tests.cases.layers import built, made


@case
def layer_GELU(draw, kind=GELU):
    n_in = draw(size())
    layer = built(draw, kind, n_in, draw(size(2)))
    return Call((draw(s.arrays((*leading(draw), n_in), ("normal", "large"))),), layer=layer)


@case
def layer_SwiGLU(draw):
    return layer_GELU(draw, SwiGLU)


@case
def operation_gelu(draw):
    x = draw(s.arrays((*leading(draw), draw(size(3))), s.STYLES))
    return Call((x,), saved=x.nbytes)


@case
def operation_gated_silu(draw):
    x = draw(s.arrays((*leading(draw), 2 * draw(size(2))), s.STYLES))
    return Call((x,), saved=x.nbytes // 2)


@edges("operation gelu", REAL)
def gelu_edges():
    ends = array(0.0, -0.0, 1e-6), array(-30.0, 30.0), array(-6.0, -3.0, 3.0, 6.0), 1e3 * some(2)
    for x in (some(2, 3), *ends, some()):
        yield Call((x,), saved=x.nbytes)


@edges("operation gated_silu", REAL)
def gated_silu_edges():
    ends = array(0.0, 1.0), array(-800.0, 800.0, 2.0, 0.5), array(-9.0, 9.0, 30.0, 3.0), 1e-4 * some(1, 2)
    for x in (some(2, 4), *ends):
        yield Call((x,), saved=x.nbytes // 2)


@edges("layer GELU")
def layer_gelu_edges(kind=GELU):
    for shape, n_out in (((2, 2, 3), 2), ((3,), 1)):
        yield Call((some(*shape),), layer=made(kind, shape[-1], n_out))


@edges("layer SwiGLU")
def layer_swiglu_edges():
    return layer_gelu_edges(SwiGLU)
