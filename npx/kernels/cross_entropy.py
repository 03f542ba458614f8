"""Label-smoothed cross entropy from logits (paper section 5.4), alone and fused with the projection to the vocabulary.

The smoothed target is q = on * [k = target] + off for every class k, where, for eps = `smoothing` and V classes,

    over = "all"                  off = eps / V        eps spread over the whole vocabulary, target and padding included
                                                       (Szegedy et al., 2016, which the paper cites; also PyTorch)
    over = "others"               off = eps / (V - 1)  over every class but the target
    over = "others_without_pad"   off = eps / (V - 2)  over every class but the target and padding, whose q is 0

and `on` is what the target is still missing, so that q sums to 1. Then, z being the logits,

    loss = - sum_k q_k log softmax(z)_k = logsumexp(z) - on z_target - off sum_k z_k,      dloss/dz = softmax(z) - q.

Positions whose target is padding count nothing: no loss, no gradient.
"""

from typing import Any, NamedTuple

import numpy as np

from npx.array import Array, added, array_module
from npx.cpu.row_blocks import block, map_blocks, parallel_ranges
from npx.cpu.tune import is_configured
from npx.cuda import blas
from npx.cuda.launch import BLOCK_THREADS, contiguous, launch
from npx.kernels.embedding import sums_by_id
from npx.precision import accumulation_dtype
from npx.registry import Output, kernel

SMOOTHING_CLASSES = ("all", "others", "others_without_pad")
PANEL = 1024  # classes, at most, whose logits one thread forms at a time in `linear_cross_entropy`
CHUNK = 3 << 22  # logits that exist at a time there: 48 MiB of float32
CUDA_CHUNK = 1 << 28  # the same on a GPU, which products of thousands of rows keep busy: 512 MiB of bfloat16
CUDA_ROWS = 64  # a chunk there has a multiple of so many rows, and room for a multiple of so many logits in each


class LabelSmoothing(NamedTuple):
    """How targets are smoothed: by the `share` eps, spread `over` which classes; targets `pad_id` count nothing."""

    share: float = 0.0
    over: str = "all"
    pad_id: int = 0

    def on_and_off(self, classes: int) -> tuple[float, float]:
        """The two numbers of the smoothed target; ValueError for a share or an `over` that there is not."""
        if not 0 <= self.share < 1:
            raise ValueError(f"smoothing: expected a share from 0 to below 1; got {self.share!r}; try 0.1")
        if self.over not in SMOOTHING_CLASSES:
            raise ValueError(f"smoothing_over: expected one of {', '.join(SMOOTHING_CLASSES)}; got {self.over!r}")
        if self.over == "all":
            return 1 - self.share, self.share / classes
        off = self.share / max(1, classes - (1 if self.over == "others" else 2))
        return 1 - self.share - off, off

    @property
    def spares_padding(self) -> bool:
        """Whether the q of padding is 0 wherever it is not the target."""
        return self.over == "others_without_pad"


PLAIN = LabelSmoothing()


@kernel
def cross_entropy(logits: Array, targets: Array, smoothing: LabelSmoothing = PLAIN, grad: bool = True) -> Output:
    """The summed loss () of logits (N, V) and targets (N,) integers in [0, V). Saved, if `grad`: its gradient (N, V).

    The loss of float16 and bfloat16 logits is float32: summed over a batch it is beyond their range or resolution.
    """
    xp = array_module(logits)
    n, classes = logits.shape
    on, off = smoothing.on_and_off(classes)
    q = xp.full(logits.shape, off, logits.dtype)
    q[xp.arange(n), targets] += on
    if smoothing.spares_padding:
        q[:, smoothing.pad_id] = 0
    real = (targets != smoothing.pad_id)[:, None]
    peak = logits.max(axis=-1, keepdims=True)
    log_p = logits - peak - xp.log(xp.sum(xp.exp(logits - peak), axis=-1, keepdims=True))
    explained = q * xp.where(q != 0, log_p, 0)  # a class that q leaves out may have a logit of -inf
    loss = -xp.sum(xp.where(real, explained, 0), dtype=accumulation_dtype(logits.dtype))
    return loss, xp.where(real, xp.exp(log_p) - q, 0).astype(logits.dtype) if grad else None


