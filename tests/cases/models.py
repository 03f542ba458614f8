"""Cases of complete models, one per architecture: tiny, in float64, for the logits and for the training loss.

Besides the gradient check, the value and the gradient of every parameter are compared with those of the model composed
of small operations with the loss by its definition, of the loss of the logits, and of the same sentences with more
padding.
"""

from itertools import product

import pytest
from hypothesis import strategies as st

import models
import npx
from autograd import neural
from autograd import operations as ops
from autograd.testing import strategies as s
from tests.cases.base import CASES, Call, edges, size
from tests.cases.layers import BLOCKS, config, draw_layer, make_layer, small
from tests.helpers.losses import label_smoothed_loss

TEXT = [[3, 5, 4, 3, 2], [6, 3, 2, 0, 0], [4, 6, 6, 2, 0]]  # ids repeated, padding at the end
SOURCE = [[3, 4, 3, 2], [5, 2, 0, 0], [6, 6, 2, 0]]
OTHER_KEYS = {"vocab_size": 9, "n_outputs": 7, "pad_id": 2, "eos_id": 0, "n_heads": 1, "max_positions": 8}
OTHER_KEYS |= {"embedding_init": "xavier", "attention_gain": 0.5, "attention_bias": True}
SMOOTHING = (0.2, "all"), (0.1, "others"), (0.3, "others_without_pad"), (0.0, "all")


class Logits(models.Module):
    """The logits of a model for the successor of every target id but the last."""

    def __init__(self, model):
        self.model = model

    def forward(self, *ids):
        return self.model(*ids[:-1], ids[-1][:, :-1])


class Loss(Logits):
    """The training loss of a model."""

    def __init__(self, model, label_smoothing, smoothing_classes):
        self.model = model
        self.smoothing = (label_smoothing, smoothing_classes)

    def forward(self, *ids):
        return self.model.loss(*ids, *self.smoothing)


def composed(model):
    """Return the same function of ids with every fused operation replaced by its composition of small ones."""

    def function(*ids):
        with pytest.MonkeyPatch.context() as patch:
            for name, composition in neural.COMPOSITIONS.items():
                patch.setattr(neural, name, composition)
            return model(*ids)

    return function


def loss_by_definition(logits, targets, label_smoothing, smoothing_classes, pad=0):
    """Return the mean of -sum_k q_k log softmax_k over the targets (B, T) that are not padding. logits (B, T, V)."""
    n_classes = logits.shape[-1]
    total = 0.0
    tokens = 0
    for index in zip(*(targets != pad).nonzero(), strict=True):
        target = int(targets[index])
        excluded = {"all": (), "others": (target,), "others_without_pad": (target, pad)}[smoothing_classes]
        smoothed = [k for k in range(n_classes) if k not in excluded]
        q = npx.host.zeros(n_classes)
        q[smoothed] = label_smoothing / len(smoothed)
        q[target] += 1 - label_smoothing
        z = logits[tuple(map(int, index))]
        total = total - (npx.asarray(q) * ops.log(ops.exp(z) / ops.exp(z).sum())).sum()
        tokens = tokens + 1
    return total / tokens


def equivalents(layer, padding=True):
    """Return functions by name that equal a model's logits or loss.

    Args:
        padding: whether the result is independent of padding.
    """
    if type(layer) is Logits:
        return {"small operations": composed(layer)}
    c = layer.model.config
    if layer.model.data_kind == "pairs" and (c.dropout or c.attention_dropout or c.activation_dropout):
        return {}  # the loss packs sentences, whose dropout masks differ from those of padded ones
    logits = Logits(layer.model)
    functions = {
        "the loss by its definition": lambda *ids: loss_by_definition(
            composed(logits)(*ids), ids[-1][:, 1:], *layer.smoothing
        ),
        "label_smoothed_loss of the logits": lambda *ids: label_smoothed_loss(
            logits(*ids), ids[-1][:, 1:], *layer.smoothing
        ),
    }
    padded = {"the same ids with more padding": lambda *ids: layer(*(npx.host.pad(x, ((0, 0), (0, 2))) for x in ids))}
    return functions | padded if padding else functions


