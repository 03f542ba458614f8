"""Mistakes in how whole models are put together (models/architectures)."""

import npx
from autograd import neural
from models import Embedding, LearnedPositions, SequenceModel, Transformer
from models.architectures.decoder import LanguageModel
from tests.mutants.base import mutant, reroute_gradient

PAIRS, TEXT = "model encoder_decoder", "model decoder"
# The right ones.
ENCODE, DECODE, FOLLOWING = Transformer._encode, Transformer._decode, LanguageModel.following
CROSS_ENTROPY, EMBED = SequenceModel.cross_entropy, Embedding.forward
DROPOUT, DROPOUT_GRAD, ATTENTION_GRAD = npx.dropout, npx.dropout_grad, npx.attention_grad


def method(kind, name, mistake, entry, function):
    """A mutant that replaces a method of a model."""
    mutant(mistake, "model", "model", entry)(lambda patch: patch.setattr(kind, name, function))


def loss_with(change):
    """The loss of a model whose arguments hidden, weight, targets, smoothing, over, pad, tokens are changed."""

    def cross_entropy(self, hidden, targets, smoothing, over, tokens):
        hidden, weight, targets, smoothing, over, pad, tokens = change(
            hidden, self.embedding.weight, targets, smoothing, over, self.config.pad_id, tokens
        )
        return neural.linear_cross_entropy(hidden, weight, targets, npx.LabelSmoothing(smoothing, over, pad)) * (
            1 / tokens
        )

    return cross_entropy


def loss(mistake, change, entry=PAIRS):
    method(SequenceModel, "cross_entropy", mistake, entry, loss_with(change))


loss("tied matrix without its gradient from the output", lambda h, w, *a: (h, w.detach(), *a))
loss("loss divided by padding too", lambda h, w, t, s, over, pad, n: (h, w, t, s, over, pad, t.size), TEXT)
loss(
    "loss divided by the tokens of the first row alone",
    lambda h, w, t, s, over, pad, n: (h, w, t, s, over, pad, int((t[0] != pad).sum())),
    TEXT,
)
loss("padding counted in the loss", lambda h, w, t, s, over, pad, n: (h, w, t, s, over, w.shape[0], n), TEXT)
loss(
    "smoothing over padding where it is spared",
    lambda h, w, t, s, over, pad, n: (h, w, t, s, "others" if over == "others_without_pad" else over, pad, n),
)
loss(
    "last position without gradient",
    lambda h, *a: (reroute_gradient(h, h * (npx.arange(h.shape[1]) < h.shape[1] - 1)[:, None]), *a),
    TEXT,
)


def mean_over_rows(self, hidden, targets, smoothing, over, tokens):
    right = CROSS_ENTROPY(self, hidden, targets, smoothing, over, tokens)
    return reroute_gradient(right, CROSS_ENTROPY(self, hidden, targets, smoothing, over, len(targets)))


method(SequenceModel, "cross_entropy", "gradient by sentences, loss by tokens", TEXT, mean_over_rows)
method(
    SequenceModel,
    "cross_entropy",
    "loss rounded to float32",
    TEXT,
    lambda *a: CROSS_ENTROPY(*a).astype("float32").astype("float64"),
)
method(
    SequenceModel,
    "logits",
    "tied matrix without its gradient from the logits",
    TEXT,
    lambda self, hidden: neural.linear(hidden, self.embedding.weight.detach().transpose()),
)
method(
    Embedding,
    "forward",
    "tied matrix without its gradient from the input",
    TEXT,
    lambda self, *how: EMBED(self, *how).detach(),
)
method(
    Embedding,
    "forward",
    "scale of the embedding lost in the gradient",
    PAIRS,
    lambda self, ids, *how: reroute_gradient(EMBED(self, ids, *how), neural.embedding(self.weight, ids)),
)


def changed_memory(change):
    def encode(self, *source):
        memory, spec = ENCODE(self, *source)
        return change(memory, spec)

    return encode


