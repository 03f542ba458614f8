"""Bugs in models (models/architectures)."""

import npx
from autograd import neural
from models import Embedding, LearnedPositions, SequenceModel, Transformer
from models.architectures.decoder import LanguageModel
from tests.mutants.base import mutant, reroute_gradient

PAIRS, TEXT = "model encoder_decoder", "model decoder"
# The correct methods and kernels.
ENCODE, DECODE, HIDDEN_STATES = (
    Transformer._embed_and_encode,
    Transformer._embed_and_decode,
    LanguageModel.hidden_states,
)
TOKEN_LOSS, EMBED = SequenceModel.token_loss, Embedding.forward
DROPOUT, DROPOUT_GRAD, ATTENTION_GRAD = npx.dropout, npx.dropout_grad, npx.attention_grad


def method(model, name, bug, entry, function):
    """Register a mutant that replaces a method of a model class."""
    mutant(bug, "model", "model", entry)(lambda patch: patch.setattr(model, name, function))


def loss_with(change):
    """Return a loss method that computes with change(hidden, weight, targets, smoothing, classes, pad, normalizer)."""

    def token_loss(self, hidden, targets, label_smoothing, classes, normalizer):
        hidden, weight, targets, label_smoothing, classes, pad, normalizer = change(
            hidden, self.embedding.weight, targets, label_smoothing, classes, self.config.pad_id, normalizer
        )
        smoothing = npx.LabelSmoothing(label_smoothing, classes, pad)
        return neural.linear_cross_entropy(hidden, weight, targets, smoothing) * (1 / normalizer)

    return token_loss


def loss(bug, change, entry=PAIRS):
    method(SequenceModel, "token_loss", bug, entry, loss_with(change))


loss("tied matrix: output gradient missing", lambda h, w, *a: (h, w.detach(), *a))
loss("loss divided by all tokens, with padding", lambda h, w, t, s, over, pad, n: (h, w, t, s, over, pad, t.size), TEXT)
loss(
    "loss divided by the tokens of the first row",
    lambda h, w, t, s, over, pad, n: (h, w, t, s, over, pad, int((t[0] != pad).sum())),
    TEXT,
)
loss("padding included in the loss", lambda h, w, t, s, over, pad, n: (h, w, t, s, over, -1, n), TEXT)
loss(
    "padding smoothed although excluded",
    lambda h, w, t, s, over, pad, n: (h, w, t, s, "others" if over == "others_without_pad" else over, pad, n),
)
loss(
    "last position: gradient missing",
    lambda h, *a: (reroute_gradient(h, h * (npx.arange(h.shape[1]) < h.shape[1] - 1)[:, None]), *a),
    TEXT,
)


def mean_over_rows(self, hidden, targets, label_smoothing, classes, normalizer):
    right = TOKEN_LOSS(self, hidden, targets, label_smoothing, classes, normalizer)
    return reroute_gradient(right, TOKEN_LOSS(self, hidden, targets, label_smoothing, classes, len(targets)))


method(SequenceModel, "token_loss", "loss normalized by tokens, its gradient by sentences", TEXT, mean_over_rows)
method(
    SequenceModel,
    "token_loss",
    "loss rounded to float32",
    TEXT,
    lambda *a: TOKEN_LOSS(*a).astype("float32").astype("float64"),
)
method(
    SequenceModel,
    "logits",
    "tied matrix: gradient from the logits missing",
    TEXT,
    lambda self, hidden: neural.linear(hidden, self.embedding.weight.detach().transpose()),
)
method(
    Embedding,
    "forward",
    "tied matrix: input gradient missing",
    TEXT,
    lambda self, *args: EMBED(self, *args).detach(),
)
method(
    Embedding,
    "forward",
    "embedding scale missing in the gradient",
    PAIRS,
    lambda self, ids, *args: reroute_gradient(EMBED(self, ids, *args), neural.embedding(self.weight, ids)),
)


def changed_memory(change):
    def encode(self, *source):
        memory, spec = ENCODE(self, *source)
        return change(memory, spec)

    return encode


method(
    Transformer,
    "_embed_and_encode",
    "encoder output detached",
    PAIRS,
    changed_memory(lambda m, spec: (m.detach(), spec)),
)
method(
    Transformer,
    "_embed_and_encode",
    "source padding not masked",
    PAIRS,
    changed_memory(lambda m, spec: (m, spec if spec.kv_packing else npx.AttentionSpec())),
)
method(
    Transformer,
    "_embed_and_encode",
    "attention window shifted by one row when packed",
    PAIRS,
    (
        changed_memory(
            lambda m, spec: (
                m,
                spec._replace(
                    kv_packing=spec.kv_packing
                    and spec.kv_packing._replace(starts=npx.minimum(spec.kv_packing.starts + 1, len(m)))
                ),
            )
        )
    ),
)


def first_layer_alone(self, tgt, memory, source, state=None):
    x = self.target_positions.embed(self.embedding, tgt, source.q_packing or 0, self.dropout)
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
    embedding.forward = lambda *args: EMBED(embedding, *args).detach()
    try:
        return ENCODE(self, *source)
    finally:
        del embedding.forward


method(Transformer, "_embed_and_decode", "memory gradient from the first decoder layer only", PAIRS, first_layer_alone)
method(
    Transformer, "_embed_and_encode", "memory gradient sent to the first encoder layer", PAIRS, gradient_of_the_first
)
method(Transformer, "_embed_and_encode", "tied matrix: source gradient missing", PAIRS, one_side_detached)


def last_layer_alone(self, ids, state=None):
    last = self.layers[-1]
    last.forward = lambda x, *a, **k: type(last).forward(last, x.detach(), *a, **k)
    try:
        return HIDDEN_STATES(self, ids)
    finally:
        del last.forward


def without_last_norm(self, ids, state=None):
    """Return the value of the norm with the gradient of its input."""
    norm, self.norm = self.norm, None
    try:
        x = HIDDEN_STATES(self, ids)
    finally:
        self.norm = norm
    return reroute_gradient(norm(x), x) if norm else x


method(LanguageModel, "hidden_states", "layers below the last detached", TEXT, last_layer_alone)
method(LanguageModel, "hidden_states", "gradient skips the final norm", TEXT, without_last_norm)


def one_table(self, tgt, memory, source, state=None):
    target, source_table = self.target_positions, self.source_positions
    if not isinstance(target, LearnedPositions):
        return DECODE(self, tgt, memory, source, state)
    rows = source.q_packing.positions if source.q_packing else slice(tgt.shape[1])
    target.forward = lambda x, start=0: x + reroute_gradient(target.weight[rows], source_table.weight[rows])
    try:
        return DECODE(self, tgt, memory, source, state)
    finally:
        del target.forward


method(Transformer, "_embed_and_decode", "target position gradient added to the source positions", PAIRS, one_table)


@mutant("dropout masks shared by equal shapes", "model", "state", TEXT)
def last_mask(patch):
    last = {}

    def dropout(x, drop):
        y, saved = DROPOUT(x, drop)
        last[x.shape] = saved
        return y, saved

    dropout.reference = DROPOUT.reference
    patch.setattr(npx, "dropout", dropout)
    patch.setattr(npx, "dropout_grad", lambda g, saved: DROPOUT_GRAD(g, last[g.shape]))


@mutant("gradient of every head but the first missing", "model", "model", TEXT)
def one_head(patch):
    def grad(g, saved, out=None):
        right = ATTENTION_GRAD(g, saved, out=out)
        for x in right:
            x[:, :, 1:] = 0
        return right

    patch.setattr(npx, "attention_grad", grad)