@cross_entropy.gradient
def cross_entropy_grad(g: Array, gz: Array) -> Array:
    """g gz (N, V) for the gradient g () of the loss."""
    return (g * gz).astype(gz.dtype, copy=False)


@kernel
def linear_cross_entropy(
    x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = PLAIN, grad: bool = True
) -> Output:
    """`cross_entropy` of the logits x w^T, without keeping logits or probabilities.

    x (N, D); w (V, D), the output projection, which is the embedding table; targets (N,). Saved, if `grad`: the
    gradients gx (N, D) and gw (V, D) of the loss, which are formed together with it.
    """
    loss, gz = cross_entropy.reference(x @ w.T, targets, smoothing, grad)
    return loss, (gz @ w, gz.T @ x) if grad else None


@linear_cross_entropy.gradient
def linear_cross_entropy_grad(
    g: Array, gx: Array, gw: Array, accumulate_into: Array | None = None
) -> tuple[Array, Array]:
    """g times the gradients, for the gradient g () of the loss. `accumulate_into`: an array that gw is added to, if
    not None."""
    return added(
        ((g * gx).astype(gx.dtype, copy=False), (g * gw).astype(gw.dtype, copy=False)), (None, accumulate_into)
    )


@cross_entropy_grad.fast("numpy", "float32", "float64")
@cross_entropy_grad.fast("cupy", "float32", "float16", "bfloat16")
def scaled_in_place(g: Array, x: Array) -> Array:
    """g x written over x, and so in its dtype: nobody else holds it."""
    x *= g
    return x


@linear_cross_entropy_grad.fast("numpy", "float32", "float64")
def both_scaled_in_place(g: Array, gx: Array, gw: Array, accumulate_into: Array | None = None) -> tuple[Array, Array]:
    """The same for two; gw is added where it goes while a block of its rows is in cache."""

    def body(i: int, j: int) -> None:
        part = scaled_in_place(g, gw[i:j])
        if accumulate_into is not None:
            accumulate_into[i:j] += part

    map_blocks(body, len(gw), gw[:1].nbytes)
    return scaled_in_place(g, gx), gw if accumulate_into is None else accumulate_into


def logits_to_gradient(z: Array, targets: Array, smoothing: LabelSmoothing, grad: bool) -> float:
    """Turn logits z (n, V), whose targets (n,) are no padding, into their gradient in place; return the summed loss."""
    on, off = smoothing.on_and_off(z.shape[1])
    ones = np.ones(z.shape[1], z.dtype)
    at_target = np.arange(len(z)), targets
    explained = on * z[at_target]
    if off:
        if smoothing.spares_padding:
            padding = z[:, smoothing.pad_id].copy()  # may be -inf, which no difference takes back
            z[:, smoothing.pad_id] = 0
        explained += off * (z @ ones)
        if smoothing.spares_padding:
            z[:, smoothing.pad_id] = padding
    peak = z.max(axis=1)
    z -= peak[:, None]
    np.exp(z, out=z)
    total = z @ ones
    if grad:
        z *= (1 / total)[:, None]
        if off:
            z -= off
            if smoothing.spares_padding:
                z[:, smoothing.pad_id] += off
        z[at_target] -= on
    return float((np.log(total) + peak - explained).sum(dtype=np.float64))


@cross_entropy.fast("numpy", "float32", "float64")
def cross_entropy_numpy(logits: Array, targets: Array, smoothing: LabelSmoothing = PLAIN, grad: bool = True) -> Output:
    """Rows that count are copied and turned into their gradient in place."""
    real = np.flatnonzero(targets != smoothing.pad_id)
    z, targets_of_real = logits[real], targets[real]

    def body(i: int, j: int) -> float:
        return logits_to_gradient(z[i:j], targets_of_real[i:j], smoothing, grad)

    loss = np.asarray(sum(map_blocks(body, len(z), z.itemsize * z.shape[1])), logits.dtype)
    if not grad:
        return loss, None
    gz = np.zeros(logits.shape, logits.dtype)
    gz[real] = z
    return loss, gz