@st.composite
def model_calls(draw, architecture):
    """Draw a model and padded ids of sequences of drawn lengths, for the logits or the loss."""
    layer = Logits(draw_layer(draw, models.ARCHITECTURES[architecture], config(draw), dtype="float64"))
    if draw(st.booleans()):
        layer = Loss(layer.model, *draw(st.sampled_from(SMOOTHING)))
    b = draw(size(2))
    sides = []
    for longest in [draw(size(3)) for _ in range(INPUTS[layer.model.data_kind])]:
        lengths = npx.host.asarray(draw(s.lengths(b, longest)))
        ids = 3 + npx.to_host(draw(s.indices(4, (b, longest))))
        sides.append(npx.host.where(npx.host.arange(longest) < lengths[:, None], ids, 0))
    sides[-1] = npx.host.pad(sides[-1], ((0, 0), (1, 0)), constant_values=1)
    return Call(tuple(sides), layer=layer, n_directions=3, equivalents=equivalents(layer, padding=False))


def model_edges(architecture):
    """Yield models of one layer for each norm and kind of positions, and of two layers for each block.

    They are checked in random directions, the loss and the logits alternately. A last call checks every entry of the
    gradient of the loss of one layer. The cheap calls come first, so that most bugs are found in a model of one layer.
    """

    def calls():
        model_class = models.ARCHITECTURES[architecture]
        ids = tuple(map(npx.host.asarray, (SOURCE, TEXT)[-INPUTS[model_class.data_kind] :]))
        options = [{"norm_placement": norm, "positions": p} for norm, p in product(("post", "pre"), models.POSITIONS)]
        for i, variant in enumerate([*options, *BLOCKS]):
            has_dropout = "dropout" in variant
            n_layers = 1 if variant in options else 2
            model = make_layer(model_class, small(n_layers=n_layers, **variant), dtype="float64")
            loss = Loss(model, *SMOOTHING[i % len(SMOOTHING)])
            modes = ("train", "eval") if has_dropout else ("train",)
            layer = (loss, Logits(model))[sum(divmod(i, len(models.POSITIONS))) % 2]  # both, for each position
            yield Call(
                ids, layer=layer, modes=modes, n_directions=3, equivalents=equivalents(layer, padding=not has_dropout)
            )
        loss = Loss(make_layer(model_class, small(n_layers=1, **options[0]), dtype="float64"), *SMOOTHING[0])
        yield Call(ids, layer=loss, modes=("train",))
        loss = Loss(make_layer(model_class, small(**OTHER_KEYS), dtype="float64"), *SMOOTHING[2])
        swapped = tuple(npx.host.asarray([2, 1, 0, 3, 4, 5, 6])[x] for x in ids)  # 2 is the padding
        yield Call(swapped, layer=loss, modes=("train",), n_directions=3)

    return calls


INPUTS = {"pairs": 2, "text": 1}  # sequences per training example; tests/cases/encoder.py has the models with labels
OTHER_LAYERS = {  # configurations of architectures that need fewer calls because their layers have cases of their own
    "rnn": {"cell": "gru", "n_layers": 2},
    "convs2s": {"kernel_width": 2, "n_layers": 2},
    "bytenet": {"kernel_width": 2, "n_layers": 2},
}


def other_model_edges(architecture):
    """Yield the loss of a model."""

    def calls():
        ids = tuple(map(npx.host.asarray, (SOURCE[:2], TEXT[:2])))
        config = small(architecture=architecture, **OTHER_LAYERS[architecture])
        layer = Loss(make_layer(models.ARCHITECTURES[architecture], config, dtype="float64"), *SMOOTHING[0])
        yield Call(ids, layer=layer, modes=("train",), n_directions=2, equivalents=equivalents(layer))

    return calls


def other_model_calls(architecture):
    """Return a strategy of one call: the logits of a model of one layer."""
    ids = npx.host.asarray([[3, 2]]), npx.host.asarray([[1, 4, 2]])
    config = small(architecture=architecture, **OTHER_LAYERS[architecture] | {"n_layers": 1, "dropout": 0.3})
    return st.builds(
        lambda: Call(
            ids, layer=Logits(make_layer(models.ARCHITECTURES[architecture], config, dtype="float64")), n_directions=2
        )
    )


for name in (name for name, model_class in models.ARCHITECTURES.items() if model_class.data_kind in INPUTS):
    has_other_layers = name in OTHER_LAYERS
    CASES[f"model {name}"] = other_model_calls(name) if has_other_layers else model_calls(name)
    edges(f"model {name}", vary_inputs=False)(other_model_edges(name) if has_other_layers else model_edges(name))
