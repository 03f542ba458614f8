"""The case of models/layers/rms_norm.py."""

from models.layers.rms_norm import RMSNorm
from tests.cases.base import REAL, Call, case, edges
from tests.cases.layers import built, made
from tests.cases.neural import gains, normed, rows_to_norm


@case
def layer_RMSNorm(draw):
    x, _, _ = normed(draw)
    return Call((x,), layer=built(draw, RMSNorm, x.shape[-1], 1e-2))


@case
def operation_rms_norm(draw):
    x, gain, _ = normed(draw)
    return Call((x, gain), {"eps": 1e-2}, saved=x.nbytes)


@edges("layer RMSNorm")
def layer_rms_norm_edges():
    for x, eps in rows_to_norm():
        yield Call((x,), layer=made(RMSNorm, x.shape[-1], eps))


@edges("operation rms_norm", REAL)
def rms_norm_edges():
    for x, eps in rows_to_norm():
        yield Call((x, gains(x.shape[-1])[0]), {"eps": eps}, saved=x.nbytes)
