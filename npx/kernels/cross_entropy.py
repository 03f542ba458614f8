"""Label-smoothed cross entropy from logits (paper section 5.4), alone and fused with the projection to the vocabulary.

The smoothed target is q_k = on_value [k = target] + off_value for each of the V classes. `off_value` depends on the
classes among which `LabelSmoothing` divides the probability eps:

    "all"                  off_value = eps / V        the complete vocabulary, including target and padding
                                                      (Szegedy et al., 2016, which the paper cites; also PyTorch)
    "others"               off_value = eps / (V - 1)  every class except the target
    "others_without_pad"   off_value = eps / (V - 2)  every class except the target and padding, whose q is 0

`on_value` is chosen so that q sums to 1; without any such class, q is 1 at the target. For logits z

    loss = - sum_k q_k log softmax(z)_k = logsumexp(z) - on_value z_target - off_value sum_k z_k
    dloss/dz = softmax(z) - q

Positions whose target is padding contribute neither loss nor gradient.
"""

from typing import Any, NamedTuple

import numpy as np

from npx.backend import Array, accumulate, array_module, ceil_div
from npx.cpu.row_blocks import map_blocks, overridable_size, parallel_for, row_sums
from npx.cpu.tune import is_configured
from npx.cuda import blas
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch, shared_memory
from npx.dispatch import Output, kernel
from npx.kernels.embedding import sums_by_id
from npx.precision import accumulation_dtype

SMOOTHING_CLASSES = ("all", "others", "others_without_pad")
PANEL = 1024  # maximum number of classes whose logits one thread computes at a time in `linear_cross_entropy`
CHUNK = 3 << 22  # maximum number of logits in memory at a time in `linear_cross_entropy`: 48 MiB of float32
CUDA_CHUNK = 1 << 28  # replaces CHUNK on a GPU, where matmuls need thousands of rows: 512 MiB of bfloat16
RESERVED = 1152  # bytes of shared memory that a block needs besides its row of logits: 1,024 for CUDA, 128 for sums
CUDA_MULTIPLE = 64  # on a GPU, the number of rows in a chunk and that of allocated columns are multiples of this


class LabelSmoothing(NamedTuple):
    """Label smoothing of the targets.

    Attributes:
        epsilon: the probability that is divided among classes, at least 0 and below 1.
        classes: the classes that receive this probability: "all", "others" or "others_without_pad" (see above).
        pad_id: the id of padding; positions with this target are ignored.
    """

    epsilon: float = 0.0
    classes: str = "all"
    pad_id: int = 0

    def target_weights(self, n_classes: int) -> tuple[float, float]:
        """Return the weights (on_value, off_value) of the smoothed target. Raises ValueError for invalid attributes."""
        if not 0 <= self.epsilon < 1:
            expected = "a number of at least 0 and below 1"
            raise ValueError(f"label_smoothing: expected {expected}; got {self.epsilon!r}; try 0.1")
        if self.classes not in SMOOTHING_CLASSES:
            raise ValueError(f"smoothing_classes: expected one of {', '.join(SMOOTHING_CLASSES)}; got {self.classes!r}")
        if self.classes == "all":
            return 1 - self.epsilon, self.epsilon / n_classes
        n_others = n_classes - (2 if self.excludes_padding(n_classes) else 1)
        if n_others < 1:
            return 1.0, 0.0
        off_value = self.epsilon / n_others
        return 1 - self.epsilon - off_value, off_value

    def excludes_padding(self, n_classes: int) -> bool:
        """Return whether padding is one of the classes and label smoothing gives it no probability."""
        return self.classes == "others_without_pad" and 0 <= self.pad_id < n_classes


NO_SMOOTHING = LabelSmoothing()


