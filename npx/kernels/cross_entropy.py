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

from typing import Any

import numpy as np

from npx import cuda
from npx.cuda import THREADS, contiguous, launch
from npx.device import array_module
from npx.parallel import map_blocks, map_ranges, matmul
from npx.precision import wide
from npx.registry import kernel

SMOOTHING_OVER = ("all", "others", "others_without_pad")
ROWS = 64  # whose logits one thread forms at a time
CHUNK = 1 << 24  # logits that exist at a time in `linear_cross_entropy`: 64 MiB of float32
CUDA_CHUNK = 1 << 28  # the same on a GPU, which products of thousands of rows keep busy: 512 MiB of bfloat16


def on_and_off(smoothing: float, over: str, classes: int) -> tuple[float, float]:
    """The two numbers of the smoothed target; ValueError for a smoothing or an `over` that there is not."""
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing: expected a share from 0 to below 1; got {smoothing!r}; try 0.1")
    if over not in SMOOTHING_OVER:
        raise ValueError(f"smoothing_over: expected one of {', '.join(SMOOTHING_OVER)}; got {over!r}")
    if over == "all":
        return 1 - smoothing, smoothing / classes
    off = smoothing / max(1, classes - (1 if over == "others" else 2))
    return 1 - smoothing - off, off


@kernel
def cross_entropy(
    logits: Any, targets: Any, smoothing: float = 0.0, over: str = "all", pad_id: int = 0, grad: bool = True
) -> tuple[Any, Any]:
    """The summed loss () and, if `grad`, its gradient (N, V) for logits (N, V) and targets (N,) integers in [0, V).

    The loss of float16 and bfloat16 logits is float32: summed over a batch it is beyond their range or resolution.
    """
    xp = array_module(logits)
    n, classes = logits.shape
    on, off = on_and_off(smoothing, over, classes)
    q = xp.full(logits.shape, off, logits.dtype)
    q[xp.arange(n), targets] += on
    if over == "others_without_pad":
        q[:, pad_id] = 0
    real = (targets != pad_id)[:, None]
    peak = logits.max(axis=-1, keepdims=True)
    log_p = logits - peak - xp.log(xp.sum(xp.exp(logits - peak), axis=-1, keepdims=True))
    loss = -xp.sum(xp.where(real, q * log_p, 0), dtype=wide(logits.dtype))
    return loss, xp.where(real, xp.exp(log_p) - q, 0).astype(logits.dtype) if grad else None


@kernel
def linear_cross_entropy(
    x: Any, w: Any, targets: Any, smoothing: float = 0.0, over: str = "all", pad_id: int = 0, grad: bool = True
) -> tuple[Any, Any, Any]:
    """`cross_entropy` of the logits x w^T, and the gradients of x and w, without keeping logits or probabilities.

    x (N, D); w (V, D), the output projection, which is the embedding table; targets (N,). Returns the summed loss (),
    gx (N, D) and gw (V, D), both None if not `grad`.
    """
    loss, gz = cross_entropy.reference(x @ w.T, targets, smoothing, over, pad_id, grad)
    return (loss, gz @ w, gz.T @ x) if grad else (loss, None, None)


def logits_to_gradient(
    z: np.ndarray, targets: np.ndarray, smoothing: float, over: str, pad_id: int, grad: bool
) -> float:
    """Turn logits z (n, V), whose targets (n,) are no padding, into their gradient in place; return the summed loss."""
    on, off = on_and_off(smoothing, over, z.shape[1])
    ones = np.ones(z.shape[1], z.dtype)
    at_target = np.arange(len(z)), targets
    explained = on * z[at_target]
    if off:
        explained += off * (z @ ones)
        if over == "others_without_pad":
            explained -= off * z[:, pad_id]
    peak = z.max(axis=1)
    z -= peak[:, None]
    np.exp(z, out=z)
    total = z @ ones
    if grad:
        z *= (1 / total)[:, None]
        if off:
            z -= off
            if over == "others_without_pad":
                z[:, pad_id] += off
        z[at_target] -= on
    return float((np.log(total) + peak - explained).sum(dtype=np.float64))


