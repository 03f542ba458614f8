"""Adam (Kingma and Ba, 2015; paper section 5.3) over one flat buffer that holds every parameter."""

import numpy as np

from npx.array import Array, array_module
from npx.cuda.launch import BLOCK_THREADS, launch
from npx.registry import kernel
from npx.rows import map_blocks


@kernel
def adam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.98,
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    eps_inside: bool = False,
    low: Array | None = None,
    scale: float = 1.0,
) -> None:
    """One update of the flat arrays p, m, v (n,) in place from the gradient scale g (n,); `step` counts from 1.

        m = beta1 m + (1 - beta1) g          mhat = m / (1 - beta1^step)
        v = beta2 v + (1 - beta2) g^2        vhat = v / (1 - beta2^step)
        p = p - lr (mhat / (sqrt(vhat) + eps) + weight_decay p)

    `eps_inside`: eps is added to sqrt(v) before the bias correction instead, as TensorFlow and fairseq do. `low` (n,):
    receives p in its own, lower precision. `scale`: undoes the scaling of a loss, or clips.
    """
    xp = array_module(p)
    g = scale * g
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    step_size, floor = step_size_and_eps(step, lr, beta1, beta2, eps, eps_inside)
    p *= 1 - lr * weight_decay
    p -= step_size * m / (xp.sqrt(v) + floor)
    if low is not None:
        low[...] = p.astype(low.dtype)


def step_size_and_eps(
    step: int, lr: float, beta1: float, beta2: float, eps: float, eps_inside: bool
) -> tuple[float, float]:
    """Both bias corrections as two numbers: lr mhat / (sqrt(vhat) + eps) = step_size m / (sqrt(v) + floor).

    With c1 = 1 - beta1^t and c2 = 1 - beta2^t: multiply numerator and denominator by sqrt(c2).
    """
    root = (1 - beta2**step) ** 0.5
    return lr * root / (1 - beta1**step), eps if eps_inside else eps * root


@adam.fast("numpy", "float32", "float64")
def adam_numpy(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.98,
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    eps_inside: bool = False,
    low: Array | None = None,
    scale: float = 1.0,
) -> None:
    """One block at a time, in two small scratch arrays."""
    step_size, floor = step_size_and_eps(step, lr, beta1, beta2, eps, eps_inside)

    def body(i: int, j: int) -> None:
        gb, mb, vb = g[i:j] * scale, m[i:j], v[i:j]
        scratch = gb - mb
        scratch *= 1 - beta1
        mb += scratch
        np.multiply(gb, gb, out=scratch)
        scratch -= vb
        scratch *= 1 - beta2
        vb += scratch
        np.sqrt(vb, out=scratch)
        scratch += floor
        np.divide(mb, scratch, out=scratch)
        scratch *= step_size
        if weight_decay:
            p[i:j] *= 1 - lr * weight_decay
        p[i:j] -= scratch
        if low is not None:
            low[i:j] = p[i:j]

    map_blocks(body, p.size, p.itemsize)


@adam.fast("cupy", "float32")
def adam_cuda(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.98,
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    eps_inside: bool = False,
    low: Array | None = None,
    scale: float = 1.0,
) -> None:
    """One pass over all five arrays, which are flat buffers; parts of others are left to the reference."""
    if not all(x is None or x.flags.c_contiguous for x in (p, g, m, v, low)):
        return adam.reference(p, g, m, v, step, lr, beta1, beta2, eps, weight_decay, eps_inside, low, scale)
    step_size, floor = step_size_and_eps(step, lr, beta1, beta2, eps, eps_inside)
    numbers = scale, 1 - beta1, 1 - beta2, step_size, floor, 1 - lr * weight_decay
    n = p.size
    launch(
        "adam.cu", "adam", -(-n // (8 * BLOCK_THREADS)), BLOCK_THREADS,
        (p, g, m, v, low, np.int64(n), *map(np.float32, numbers)), LOW=p.dtype if low is None else low.dtype,
    )  # fmt: skip
