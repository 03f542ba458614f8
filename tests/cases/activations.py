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
