"""Precision: which numbers a model computes with, and which its weights are kept in. Next: `registry.py`.

    float32   products, activations and weights in float32
    tf32      the same arrays; the matrix products of a GPU round their factors to 10 bits of mantissa
    bf16      bfloat16, the range of float32 with 7 bits; products and sums in float32, weights kept in float32
    fp16      float16, 10 bits with a small range, which needs a scaled loss; products and weights as for bf16
    float64   for checks

bf16, fp16 and tf32 are what a GPU is built for. NumPy has no products in them, so a CPU is refused.
"""

from typing import Any, NamedTuple

import numpy as np

from npx.device import device, use_tf32
from npx.registry import emulating

ON_A_CPU = ("float32", "float64")
DTYPES = {"float32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "float64": "float64"}
PRECISIONS = tuple(DTYPES)


class Precision(NamedTuple):
    """`weights`: dtype the weights are kept in and learned; `numbers`: dtype everything is computed with."""

    weights: np.dtype
    numbers: np.dtype


def use_precision(name: str) -> Precision:
    """The dtypes of a precision; its kind of matrix product is that of float32 arrays from now on.

    Raises ValueError for an unknown one, and for one that the current device does not have.
    """
    if name not in DTYPES:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}; got {name!r}")
    if name not in ON_A_CPU and device() == "cpu" and not emulating():
        raise ValueError(f"precision: expected {' or '.join(ON_A_CPU)} on a CPU; got {name!r}; try --device cuda")
    use_tf32(name == "tf32")
    numbers = dtype(DTYPES[name])
    return Precision(np.dtype(np.float32) if numbers.itemsize == 2 else numbers, numbers)


def dtype(name: str) -> np.dtype:
    """A dtype by name. NumPy and CuPy have bfloat16 from the package ml_dtypes; ValueError where it is missing."""
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  teaches NumPy the name
        except ModuleNotFoundError:
            raise ValueError("precision: expected the package ml_dtypes for bf16; try pip install ml_dtypes") from None
    return np.dtype(name)


def wide(dtype: Any) -> np.dtype:
    """The dtype sums of `dtype` are formed in: float32 for float16 and bfloat16, any other itself."""
    return np.result_type(dtype, np.float32)
