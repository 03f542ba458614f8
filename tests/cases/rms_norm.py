"""The case of models/layers/rms_norm.py."""

from models.layers.rms_norm import RMSNorm
from tests.cases.base import Call, case
from tests.cases.layers import built
from tests.cases.neural import normed


@case
def layer_RMSNorm(draw):
    x, _, _ = normed(draw)
    return Call((x,), layer=built(draw, RMSNorm, x.shape[-1], 1e-2))


@case
def operation_rms_norm(draw):
    x, gain, _ = normed(draw)
    return Call((x, gain), {"eps": 1e-2}, saved=x.nbytes)
