"""The loss computed from logits, to compare with the losses of models, which never hold all logits."""

import npx
from autograd import neural


def label_smoothed_loss(logits, targets, smoothing=0.1, classes="all", pad_id=0, normalizer=None):
    """Return the label-smoothed cross entropy () of targets (B, T), given logits (B, T, V).

    If `normalizer` is None, it is the number of targets that are not padding.
    """
    targets = npx.asarray(targets)
    normalizer = max(1, int((targets != pad_id).sum())) if normalizer is None else normalizer
    total = neural.cross_entropy(logits, targets, npx.LabelSmoothing(smoothing, classes, pad_id))
    return total * (1.0 / normalizer)
