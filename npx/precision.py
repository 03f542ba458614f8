"""Precision: which numbers a model computes with, and which its weights are kept in.

    float32   products, activations and weights in float32
    tf32      the same arrays; the matrix products of a GPU round their factors to 10 bits of mantissa
    bf16      bfloat16, the range of float32 with 7 bits; products and sums in float32, weights kept in float32
    fp16      float16, 10 bits with a small range, which needs a scaled loss; products and weights as for bf16
    float64   for checks

bf16, fp16 and tf32 are what a GPU is built for. NumPy has no products in them, so a CPU is refused.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from npx.array import device, use_tf32
from npx.registry import emulating

ON_A_CPU = ("float32", "float64")


@dataclass(frozen=True)
class Precision:
    """What the name of a precision means for a model.

    `weights`: dtype the weights are kept in and learned; `numbers_name`: of the dtype everything is computed with,
    `numbers`; `scaled`: the loss has to be scaled, since small gradients are lost otherwise.
    """

    name: str
    weights: np.dtype
    numbers_name: str
    scaled: bool = False

    @property
    def numbers(self) -> np.dtype:
        return dtype(self.numbers_name)

    @property
    def low(self) -> bool:
        """Whether a copy of the weights, rounded to 16 bits, is what is computed with."""
        return self.numbers_name != self.weights.name

    @property
    def parameter_bytes(self) -> int:
        """Bytes that a learned number takes: itself, its gradient, Adam's two moments, and the rounded copy."""
        return 4 * self.weights.itemsize + 2 * self.low


DTYPES = {"float32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "float64": "float64"}
PRECISIONS = tuple(DTYPES)


def precision_named(name: str) -> Precision:
    """The precision of a name, on whatever device; ValueError for an unknown one."""
    if name not in DTYPES:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}; got {name!r}")
    return Precision(name, np.dtype("float64" if name == "float64" else "float32"), DTYPES[name], name == "fp16")


def use_precision(name: str) -> Precision:
    """The precision of a name; its kind of matrix product is that of float32 arrays from now on.

    Raises ValueError for an unknown one, and for one that the current device does not have.
    """
    chosen = precision_named(name)
    if name not in ON_A_CPU and device() == "cpu" and not emulating():
        raise ValueError(f"precision: expected {' or '.join(ON_A_CPU)} on a CPU; got {name!r}; try --device cuda")
    use_tf32(name == "tf32")
    dtype(chosen.numbers_name)  # ValueError where NumPy does not have it
    return chosen


def dtype(name: str) -> np.dtype:
    """A dtype by name. NumPy and CuPy have bfloat16 from the package ml_dtypes; ValueError where it is missing."""
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  teaches NumPy the name
        except ModuleNotFoundError:
            raise ValueError("precision: expected the package ml_dtypes for bf16; try pip install ml_dtypes") from None
    return np.dtype(name)


def accumulation_dtype(dtype: Any) -> np.dtype:
    """The dtype sums of `dtype` are formed in: float32 for float16 and bfloat16, any other itself."""
    return np.result_type(dtype, np.float32)
