"""The registry of compositions: for each fused operation, an equivalent function made of small operations.

Most compositions are in `neural.py`, next to their operations. This module has the registry and two helpers.
"""

from collections.abc import Callable
from typing import Any

import npx
from autograd import operations as ops
from autograd.engine import Tensor
from npx import Packing
from npx.kernels.attention_spec import rotation_factors

COMPOSITIONS: dict[str, Callable[..., Tensor]] = {}


def composition(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Register `composed_NAME` as the composition of the operation NAME."""
    COMPOSITIONS[function.__name__.removeprefix("composed_")] = function
    return function


def pad_sentences(x: Tensor, packing: Packing | None) -> Tensor:
    """Unpack rows x (R, H, d) to (B, T, H, d), padding sentences with the last row of x."""
    if packing is None:
        return x
    rows = npx.full(packing.padded_shape, len(x) - 1, npx.int64).reshape(-1)
    rows[packing.flat_index] = npx.arange(len(x))
    return x[rows.reshape(packing.padded_shape)]


def composed_rotation(x: Tensor, positions: Any, base: float) -> Tensor:
    """Compute `rotate` of x (..., T, H, d) with elementary operations (formula: npx/kernels/attention_spec.py).

    Args:
        positions: the positions (T,), or the first of T consecutive ones.
    """
    factors = rotation_factors(x.data, positions, base)
    cos, sin = (part.astype(x.dtype, copy=False) for part in (factors.real, factors.imag))
    a, b = x[..., ::2], x[..., 1::2]
    return ops.reshape(ops.stack(a * cos - b * sin, a * sin + b * cos, axis=-1), x.shape)