@linear_cross_entropy.fast("numpy", "float32", "float64")
def linear_cross_entropy_numpy(
    x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = PLAIN, grad: bool = True
) -> Output:
    """Padding left out, then chunks of rows, and within a chunk panels of classes: no pass over all logits.

    With z = x w^T and q = on * [target] + off, the gradients of the loss are

        gx = softmax(z) w   - on w[targets] - off sum_k w_k          (sums over the classes that smoothing reaches)
        gw = softmax(z)^T x - on sum of the x of a class's rows - off sum_n x_n

    so q never has to be spread over the classes. And with m the largest logit of a row in one panel, that panel's part
    of softmax(z) is f exp(z - m) with one number f = exp(m - logsumexp(z)) a row, which scales rows of x and of gx
    instead of logits. What is left to do on the logits themselves is the maximum, the exponential and its sum, in
    cache, right after the product that made them.
    """
    on, off = smoothing.on_and_off(len(w))
    real = np.flatnonzero(targets != smoothing.pad_id)
    padded = len(real) < len(x)
    x_real, targets = (x[real], targets[real]) if padded else (x, targets)
    smoothed = np.full(len(w), off, x.dtype)  # off, or 0 where smoothing does not reach
    if smoothing.spares_padding:
        smoothed[smoothing.pad_id] = 0
    off_w = smoothed @ w  # (D,)
    gx_real: Any = w[targets]
    loss = -(on * np.einsum("nd,nd->n", x_real, gx_real) + x_real @ off_w).sum(dtype=np.float64)
    gx_real *= -on
    gx_real -= off_w
    gw = (np.empty if len(real) else np.zeros)(w.shape, x.dtype) if grad else None

    chunks = max(1, -(-len(real) * len(w) // CHUNK))
    rows = block(max(1, -(-len(real) // chunks)))
    width = block(min(PANEL, -(-len(w) // 4)) if is_configured() else len(w))
    buffer = np.empty((-(-len(w) // width), rows, max(width, x.shape[1])), x.dtype)
    for start in range(0, len(real), rows):
        chunk = x_real[start : start + rows]
        lse, share = panels_of_exponentials(chunk, w, buffer, width)
        loss += lse.sum(dtype=np.float64)
        if gw is not None:
            less = None if start else (smoothed, x_real.sum(axis=0))
            gx_real[start : start + rows] += panels_of_gradients(chunk, w, buffer, width, share, gw, less)
    if gw is None:
        return np.asarray(loss, x.dtype), None
    del buffer
    gx = gx_real
    if padded:
        gx = np.zeros(x.shape, x.dtype)
        gx[real] = gx_real
    of_targets, sums = sums_by_id(x_real, targets)
    gw[of_targets] -= on * sums
    return np.asarray(loss, x.dtype), (gx, gw)


def panels_of_exponentials(x: Array, w: Array, buffer: Array, width: int) -> tuple[Array, Array]:
    """Leave exp(z - m) of the logits z = x w^T in buffer[:, : len(x)], m a row's largest logit in each panel.

    Returns logsumexp(z) (n,), and by what exp(z - m) is multiplied to give softmax(z): f (panels, n).
    """

    def body(i: int, j: int) -> tuple[Array, Array]:
        z = np.matmul(x, w[i:j].T, out=buffer[i // width, : len(x), : j - i])
        m = z.max(axis=1)
        z -= m[:, None]
        np.exp(z, out=z)
        return m, z @ np.ones(j - i, z.dtype)

    m, totals = (np.stack(parts) for parts in zip(*parallel_ranges(body, len(w), width), strict=True))  # (panels, n)
    peak = m.max(axis=0)
    f = np.exp(m - peak)
    total = (totals * f).sum(axis=0)
    return np.log(total) + peak, f / total


def panels_of_gradients(
    x: Array,
    w: Array,
    buffer: Array,
    width: int,
    f: Array,
    gw: Array,
    less: tuple[Array, Array] | None,
) -> Array:
    """softmax(z) w (n, D). softmax(z)^T x is added to gw (V, D); `less`: gw begins as minus the product of the two.

    The part of each panel is left in the buffer, where its exponentials were.
    """

    def body(i: int, j: int) -> Array:
        e, scale = buffer[i // width, : len(x), : j - i], f[i // width, :, None]
        if less:
            np.matmul(e.T, scale * x, out=gw[i:j])
            gw[i:j] -= np.outer(less[0][i:j], less[1])
        else:
            gw[i:j] += e.T @ (scale * x)
        part = buffer[i // width, : len(x), : x.shape[1]]
        return np.multiply(e @ w[i:j], scale, out=part)

    gx, *parts = parallel_ranges(body, len(w), width)
    for part in parts:
        gx += part
    return gx


@cross_entropy.fast("cupy", "float32", "float16", "bfloat16")
def cross_entropy_cuda(logits: Array, targets: Array, smoothing: LabelSmoothing = PLAIN, grad: bool = True) -> Output:
    """A block for each row, which is read twice and written once. The loss is float32."""
    xp = array_module(logits)
    logits = contiguous(logits)
    gz = xp.empty(logits.shape, logits.dtype) if grad else None
    losses = xp.empty(len(logits), np.float32)
    losses_and_gradient(logits, contiguous(targets), gz, losses, smoothing)
    return total_loss(losses), gz


def losses_and_gradient(z: Array, targets: Array, gz: Array | None, losses: Array, smoothing: LabelSmoothing) -> None:
    """Write the losses (n,), float32, of logits z (n, V) and, unless gz is None, their gradient, perhaps over z.

    Rows of z may lie apart, and those of gz as far.
    """
    n, classes = z.shape
    on, off = smoothing.on_and_off(classes)
    sizes = np.int32(classes), np.int64(z.strides[0] // z.itemsize), np.float32(on), np.float32(off)
    padding = np.int64(smoothing.pad_id)
    args = z, targets, gz, losses, *sizes, padding, np.int32(smoothing.spares_padding)
    threads = 64 if classes <= 1024 else 512
    launch("cross_entropy.cu", "cross_entropy", n, threads, args, strided=True, T=z.dtype, ID=targets.dtype)


def total_loss(losses: Array) -> Array:
    """The sum () of losses (n,)."""
    loss = array_module(losses).empty((), np.float32)
    launch("sums.cu", "total", 1, BLOCK_THREADS, (losses, loss, np.int32(losses.size)), T=loss.dtype)
    return loss


@linear_cross_entropy.fast("cupy", "float32", "float16", "bfloat16")
def linear_cross_entropy_cuda(
    x: Array, w: Array, targets: Array, smoothing: LabelSmoothing = PLAIN, grad: bool = True
) -> Output:
    """Chunks of rows through one buffer for logits and their gradient; gw is float32, to which products are added.

    Padding takes part, with a gradient of zeros: leaving it out would make the host wait for its number.
    """
    xp = array_module(x)
    x, targets = contiguous(x), contiguous(targets)
    n, classes = len(x), len(w)
    room = -(-classes // CUDA_ROWS) * CUDA_ROWS  # an odd V would take away the tensor cores and loads of 16 bytes
    chunk = block(max(CUDA_ROWS, CUDA_CHUNK // room // CUDA_ROWS * CUDA_ROWS))
    buffer = xp.empty((min(chunk, n), room), x.dtype)[:, :classes]
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
    """gx in place; gw, float32, in one pass to where it goes, if that is float32."""
    gx = scaled_in_place(g, gx)
    if accumulate_into is None or accumulate_into.dtype != np.float32:
        return gx, scaled_in_place(g, gw).astype(gx.dtype, copy=False)
    args = (
        accumulate_into,
        array_module(gw).asarray(g),
        gw,
        np.int64(gw.size),
    )  # NumPy's products of 0-d arrays are no arrays
    launch("sums.cu", "accumulate", -(-gw.size // (8 * BLOCK_THREADS)), BLOCK_THREADS, args, T=gw.dtype)
    return gx, accumulate_into
