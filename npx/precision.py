"""Precision: the dtype a model computes in and the dtype of its weights.

    float32   weights, activations and matmuls in float32
    tf32      float32 arrays; matmuls on a GPU round their operands to 10 bits of mantissa
    bf16      bfloat16, with the range of float32 and 7 bits of mantissa; float32 accumulation and master weights
    fp16      float16, with 10 bits of mantissa and a small range, which requires loss scaling; otherwise like bf16
    float64   for checks

bf16, fp16 and tf32 need a GPU; NumPy has no matmuls in these precisions, so on a CPU they raise an error.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from npx.backend import Array, device, has_16_bits, use_tf32
from npx.dispatch import is_emulating

CPU_PRECISIONS = ("float32", "float64")


@dataclass(frozen=True)
class Precision:
    """A named precision.

    Attributes:
        weight_dtype: dtype of the master weights, which the optimizer updates.
        compute_dtype_name: name of `compute_dtype`, the dtype of activations and of the weights used in the forward
            pass.
        needs_loss_scaling: whether small gradients underflow without loss scaling.
    """

    name: str
    weight_dtype: np.dtype
    compute_dtype_name: str
    needs_loss_scaling: bool = False

    @property
    def compute_dtype(self) -> np.dtype:
        """The dtype of activations and matmuls. Raises ValueError for bfloat16 if ml_dtypes is not installed."""
        return dtype_named(self.compute_dtype_name)

    def require_dtype(self) -> None:
        """Raise ValueError if the compute dtype needs ml_dtypes and that package is not installed."""
        dtype_named(self.compute_dtype_name)

    @property
    def is_mixed(self) -> bool:
        """True if the forward and backward passes use a 16-bit copy of the weights."""
        return self.compute_dtype_name != self.weight_dtype.name


DTYPES = {"float32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "float64": "float64"}
PRECISIONS = tuple(DTYPES)


def precision_named(name: str) -> Precision:
    """Return the precision called `name`, whether or not the current device supports it.

    Raises ValueError for an unknown name.
    """
    if name not in DTYPES:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}; got {name!r}")
    return Precision(name, np.dtype("float64" if name == "float64" else "float32"), DTYPES[name], name == "fp16")


def use_precision(name: str) -> Precision:
    """Return the precision called `name`, and set how a GPU computes float32 matmuls: in TF32 or in full float32.

    Raises ValueError for an unknown name and for a precision that the current device does not support.
    """
    precision = precision_named(name)
    if name not in CPU_PRECISIONS and device() == "cpu" and not is_emulating():
        supported = " or ".join(CPU_PRECISIONS)
        raise ValueError(f"precision: expected {supported} on a CPU; got {name!r}; try --device cuda")
    use_tf32(name == "tf32")
    precision.require_dtype()
    return precision


def dtype_named(name: str) -> np.dtype:
    """Return the dtype called `name`.

    Raises ValueError for bfloat16 if ml_dtypes, the package that provides it, is not installed.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
        except ModuleNotFoundError:
            raise ValueError(
                "precision: bf16 needs the package ml_dtypes, which is not installed; try pip install ml_dtypes"
            ) from None
    return np.dtype(name)


def accumulation_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which values of a floating dtype are summed: float32, or the dtype if it is wider."""
    return np.result_type(dtype, np.float32)


def sum(x: Any, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Array:
    """Return np.sum(x); 16-bit floats are added in float32, and the result is rounded to their dtype or to `dtype`."""
    return _reduce(np.sum, x, axis, keepdims, dtype)


def mean(x: Any, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Array:
    """Return np.mean(x); 16-bit floats are added in float32, and the result is rounded to their dtype or to `dtype`."""
    return _reduce(np.mean, x, axis, keepdims, dtype)


def _reduce(function: Any, x: Any, axis: Any, keepdims: bool, dtype: Any) -> Any:
    if not (hasattr(x, "dtype") and has_16_bits(x.dtype)):
        return function(x, axis=axis, keepdims=keepdims, dtype=dtype)
    return function(x, axis=axis, keepdims=keepdims, dtype=np.float32).astype(dtype or x.dtype)