@cross_entropy.fast("numpy", "float32", "float64")
def cross_entropy_numpy(
    logits: np.ndarray,
    targets: np.ndarray,
    smoothing: float = 0.0,
    over: str = "all",
    pad_id: int = 0,
    grad: bool = True,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows that count are copied and turned into their gradient in place."""
    real = np.flatnonzero(targets != pad_id)
    z, targets_of_real = logits[real], targets[real]

    def body(i: int, j: int) -> float:
        return logits_to_gradient(z[i:j], targets_of_real[i:j], smoothing, over, pad_id, grad)

    loss = np.asarray(sum(map_blocks(body, len(z), z.itemsize * z.shape[1])), logits.dtype)
    if not grad:
        return loss, None
    gz = np.zeros(logits.shape, logits.dtype)
    gz[real] = z
    return loss, gz


@linear_cross_entropy.fast("numpy", "float32", "float64")
def linear_cross_entropy_numpy(
    x: np.ndarray,
    w: np.ndarray,
    targets: np.ndarray,
    smoothing: float = 0.0,
    over: str = "all",
    pad_id: int = 0,
    grad: bool = True,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Padding left out, then chunks of rows through one buffer for logits and their gradient.

    Within a chunk each thread takes a few rows from their logits to gx while they are in cache; then gw, which every
    row adds to, is one product over the whole chunk.
    """
    real = np.flatnonzero(targets != pad_id)
    rows, targets = x[real], targets[real]
    chunk = max(ROWS, CHUNK // len(w) // ROWS * ROWS)
    buffer = np.empty((min(chunk, len(rows)), len(w)), x.dtype)
    grows = np.empty(rows.shape, x.dtype)
    gw = np.zeros(w.shape, x.dtype) if grad else None
    loss = 0.0

    for start in range(0, len(rows), chunk):
        x_chunk, gx_chunk, t_chunk = (a[start : start + chunk] for a in (rows, grows, targets))

        def body(i: int, j: int, x_chunk=x_chunk, gx_chunk=gx_chunk, t_chunk=t_chunk) -> float:
            z = np.matmul(x_chunk[i:j], w.T, out=buffer[i:j])
            part = logits_to_gradient(z, t_chunk[i:j], smoothing, over, pad_id, grad)
            if grad:
                np.matmul(z, w, out=gx_chunk[i:j])
            return part

        loss += sum(map_ranges(body, len(x_chunk), ROWS))
        if gw is not None:
            gw += matmul(buffer[: len(x_chunk)].T, x_chunk)
    if gw is None:
        return np.asarray(loss, x.dtype), None, None
    gx = np.zeros(x.shape, x.dtype)
    gx[real] = grows
    return np.asarray(loss, x.dtype), gx, gw


@cross_entropy.fast("cupy", "float32", "float16", "bfloat16")
def cross_entropy_cuda(
    logits: Any, targets: Any, smoothing: float = 0.0, over: str = "all", pad_id: int = 0, grad: bool = True
) -> tuple[Any, Any]:
    """A block for each row, which is read twice and written once. The loss is float32."""
    xp = array_module(logits)
    logits = contiguous(logits)
    gz = xp.empty(logits.shape, logits.dtype) if grad else None
    losses = xp.empty(len(logits), np.float32)
    losses_and_gradient(logits, contiguous(targets), gz, losses, smoothing, over, pad_id)
    return total_loss(losses), gz


def losses_and_gradient(z: Any, targets: Any, gz: Any, losses: Any, smoothing: float, over: str, pad_id: int) -> None:
    """Write the losses (n,), float32, of logits z (n, V) and, unless gz is None, their gradient, perhaps over z."""
    n, classes = z.shape
    on, off = on_and_off(smoothing, over, classes)
    numbers = (
        np.int32(classes),
        np.float32(on),
        np.float32(off),
        np.int64(pad_id),
        np.int32(over == "others_without_pad"),
    )
    threads = 64 if classes <= 1024 else 512
    launch(
        "cross_entropy.cu", "cross_entropy", n, threads, (z, targets, gz, losses, *numbers), T=z.dtype, ID=targets.dtype
    )


def total_loss(losses: Any) -> Any:
    """The sum () of losses (n,)."""
    loss = array_module(losses).empty((), np.float32)
    launch("sums.cu", "total", 1, THREADS, (losses, loss, np.int32(losses.size)), T=loss.dtype)
    return loss


@linear_cross_entropy.fast("cupy", "float32", "float16", "bfloat16")
def linear_cross_entropy_cuda(
    x: Any,
    w: Any,
    targets: Any,
    smoothing: float = 0.0,
    over: str = "all",
    pad_id: int = 0,
    grad: bool = True,
) -> tuple[Any, Any, Any]:
    """Chunks of rows through one buffer for logits and their gradient; gw is summed over chunks in float32.

    Padding takes part, with a gradient of zeros: leaving it out would make the host wait for its number.
    """
    xp = array_module(x)
    x, targets = contiguous(x), contiguous(targets)
    n, classes = len(x), len(w)
    chunk = max(ROWS, CUDA_CHUNK // classes // ROWS * ROWS)
    buffer = xp.empty((min(chunk, n), classes), x.dtype)
    losses = xp.empty(n, np.float32)
    gx: Any = xp.empty(x.shape, x.dtype) if grad else None
    gw: Any = xp.zeros(w.shape, x.dtype) if grad else None
    total = xp.zeros(w.shape, np.float32) if grad and n > chunk else None
    for start in range(0, n, chunk):
        rows = slice(start, start + chunk)
        z = cuda.matmul(x[rows], w.T, out=buffer[: len(x[rows])])
        losses_and_gradient(z, targets[rows], z if grad else None, losses[rows], smoothing, over, pad_id)
        if grad:
            cuda.matmul(z, w, out=gx[rows])
            cuda.matmul(z.T, x[rows], out=gw)
            if total is not None:
                last = start + chunk >= n
                args = total, gw, gw if last else None, np.int64(gw.size)
                launch("sums.cu", "accumulate", -(-gw.size // (8 * THREADS)), THREADS, args, T=x.dtype)
    return total_loss(losses), gx, gw