@kernel
def cross_entropy(logits: Array, targets: Array, smoothing: LabelSmoothing = NO_SMOOTHING, grad: bool = True) -> Output:
    """Return the summed loss () of logits (R, V) and targets (R,) in [0, V). Saved, if `grad`: its gradient (R, V).

    For float16 and bfloat16 logits, the loss is float32, because 16 bits are not enough for a sum over a batch.
    """
    xp = array_module(logits)
    n, classes = logits.shape
    on_value, off_value = smoothing.target_weights(classes)
    q = xp.full(logits.shape, off_value, logits.dtype)
    q[xp.arange(n), targets] += on_value
    if smoothing.excludes_padding(classes):
        q[:, smoothing.pad_id] = 0
    is_token = (targets != smoothing.pad_id)[:, None]
    peak = logits.max(axis=-1, keepdims=True)
    dtype = accumulation_dtype(logits.dtype)
    log_p = logits - peak - xp.log(xp.sum(xp.exp(logits - peak), axis=-1, keepdims=True, dtype=dtype))
    log_likelihood = q * xp.where(q != 0, log_p, 0)  # a class with q = 0 may have a logit of -inf
    loss = -xp.sum(xp.where(is_token, log_likelihood, 0), dtype=dtype)
    return loss, xp.where(is_token, xp.exp(log_p) - q, 0).astype(logits.dtype) if grad else None


@cross_entropy.define_gradient
def cross_entropy_grad(g: Array, gz: Array) -> Array:
    """Return g * gz (R, V) for the gradient g () of the loss."""
    return (g * gz).astype(gz.dtype, copy=False)


@kernel
def linear_cross_entropy(
    x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = NO_SMOOTHING, grad: bool = True
) -> Output:
    """Compute `cross_entropy` of the logits x w^T without saving logits or probabilities for backward.

    x (R, D); w (V, D), the output projection, which is the embedding table; targets (R,). Saved, if `grad`: the
    gradients gx (R, D) and gw (V, D), which are computed together with the loss.
    """
    logits = (x @ w.T).astype(x.dtype, copy=False)  # NumPy's matmul of bfloat16 is float32
    loss, gz = cross_entropy.reference(logits, targets, smoothing, grad)
    return loss, tuple(product.astype(x.dtype, copy=False) for product in (gz @ w, gz.T @ x)) if grad else None


@linear_cross_entropy.define_gradient
def linear_cross_entropy_grad(
    g: Array, gx: Array, gw: Array, accumulate_into: Array | None = None
) -> tuple[Array, Array]:
    """Return g * gx and g * gw for the gradient g () of the loss.

    Args:
        accumulate_into: an array to which g * gw is added, or None for a new array.
    """
    gx, gw = ((g * gradient).astype(gradient.dtype, copy=False) for gradient in (gx, gw))
    return accumulate((gx, gw), (None, accumulate_into))


@cross_entropy_grad.fast("numpy", "float32", "float64")
@cross_entropy_grad.fast("cupy", "float32", "float16", "bfloat16")
def scale_in_place(g: Array, x: Array) -> Array:
    """Multiply x by g in place, in the dtype of x. No other code uses x."""
    x *= g
    return x


@linear_cross_entropy_grad.fast("numpy", "float32", "float64")
def linear_cross_entropy_grad_numpy(
    g: Array, gx: Array, gw: Array, accumulate_into: Array | None = None
) -> tuple[Array, Array]:
    """Scale both gradients in place, and accumulate each block of gw while it is in cache."""

    def body(i: int, j: int) -> None:
        part = scale_in_place(g, gw[i:j])
        if accumulate_into is not None:
            accumulate_into[i:j] += part

    map_blocks(body, len(gw), gw[:1].nbytes)
    return scale_in_place(g, gx), gw if accumulate_into is None else accumulate_into


