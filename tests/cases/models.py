"""Cases of whole models, one for each architecture: tiny, in float64, through the logits and through the training loss.

Beside the slopes, value and every parameter's gradient are held to the model made of small operations, with the loss
written out; to the loss of the logits; and to the same sentences with more padding.
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
from tests.cases.layers import BLOCKS, built, config, made, small
from train.learn.loss import label_smoothed_loss

TEXT = [[3, 5, 4, 3, 2], [6, 3, 2, 0, 0], [4, 6, 6, 2, 0]]  # ids repeated, padding at the end
SOURCE = [[3, 4, 3, 2], [5, 2, 0, 0], [6, 6, 2, 0]]
SMOOTHING = (0.2, "all"), (0.1, "others"), (0.3, "others_without_pad"), (0.0, "all")


class Logits(models.Module):
    """A model's logits of what follows each id but the last."""

    def __init__(self, model):
        self.model = model

    def forward(self, *ids):
        return self.model(*ids[:-1], ids[-1][:, :-1])


class Loss(Logits):
    """A model's training loss."""

    def __init__(self, model, smoothing, over):
        self.model, self.how = model, (smoothing, over)

    def forward(self, *ids):
        return self.model.loss(*ids, *self.how)


def composed(model):
    """The same function of ids, its operations made of small ones."""

    def function(*ids):
        with pytest.MonkeyPatch.context() as patch:
            for name, composition in neural.COMPOSITIONS.items():
                patch.setattr(neural, name, composition)
            return model(*ids)

    return function


def written_out(logits, targets, smoothing, over, pad=0):
    """The sum over targets that are not padding of - sum_k q_k log softmax_k, by their number. (B, T, V), (B, T)."""
    classes, total, tokens = logits.shape[-1], 0.0, 0
    for place in zip(*(targets != pad).nonzero(), strict=True):
        target = int(targets[place])
        spared = {"all": (), "others": (target,), "others_without_pad": (target, pad)}[over]
        reached = [k for k in range(classes) if k not in spared]
        q = npx.host.zeros(classes)
        q[reached] = smoothing / len(reached)
        q[target] += 1 - smoothing
        z = logits[tuple(map(int, place))]
        total, tokens = total - (npx.asarray(q) * ops.log(ops.exp(z) / ops.exp(z).sum())).sum(), tokens + 1
    return total / tokens


def same_as(layer, padding=True):
    """What a model's logits or loss must be the same as."""
    if type(layer) is Logits:
        return {"small operations": composed(layer)}
    c = layer.model.config
    if layer.model.examples == "pairs" and (c.dropout or c.attention_dropout or c.activation_dropout):
        return {}  # the loss is of packed sentences, whose rows draw other masks than padded ones; slopes hold it
    logits = Logits(layer.model)
    same = {
        "the loss written out": lambda *ids: written_out(composed(logits)(*ids), ids[-1][:, 1:], *layer.how),
        "label_smoothed_loss of the logits": lambda *ids: label_smoothed_loss(logits(*ids), ids[-1][:, 1:], *layer.how),
    }
    padded = {"the same ids with more padding": lambda *ids: layer(*(npx.host.pad(x, ((0, 0), (0, 2))) for x in ids))}
    return same | padded if padding else same


@st.composite
def drawn(draw, architecture):
    """Ids of sequences of drawn lengths, padded at their end, through logits or loss."""
    chosen = config(draw)
    layer = Logits(built(draw, models.ARCHITECTURES[architecture], chosen, dtype="float64"))
    if draw(st.booleans()):
        layer = Loss(layer.model, *draw(st.sampled_from(SMOOTHING)))
    b, sides = draw(size(2)), []
    for longest in [draw(size(3)) for _ in range(INPUTS[layer.model.examples])]:
        lengths = npx.host.asarray(draw(s.lengths(b, longest)))
        ids = 3 + npx.to_host(draw(s.indices(4, (b, longest))))
        sides.append(npx.host.where(npx.host.arange(longest) < lengths[:, None], ids, 0))
    sides[-1] = npx.host.pad(sides[-1], ((0, 0), (1, 0)), constant_values=1)
    return Call(tuple(sides), layer=layer, directions=3, same=same_as(layer, padding=False))


def model_edges(architecture):
    """One layer for each norm and kind of positions, two layers for each block, in random directions.

    Then one layer by every entry, with the first and the last positions. The cheap calls come first, so that most bugs
    are found in a model of one layer.
    """

    def calls():
        kind = models.ARCHITECTURES[architecture]
        ids = tuple(map(npx.host.asarray, (SOURCE, TEXT)[-INPUTS[kind.examples] :]))
        options = [{"norm": norm, "positions": p} for norm, p in product(("post", "pre"), models.POSITIONS)]
        for i, chosen in enumerate([*options, *BLOCKS]):
            dropped, layers = "dropout" in chosen, 1 if chosen in options else 2
            model = made(kind, small(n_layers=layers, **chosen), dtype="float64")
            loss, modes = Loss(model, *SMOOTHING[i % len(SMOOTHING)]), ("train", "eval") if dropped else ("train",)
            both, turn = (loss, Logits(model)), (i + i // len(models.POSITIONS)) % 2  # each norm, each kind has both
            for layer in both[turn : turn + 1] if chosen in options else both:
                yield Call(ids, layer=layer, modes=modes, directions=3, same=same_as(layer, padding=not dropped))
        for chosen in (options[0], options[-1]):
            loss = Loss(made(kind, small(n_layers=1, **chosen), dtype="float64"), *SMOOTHING[0])
            yield Call(ids, layer=loss, modes=("train",))

    return calls


INPUTS = {"pairs": 2, "text": 1}  # sides of what a model learns from
for name in models.ARCHITECTURES:
    CASES[f"model {name}"] = drawn(name)
    edges(f"model {name}")(model_edges(name))
