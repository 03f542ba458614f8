"""Cases of models/layers/rms_norm.py."""

from models.layers.rms_norm import RMSNorm
from tests.cases.base import REAL, Call, case, edges
from tests.cases.layers import draw_layer, make_layer
from tests.cases.neural import affine_edges, norm_edges, norm_inputs


@case
def layer_RMSNorm(draw):
    x, _, _ = norm_inputs(draw)
    return Call((x,), layer=draw_layer(draw, RMSNorm, x.shape[-1], 1e-2))


@case
def operation_rms_norm(draw):
    x, gain, _ = norm_inputs(draw)
    return Call((x, gain), {"eps": 1e-2}, saved=x.nbytes)


@edges("layer RMSNorm")
def layer_rms_norm_edges():
    for x, eps in norm_edges():
        yield Call((x,), layer=make_layer(RMSNorm, x.shape[-1], eps))


@edges("operation rms_norm", REAL)
def rms_norm_edges():
    for x, eps in norm_edges():
        yield Call((x, affine_edges(x.shape[-1])[0]), {"eps": eps}, saved=x.nbytes)