def replace_logits_with_gradient(z: Array, targets: Array, smoothing: LabelSmoothing, grad: bool) -> float:
    """Replace logits z (n, V) by their gradient in place and return the summed loss. No target may be padding."""
    on_value, off_value = smoothing.target_weights(z.shape[1])
    excludes_padding = smoothing.excludes_padding(z.shape[1])
    at_target = np.arange(len(z)), targets
    z -= z.max(axis=1)[:, None]  # does not change the loss, because q sums to 1
    q_dot_z = on_value * z[at_target]
    if off_value:
        if excludes_padding:
            padding = z[:, smoothing.pad_id].copy()  # may be -inf, so it cannot be subtracted from the sum later
            z[:, smoothing.pad_id] = 0
        q_dot_z += off_value * row_sums(z)
        if excludes_padding:
            z[:, smoothing.pad_id] = padding
    np.exp(z, out=z)
    total = row_sums(z)
    if grad:
        z *= (1 / total)[:, None]
        if off_value:
            z -= off_value
            if excludes_padding:
                z[:, smoothing.pad_id] += off_value
        z[at_target] -= on_value
    return float((np.log(total) - q_dot_z).sum(dtype=np.float64))


@cross_entropy.fast("numpy", "float32", "float64")
def cross_entropy_numpy(
    logits: Array, targets: Array, smoothing: LabelSmoothing = NO_SMOOTHING, grad: bool = True
) -> Output:
    """Copy the rows whose target is not padding, and replace the copies with their gradients in place."""
    token_rows = np.flatnonzero(targets != smoothing.pad_id)
    z = logits[token_rows]
    targets = targets[token_rows]

    def body(i: int, j: int) -> float:
        return replace_logits_with_gradient(z[i:j], targets[i:j], smoothing, grad)

    loss = np.asarray(sum(map_blocks(body, len(z), z.itemsize * z.shape[1])), logits.dtype)
    if not grad:
        return loss, None
    gz = np.zeros(logits.shape, logits.dtype)
    gz[token_rows] = z
    return loss, gz


@linear_cross_entropy.fast("numpy", "float32", "float64")
def linear_cross_entropy_numpy(
    x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = NO_SMOOTHING, grad: bool = True
) -> Output:
    """Skip padding and compute chunks of rows in panels of classes, without a pass over all logits.

    With z = x w^T and q = on_value * [target] + off_value, the gradients of the loss are

        gx = softmax(z) w   - on_value w[targets] - off_value sum_k w_k          (sums over the smoothed classes)
        gw = softmax(z)^T x - on_value sum of x over the rows of each class - off_value sum_n x_n

    so q is never stored. If m is the largest logit of a row within a panel, the panel's part of this row of softmax(z)
    is f exp(z - m) with f = exp(m - logsumexp(z)). Instead of the exponentials, the rows of x and gx are multiplied by
    f. Maxima, exponentials and their sums are computed right after a panel's matmul, while its logits are in cache.
    """
    on_value, off_value = smoothing.target_weights(len(w))
    token_rows = np.flatnonzero(targets != smoothing.pad_id)
    has_padding = len(token_rows) < len(x)
    x_tokens = x  # in names, `_tokens` means "without the rows of padding"
    if has_padding:
        x_tokens = x[token_rows]
        targets = targets[token_rows]
    smoothed = np.full(len(w), off_value, x.dtype)  # `off_value` for each class, but 0 for a class without smoothing
    if smoothing.excludes_padding(len(w)):
        smoothed[smoothing.pad_id] = 0
    smoothed_w = smoothed @ w  # (D,)
    gx_tokens: Any = w[targets]
    loss = -(on_value * np.einsum("nd,nd->n", x_tokens, gx_tokens) + x_tokens @ smoothed_w).sum(dtype=np.float64)
    gx_tokens *= -on_value
    gx_tokens -= smoothed_w
    gw = (np.empty if len(x_tokens) else np.zeros)(w.shape, x.dtype) if grad else None

    chunks = max(1, ceil_div(len(x_tokens) * len(w), CHUNK))
    chunk_rows = overridable_size(max(1, ceil_div(len(x_tokens), chunks)))
    width = overridable_size(min(PANEL, ceil_div(len(w), 4)) if is_configured() else len(w))
    buffer = np.empty((ceil_div(len(w), width), chunk_rows, max(width, x.shape[1])), x.dtype)
    for start in range(0, len(x_tokens), chunk_rows):
        chunk = x_tokens[start : start + chunk_rows]
        lse, f = exponentials_in_panels(chunk, w, buffer, width)
        loss += lse.sum(dtype=np.float64)
        if gw is not None:
            initial = None if start else (smoothed, x_tokens.sum(axis=0))
            gx_tokens[start : start + chunk_rows] += gradients_in_panels(chunk, w, buffer, width, f, gw, initial)
    if gw is None:
        return np.asarray(loss, x.dtype), None
    del buffer
    gx = gx_tokens
    if has_padding:
        gx = np.zeros(x.shape, x.dtype)
        gx[token_rows] = gx_tokens
    target_ids, sums = sums_by_id(x_tokens, targets)
    gw[target_ids] -= on_value * sums
    return np.asarray(loss, x.dtype), (gx, gw)


