"""Adam (Kingma and Ba, 2015; paper section 5.3) over one flat buffer that holds every parameter."""

from typing import NamedTuple

import numpy as np

from npx.backend import Array, array_module, ceil_div
from npx.cpu.row_blocks import map_blocks
from npx.cuda.launch import BLOCK_THREADS, launch
from npx.dispatch import kernel


class AdamCoefficients(NamedTuple):
    """The coefficients of one update, the same for every parameter; `adam_coefficients` computes them."""

    grad_scale: float  # multiplies the gradient
    one_minus_beta1: float
    one_minus_beta2: float
    step_size: float  # learning rate with both bias corrections
    eps: float  # eps with bias correction
    decay_factor: float  # multiplies the parameters: 1 - lr * weight_decay


def adam_coefficients(
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.98,
    eps: float = 1e-9,
    weight_decay: float = 0.0,
    eps_before_correction: bool = False,
    grad_scale: float = 1.0,
) -> AdamCoefficients:
    """Return the coefficients of update number `step`, counted from 1.

    Let c1 = 1 - beta1^step and c2 = 1 - beta2^step. Multiplying numerator and denominator by sqrt(c2) turns the bias
    corrections into two scalars: lr mhat / (sqrt(vhat) + eps) = (lr sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2)).

    Args:
        eps_before_correction: whether to add eps to sqrt(v) before the bias correction, as TensorFlow and fairseq do.
        grad_scale: the factor of the gradient, which undoes loss scaling and clips the gradient.
    """
    root = (1 - beta2**step) ** 0.5
    step_size = lr * root / (1 - beta1**step)
    scaled_eps = eps if eps_before_correction else eps * root
    return AdamCoefficients(grad_scale, 1 - beta1, 1 - beta2, step_size, scaled_eps, 1 - lr * weight_decay)


@kernel
def adam(
    p: Array, g: Array, m: Array, v: Array, coefficients: AdamCoefficients, p_compute: Array | None = None
) -> None:
    """Update the flat arrays p, m, v (n,) in place from the gradient g (n,) times `grad_scale`.

        m = beta1 m + (1 - beta1) g          mhat = m / (1 - beta1^step)
        v = beta2 v + (1 - beta2) g^2        vhat = v / (1 - beta2^step)
        p = p - lr (mhat / (sqrt(vhat) + eps) + weight_decay p)

    Args:
        p_compute: an array (n,) of the compute dtype that receives a rounded copy of p, or None.
    """
    grad_scale, one_minus_beta1, one_minus_beta2, step_size, eps, decay_factor = coefficients
    g = grad_scale * g
    m += one_minus_beta1 * (g - m)
    v += one_minus_beta2 * (g * g - v)
    p *= decay_factor
    p -= step_size * m / (array_module(v).sqrt(v) + eps)
    if p_compute is not None:
        p_compute[...] = p.astype(p_compute.dtype)


@adam.fast("numpy", "float32", "float64")
def adam_numpy(
    p: Array, g: Array, m: Array, v: Array, coefficients: AdamCoefficients, p_compute: Array | None = None
) -> None:
    """Update one block at a time, with two small scratch arrays."""
    grad_scale, one_minus_beta1, one_minus_beta2, step_size, eps, decay_factor = coefficients

    def body(i: int, j: int) -> None:  # gb, mb, vb: the block's part of grad_scale * g, m, v
        gb = g[i:j] * grad_scale
        mb, vb = m[i:j], v[i:j]
        scratch = gb - mb
        scratch *= one_minus_beta1
        mb += scratch
        np.multiply(gb, gb, out=scratch)
        scratch -= vb
        scratch *= one_minus_beta2
        vb += scratch
        np.sqrt(vb, out=scratch)
        scratch += eps
        np.divide(mb, scratch, out=scratch)
        scratch *= step_size
        if decay_factor != 1:
            p[i:j] *= decay_factor
        p[i:j] -= scratch
        if p_compute is not None:
            p_compute[i:j] = p[i:j]

    map_blocks(body, p.size, p.itemsize)


@adam.fast("cupy", "float32")
def adam_cuda(
    p: Array, g: Array, m: Array, v: Array, coefficients: AdamCoefficients, p_compute: Array | None = None
) -> None:
    """Update all arrays in one pass; for non-contiguous arrays, run the reference."""
    if not all(x is None or x.flags.c_contiguous for x in (p, g, m, v, p_compute)):
        return adam.reference(p, g, m, v, coefficients, p_compute)
    n = p.size
    launch(
        "adam.cu", "adam", ceil_div(n, 8 * BLOCK_THREADS), BLOCK_THREADS,
        (p, g, m, v, p_compute, np.int64(n), *map(np.float32, coefficients)),
        LOW=(p if p_compute is None else p_compute).dtype,
    )  # fmt: skip
