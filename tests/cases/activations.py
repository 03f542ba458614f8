"""Cases of the activations in models/layers/."""

from autograd.testing import strategies as s
from models.layers.gelu import GELU
from models.layers.gelu_erf import GELUErf
from models.layers.silu import SiLU
from models.layers.swiglu import SwiGLU
from tests.cases.base import REAL, Call, array, case, edges, leading, sample, size
from tests.cases.layers import draw_layer, make_layer


@case
def layer_GELU(draw, layer_class=GELU):
    n_in = draw(size())
    layer = draw_layer(draw, layer_class, n_in, draw(size(2)))
    return Call((draw(s.arrays((*leading(draw), n_in), ("normal", "large"))),), layer=layer)


@case
def layer_SwiGLU(draw):
    return layer_GELU(draw, SwiGLU)


@case
def layer_GELUErf(draw):
    return layer_GELU(draw, GELUErf)


@case
def layer_SiLU(draw):
    return layer_GELU(draw, SiLU)


@case
def operation_gelu(draw):
    x = draw(s.arrays((*leading(draw), draw(size(3))), s.STYLES))
    return Call((x,), saved=x.nbytes)


@case
def operation_gelu_erf(draw):
    return operation_gelu(draw)


@case
def operation_silu(draw):
    return operation_gelu(draw)


@case
def operation_gated_silu(draw):
    x = draw(s.arrays((*leading(draw), 2 * draw(size(2))), s.STYLES))
    return Call((x,), saved=x.nbytes // 2)


@edges("operation gelu", REAL)
def gelu_edges():
    ends = array(0.0, -0.0, 1e-6), array(-30.0, 30.0), array(-6.0, -3.0, 3.0, 6.0), 1e3 * sample(2)
    for x in (sample(2, 3), *ends, sample()):
        yield Call((x,), saved=x.nbytes)


@edges("operation gelu_erf", REAL)
def gelu_erf_edges():
    return gelu_edges()


@edges("operation silu", REAL)
def silu_edges():
    return gelu_edges()


@edges("operation gated_silu", REAL)
def gated_silu_edges():
    ends = array(0.0, 1.0), array(-800.0, 800.0, 2.0, 0.5), array(-9.0, 9.0, 30.0, 3.0), 1e-4 * sample(1, 2)
    for x in (sample(2, 4), *ends):
        yield Call((x,), saved=x.nbytes // 2)


@edges("layer GELU")
def layer_gelu_edges(layer_class=GELU):
    for shape, n_out in (((2, 2, 3), 2), ((3,), 1)):
        yield Call((sample(*shape),), layer=make_layer(layer_class, shape[-1], n_out))


@edges("layer GELUErf")
def layer_gelu_erf_edges():
    return layer_gelu_edges(GELUErf)


@edges("layer SiLU")
def layer_silu_edges():
    return layer_gelu_edges(SiLU)


@edges("layer SwiGLU")
def layer_swiglu_edges():
    return layer_gelu_edges(SwiGLU)
