"""The cases of models/layers/gelu.py and swiglu.py."""

from autograd.testing import strategies as s
from models.layers.gelu import GELU
from models.layers.swiglu import SwiGLU
from tests.cases.base import Call, case, leading, size
from tests.cases.layers import built


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
