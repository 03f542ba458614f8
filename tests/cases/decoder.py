"""The case of models/architectures/decoder.py."""

from autograd.testing import strategies as s
from models.architectures.decoder import LanguageModel
from tests.cases.base import Call, case, size
from tests.cases.layers import built, config


@case
def layer_LanguageModel(draw):
    layer = built(draw, LanguageModel, config(draw))
    return Call((draw(s.indices(7, (draw(size(2)), draw(size(4))))),), layer=layer, directions=3)
