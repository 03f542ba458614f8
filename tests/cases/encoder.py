"""Cases of the encoder-only architecture and its layers: logits, vectors, and the loss of labels."""

from hypothesis import strategies as st

import models
import npx
from autograd.testing import strategies as s
from models.architectures.encoder import Encoder, OutputTransform, Pooler
from models.layers.token_types import TokenTypeEmbedding
from tests.cases.base import CASES, Call, case, edges, sample, size
from tests.cases.layers import config, draw_layer, make_layer, sequence, small
from tests.cases.models import SMOOTHING, composed, loss_by_definition

IDS = [[1, 5, 4, 2, 3, 2], [1, 6, 2, 0, 0, 0], [1, 2, 4, 2, 0, 0]]  # two texts, one text, an empty first text
LABELS = [[0, 3, 4, 0, 3, 0], [0, 3, 0, 0, 0, 0], [0, 0, 4, 0, 0, 0]]
BERT = {"token_types": 2, "embedding_norm": True, "pooler": True, "output_transform": True}


class Wrapper(models.Module):
    """A layer that computes a function of a model and ids."""

    def __init__(self, model, function):
        self.model, self.function = model, function

    def forward(self, *ids):
        return self.function(self.model, *ids)


def loss_of(smoothing):
    return lambda model, ids, labels: model.loss(ids, labels, *smoothing)


def logits_of(model, ids):
    return model(ids)


def pooled_by(pooling):
    return lambda model, ids: model.text_vectors(ids, pooling)


def equivalents(layer, smoothing):
    """Return functions by name that equal a loss: small operations by definition, other padding, padded arrays."""
    model = layer.model
    if model.config.dropout:
        return {}

    def by_definition(ids, labels):
        one_label_per_text = labels.shape[1] == 1
        function = (lambda x: model.logits(model._pool(model.encode(x)[0][:, :1]))) if one_label_per_text else model
        return loss_by_definition(composed(function)(ids), labels, *smoothing)

    def padded(ids, labels):
        wider = [x if x.shape[1] == 1 else npx.host.pad(x, ((0, 0), (0, 2))) for x in (ids, labels)]
        return layer(*wider)

    def unpacked(ids, labels):
        options = dict(zip(("label_smoothing", "smoothing_classes"), smoothing, strict=True))
        arrays = map(npx.from_host, model.checked_loss_inputs(ids, labels))
        return model.loss_on_device(*arrays, loss_normalizer=int((labels != 0).sum()), **options)

    return {"the loss by its definition": by_definition, "the same ids with more padding": padded, "padded": unpacked}


def encoder_config(**changes):
    return small(**{"architecture": "encoder", "n_layers": 1, "src_vocab_size": 8} | changes)


@edges("model encoder")
def encoder_edges():
    ids, labels = map(npx.host.asarray, (IDS, LABELS))
    texts = npx.host.asarray([[3], [0], [4]])
    model = make_layer(Encoder, encoder_config(token_types=2), dtype="float64")
    yield Call((ids,), layer=Wrapper(model, pooled_by("mean")), modes=("train",), n_directions=1)
    variants = [
        {},
        BERT,
        {"src_vocab_size": None, "norm_placement": "pre", "positions": "rotary", "output_transform": True},
    ]
    for i, variant in enumerate(variants):
        model = make_layer(Encoder, encoder_config(**variant), dtype="float64")
        smoothing = SMOOTHING[i]
        inputs = (ids, texts if i == 1 else labels)
        layer = Wrapper(model, loss_of(smoothing))
        yield Call(inputs, layer=layer, modes=("train",), n_directions=3, equivalents=equivalents(layer, smoothing))


@st.composite
def encoder_calls(draw):
    """Draw an encoder, and texts of drawn lengths with labels of their tokens or of the texts."""
    c = config(draw)
    options = draw(st.sampled_from([{}, BERT, {"embedding_norm": True}, {"token_types": 1}]))
    c = models.TransformerConfig.from_dict(c.to_dict() | {"architecture": "encoder"} | options)
    model = draw_layer(draw, Encoder, c, dtype="float64")
    b, longest = draw(size(2)), draw(size(4))
    lengths = npx.host.asarray(draw(s.lengths(b, longest)))
    mask = npx.host.arange(longest) < lengths[:, None]
    drawn = [first + npx.to_host(draw(s.indices(n, (b, longest)))) for first, n in ((1, 6), (3, 3))]
    ids, labels = (npx.host.where(mask, values, 0) for values in drawn)
    if not mask.any():
        return Call((npx.host.maximum(ids, 1),), layer=Wrapper(model, logits_of), modes=("train",), n_directions=1)
    labels = labels[:, :1] if draw(st.booleans()) else labels
    return Call((ids, labels), layer=Wrapper(model, loss_of(draw(st.sampled_from(SMOOTHING)))), n_directions=1)


CASES["model encoder"] = encoder_calls()


@case
def layer_TokenTypeEmbedding(draw):
    x = sequence(draw, d := draw(size(3)))
    types = npx.to_host(draw(s.indices(2, x.shape[:2])))
    return Call((x, types), layer=draw_layer(draw, TokenTypeEmbedding, 2, d))


@edges("layer TokenTypeEmbedding")
def token_type_embedding_edges():
    for n, types in ((2, [[0, 1, 1], [0, 0, 1]]), (1, [[0, 0, 0], [0, 0, 0]])):
        yield Call((sample(2, 3, 4), npx.host.asarray(types)), layer=make_layer(TokenTypeEmbedding, n, 4))


@case
def layer_Pooler(draw):
    x = sequence(draw, d := draw(size(3)))
    return Call((x,), layer=draw_layer(draw, Pooler, d))


@case
def layer_OutputTransform(draw):
    c = config(draw)
    return Call((sequence(draw, c.d_model),), layer=draw_layer(draw, OutputTransform, c))


@edges("layer OutputTransform")
def output_transform_edges():
    for activation in ("relu", "gelu_erf"):
        c = encoder_config(activation=activation)
        yield Call((sample(2, 3, c.d_model),), layer=make_layer(OutputTransform, c))


@edges("layer Pooler")
def pooler_edges():
    yield Call((sample(2, 3),), layer=make_layer(Pooler, 3))
    yield Call((sample(2, 2, 1),), layer=make_layer(Pooler, 1))
