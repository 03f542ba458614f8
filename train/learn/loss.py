"""The loss of section 5.4: label-smoothed cross entropy from logits.

The model's own `model.loss` is the same number without ever holding all the logits; this one is for logits you have.
"""

import npx
from autograd import Tensor
from autograd.contract import check_targets
from autograd.neural import cross_entropy
from npx.kernels.cross_entropy import SMOOTHING_CLASSES


def label_smoothed_loss(
    logits: Tensor,
    targets: npx.Array,
    smoothing: float = 0.1,
    smoothing_over: str = "all",
    pad_id: int = 0,
    normalizer: float | None = None,
) -> Tensor:
    """The label-smoothed cross entropy () of targets (B, T), given logits (B, T, V).

        loss = - sum_t sum_k q_tk log softmax(logits_t)_k / normalizer        t: target tokens that are not padding

    q puts 1 - smoothing on the target and spreads the rest evenly: over all V types, target and padding among them
    ("all"); over the V - 1 others ("others"); over those without padding, V - 2 ("others_without_pad"). Smoothing 0 is
    plain cross entropy. `normalizer` None is the number of tokens counted; for a micro-batch, give that of the whole
    update. Raises ValueError for shapes or ids that do not fit, a smoothing outside [0, 1), an unknown kind or a
    normalizer that is not above 0.
    """
    targets = npx.asarray(targets)
    if logits.ndim < 2:
        raise ValueError(f"label_smoothed_loss: expected logits (B, T, V); got shape {logits.shape}")
    check_targets("label_smoothed_loss", logits.data, targets, logits.shape[-1])
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"label_smoothed_loss: expected 0 <= smoothing < 1; got {smoothing}; try 0.1")
    if smoothing_over not in SMOOTHING_CLASSES:
        choices = ", ".join(SMOOTHING_CLASSES)
        raise ValueError(f"label_smoothed_loss: expected smoothing_over {choices}; got {smoothing_over!r}; try 'all'")
    if normalizer is None:
        normalizer = max(1, int((targets != pad_id).sum()))
    if not 0 < normalizer < float("inf"):
        raise ValueError(f"label_smoothed_loss: expected a normalizer above 0; got {normalizer}; try None")
    total = cross_entropy(logits, targets, npx.LabelSmoothing(smoothing, smoothing_over, pad_id))
    return total * (1.0 / normalizer)