def exponentials_in_panels(x: Array, w: Array, buffer: Array, width: int) -> tuple[Array, Array]:
    """Write exp(z - m) to buffer[:, : len(x)] for z = x w^T, where m is each row's largest logit in the panel.

    Returns logsumexp(z) (n,) and the factors f (panels, n) with softmax(z) = f exp(z - m).
    """

    def body(i: int, j: int) -> tuple[Array, Array]:
        z = np.matmul(x, w[i:j].T, out=buffer[i // width, : len(x), : j - i])
        m = z.max(axis=1)
        z -= m[:, None]
        np.exp(z, out=z)
        return m, z @ np.ones(j - i, z.dtype)

    m, totals = (np.stack(parts) for parts in zip(*parallel_for(body, len(w), width), strict=True))  # (panels, n)
    peak = m.max(axis=0)
    f = np.exp(m - peak)
    total = (totals * f).sum(axis=0)
    return np.log(total) + peak, f / total


def gradients_in_panels(
    x: Array,
    w: Array,
    buffer: Array,
    width: int,
    f: Array,
    gw: Array,
    initial: tuple[Array, Array] | None,
) -> Array:
    """Return softmax(z) w (n, D) and add softmax(z)^T x to gw (V, D).

    Each panel's result overwrites its exponentials in the buffer.

    Args:
        initial: two vectors (V,) and (D,), or None. If given, gw is overwritten with softmax(z)^T x minus the outer
            product of the vectors.
    """

    def body(i: int, j: int) -> Array:
        e = buffer[i // width, : len(x), : j - i]
        scale = f[i // width, :, None]
        if initial:
            np.matmul(e.T, scale * x, out=gw[i:j])
            gw[i:j] -= np.outer(initial[0][i:j], initial[1])
        else:
            gw[i:j] += e.T @ (scale * x)
        part = buffer[i // width, : len(x), : x.shape[1]]
        return np.multiply(e @ w[i:j], scale, out=part)

    gx, *parts = parallel_for(body, len(w), width)
    for part in parts:
        gx += part
    return gx


@cross_entropy.fast("cupy", "float32", "float16", "bfloat16")
def cross_entropy_cuda(
    logits: Array, targets: Array, smoothing: LabelSmoothing = NO_SMOOTHING, grad: bool = True
) -> Output:
    """Launch one block per row, which reads the row once, or twice if it does not fit in shared memory."""
    xp = array_module(logits)
    logits = contiguous(logits)
    gz = xp.empty(logits.shape, logits.dtype) if grad else None
    losses = xp.empty(len(logits), np.float32)
    losses_and_gradient(logits, contiguous(targets), gz, losses, smoothing)
    return total_loss(losses), gz


def losses_and_gradient(z: Array, targets: Array, gz: Array | None, losses: Array, smoothing: LabelSmoothing) -> None:
    """Write the float32 losses (n,) of logits z (n, V) and, unless gz is None, the gradient to gz, which may be z.

    z and gz have the same strides; their rows must be contiguous.
    """
    n, classes = z.shape
    on_value, off_value = smoothing.target_weights(classes)
    sizes = np.int32(classes), np.int64(z.strides[0] // z.itemsize), np.float32(on_value), np.float32(off_value)
    row_bytes = classes * z.itemsize
    two_blocks = 2 * (row_bytes + RESERVED)  # with room for two blocks, rows stay in shared memory
    keep_row = gz is not None and two_blocks <= overridable_size(shared_memory(array_module(z)))
    flags = np.int64(smoothing.pad_id), np.int32(smoothing.excludes_padding(classes)), np.int32(keep_row)
    args = z, targets, gz, losses, *sizes, *flags
    threads = 64 if classes <= 1024 else 512
    launch(
        "cross_entropy.cu", "cross_entropy", n, threads, args, row_bytes if keep_row else 0,
        strided=True, T=z.dtype, ID=targets.dtype,
    )  # fmt: skip


def total_loss(losses: Array) -> Array:
    """Return the sum () of the losses (n,)."""
    loss = array_module(losses).empty((), np.float32)
    launch("sums.cu", "total", 1, 1024, (losses, loss, np.int32(losses.size)), T=loss.dtype)
    return loss


@linear_cross_entropy.fast("cupy", "float32", "float16", "bfloat16")
def linear_cross_entropy_cuda(
    x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = NO_SMOOTHING, grad: bool = True
) -> Output:
    """Compute chunks of rows in one buffer for logits and their gradient. The chunks of gw are added in float32.

    Rows of padding are computed too, with a zero gradient: to skip them, the host would have to wait for their count.
    """
    xp = array_module(x)
    x = contiguous(x)
    targets = contiguous(targets)
    n, classes = len(x), len(w)
    columns = ceil_div(classes, CUDA_MULTIPLE) * CUDA_MULTIPLE  # unaligned rows rule out tensor cores and 16-byte loads
    chunk = overridable_size(max(CUDA_MULTIPLE, CUDA_CHUNK // columns // CUDA_MULTIPLE * CUDA_MULTIPLE))
    buffer = xp.empty((min(chunk, n), columns), x.dtype)[:, :classes]
    losses = xp.empty(n, np.float32)
    gx: Any = xp.empty(x.shape, x.dtype) if grad else None
    gw: Any = (xp.empty if n else xp.zeros)(w.shape, np.float32) if grad else None
    for start in range(0, n, chunk):
        rows = slice(start, start + chunk)
        z = blas.matmul(x[rows], w.T, out=buffer[: len(x[rows])])
        losses_and_gradient(z, targets[rows], z if grad else None, losses[rows], smoothing)
        if grad:
            blas.matmul(z, w, out=gx[rows])
            blas.matmul(z.T, x[rows], out=gw, add=start > 0)
    return total_loss(losses), (gx, gw) if grad else None


@linear_cross_entropy_grad.fast("cupy", "float32", "float16", "bfloat16")
def linear_cross_entropy_grad_cuda(
    g: Array, gx: Array, gw: Array, accumulate_into: Array | None = None
) -> tuple[Array, Array]:
    """Scale gx in place, and add the float32 gw to a float32 target in one pass."""
    gx = scale_in_place(g, gx)
    if accumulate_into is None or accumulate_into.dtype != np.float32:
        return gx, scale_in_place(g, gw).astype(gx.dtype, copy=False)
    factor = array_module(gw).asarray(g)  # an operation on 0-d NumPy arrays returns a scalar, not an array
    args = accumulate_into, factor, gw, np.int64(gw.size)
    launch("sums.cu", "accumulate", ceil_div(gw.size, 8 * BLOCK_THREADS), BLOCK_THREADS, args, T=gw.dtype)
    return gx, accumulate_into
