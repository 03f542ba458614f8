"""The losses: label-smoothed cross entropy, computed from logits or fused with the projection to logits."""

import npx
from autograd import operations as ops
from autograd.compositions import composition
from autograd.engine import Result, Tensor, adds_in_place, differentiable, is_grad_enabled
from autograd.operation_checks import check_targets
from npx import NO_ACCUMULATORS, Accumulators, Array, LabelSmoothing


@differentiable
def cross_entropy(logits: Array, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Result:
    """Label-smoothed cross entropy, summed over the targets that are not padding.

    logits (..., V); targets (...) integers. For float16 and bfloat16 logits, the loss is float32, because 16 bits are
    not precise enough for a sum over a batch.

    Args:
        smoothing: see npx/kernels/cross_entropy.py. `smoothing.pad_id` (default 0) is the padding class; with -1,
            every target counts.
    """
    targets = npx.asarray(targets)
    check_targets("cross_entropy", logits, targets, logits.shape[-1])
    flat = logits.reshape(-1, logits.shape[-1])
    loss, saved = npx.cross_entropy(flat, targets.reshape(-1), smoothing, is_grad_enabled())
    return loss, lambda g: (npx.cross_entropy_grad(g, saved).reshape(logits.shape),)


@differentiable
def linear_cross_entropy(x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Result:
    """`cross_entropy` of the logits x w^T, which are never all in memory at once. x (..., D); w (V, D); targets (...).

    The gradients are computed together with the loss, while a chunk of logits is in cache.
    """
    targets = npx.asarray(targets)
    check_targets("linear_cross_entropy", x, targets, len(w))
    flat = x.reshape(-1, x.shape[-1])
    loss, saved = npx.linear_cross_entropy(flat, w, targets.reshape(-1), smoothing, is_grad_enabled())

    @adds_in_place
    def vjp(g: Array, accumulate_into: Accumulators = NO_ACCUMULATORS) -> tuple[Array | None, ...]:
        gx, gw = npx.linear_cross_entropy_grad(g, saved, accumulate_into=accumulate_into[1])
        return gx.reshape(x.shape), gw

    return loss, vjp


@composition
def composed_cross_entropy(logits: Tensor, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()) -> Tensor:
    """Compute `cross_entropy` with elementary operations, as - sum_k q_k log softmax(logits)_k for a constant q."""
    n_classes = logits.shape[-1]
    logits = logits.reshape(-1, n_classes)
    targets = targets.reshape(-1)
    label_smoothing, smoothing_classes, pad_id = smoothing
    is_counted = targets != pad_id
    one_hot = (targets[:, None] == npx.arange(n_classes)).astype(logits.dtype)
    smoothed = npx.ones_like(one_hot) if smoothing_classes == "all" else 1 - one_hot
    if smoothing_classes == "others_without_pad":
        smoothed = smoothed * (npx.arange(n_classes) != pad_id)
    smoothed = label_smoothing * smoothed / npx.maximum(smoothed.sum(axis=-1, keepdims=True), 1)
    q = one_hot * (1 - smoothed.sum(axis=-1, keepdims=True)) + smoothed
    shifted = logits - logits.detach().max(axis=-1, keepdims=True).data
    log_p = shifted - ops.log(ops.exp(shifted).sum(axis=-1, keepdims=True))
    return -(log_p * (q * is_counted[:, None]).astype(logits.dtype)).sum()


@composition
def composed_linear_cross_entropy(
    x: Tensor, w: Tensor, targets: Array, smoothing: LabelSmoothing = LabelSmoothing()
) -> Tensor:
    """Compute `linear_cross_entropy` with elementary operations."""
    return composed_cross_entropy(x @ w.transpose(), targets, smoothing)