method(Transformer, "_encode", "encoder's output detached", PAIRS, changed_memory(lambda m, how: (m.detach(), how)))
method(
    Transformer,
    "_encode",
    "padding of the source attended to",
    PAIRS,
    changed_memory(lambda m, how: (m, how if how.kv_packing else npx.AttentionSpec())),
)
method(
    Transformer,
    "_encode",
    "the first row of the next sentence attended to, the last of the own not",
    PAIRS,
    (
        changed_memory(
            lambda m, how: (
                m,
                how._replace(
                    kv_packing=how.kv_packing
                    and how.kv_packing._replace(starts=npx.minimum(how.kv_packing.starts + 1, len(m)))
                ),
            )
        )
    ),
)


def first_layer_alone(self, tgt, memory, source, state=None):
    x = self.target_positions.embedded(self.embedding, tgt, source.q_packing or 0, self.dropout)
    for i, layer in enumerate(self.decoder):
        x = layer(x, memory.detach() if i else memory, source)
    return self.decoder_norm(x) if self.decoder_norm else x


def gradient_of_the_first(self, *source):
    first = []
    layer = self.encoder[0]
    layer.forward = lambda *a, **k: (first.append(type(layer).forward(layer, *a, **k)), first[0])[1]
    try:
        memory, spec = ENCODE(self, *source)
    finally:
        del layer.forward
    return reroute_gradient(memory, first[0]), spec


def one_side_detached(self, *source):
    embedding = self.embedding
    embedding.forward = lambda *how: EMBED(embedding, *how).detach()
    try:
        return ENCODE(self, *source)
    finally:
        del embedding.forward


method(Transformer, "_decode", "memory's gradient from the first decoder layer alone", PAIRS, first_layer_alone)
method(Transformer, "_encode", "memory's gradient given to the first encoder layer", PAIRS, gradient_of_the_first)
method(Transformer, "_encode", "tied matrix without its gradient from the source", PAIRS, one_side_detached)


def last_layer_alone(self, ids, state=None):
    last = self.layers[-1]
    last.forward = lambda x, *a, **k: type(last).forward(last, x.detach(), *a, **k)
    try:
        return FOLLOWING(self, ids)
    finally:
        del last.forward


def without_last_norm(self, ids, state=None):
    """The norm's value with the history of what goes into it."""
    norm, self.norm = self.norm, None
    try:
        x = FOLLOWING(self, ids)
    finally:
        self.norm = norm
    return reroute_gradient(norm(x), x) if norm else x


method(LanguageModel, "following", "layers below the last without gradient", TEXT, last_layer_alone)
method(LanguageModel, "following", "last norm passed over by backward", TEXT, without_last_norm)


def one_table(self, tgt, memory, source, state=None):
    own, other = self.target_positions, self.source_positions
    if not isinstance(own, LearnedPositions):
        return DECODE(self, tgt, memory, source, state)
    where = source.q_packing.positions if source.q_packing else slice(tgt.shape[1])
    own.forward = lambda x, start=0: x + reroute_gradient(own.weight[where], other.weight[where])
    try:
        return DECODE(self, tgt, memory, source, state)
    finally:
        del own.forward


method(Transformer, "_decode", "gradient of the target's positions given to the source's", PAIRS, one_table)


@mutant("mask of the last dropout for all of a shape", "model", "state", TEXT)
def last_mask(patch):
    last = {}

    def dropout(x, drop):
        y, saved = DROPOUT(x, drop)
        last[x.shape] = saved
        return y, saved

    dropout.reference = DROPOUT.reference
    patch.setattr(npx, "dropout", dropout)
    patch.setattr(npx, "dropout_grad", lambda g, saved: DROPOUT_GRAD(g, last[g.shape]))


@mutant("the second head forgotten in every layer", "model", "model", TEXT)
def one_head(patch):
    def grad(g, saved, out=None):
        right = ATTENTION_GRAD(g, saved, out=out)
        for x in right:
            x[:, :, 1:] = 0
        return right

    patch.setattr(npx, "attention_grad", grad)
