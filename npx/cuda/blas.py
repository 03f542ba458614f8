"""Matmuls for the CUDA versions of kernels: cuBLAS on a GPU, NumPy for emulated kernels."""

import functools
from typing import Any

import numpy as np

from npx.backend import Array, array_module
from npx.cuda.cublas import Cublas
from npx.settings import read_setting


def matmul(
    a: Array, b: Array, out: Array | None = None, add: bool = False, bias: Array | None = None, relu: bool = False
) -> Array:
    """Compute a @ b (M, N) for a (M, K) and b (K, N) of one dtype; write it to `out`, or add it to `out` if `add`.

    Sums are accumulated in float32 (float64 for float64) and rounded once to the dtype of `out`, which is either that
    of a and b or float32. The rows or the columns of a, b and out may be strided: cuBLAS reads transposed matrices and
    slices of columns in place. If `fuses_epilogues()` is true, adds `bias` (N,) and, if `relu`, applies ReLU, both
    before rounding.
    """
    xp = array_module(a)
    accumulation_dtype = np.result_type(a.dtype, np.float32)
    if out is None:
        out = xp.empty((a.shape[0], b.shape[1]), a.dtype)
        add = False
    if xp is not np:
        _gemm(xp, a, b, out, add, bias, relu)
    elif add or a.dtype != accumulation_dtype:
        with np.errstate(over="ignore", invalid="ignore"):  # like a GPU, return inf and NaN without a warning
            product = np.matmul(a.astype(accumulation_dtype), b.astype(accumulation_dtype))
            out[...] = out.astype(accumulation_dtype) + product if add else product
    else:
        np.matmul(a, b, out=out)
    return out


def leading_dimension(x: Array) -> tuple[bool, int] | None:
    """Return (is_transposed, leading dimension) of a matrix for cuBLAS; transposed means contiguous columns.

    Returns None if neither rows nor columns are contiguous.
    """
    rows, columns = x.shape
    row_stride, column_stride = (stride // x.itemsize for stride in x.strides)
    if column_stride == 1 or columns == 1:
        dimension = row_stride if rows > 1 else columns
        return (False, dimension) if dimension >= columns else None
    return (True, column_stride) if (row_stride == 1 or rows == 1) and column_stride >= rows else None


# Enum values of cuBLAS and CUDA
DATA_TYPE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32, DEFAULT_ALGORITHM = 68, 70, 77, -1
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # otherwise, partial sums are rounded to the dtype of `out`
_graph_handle: Cublas | None = None  # set by `use_graph_handle`
ZERO_AND_ONE = {name: np.array([0, 1], name) for name in ("float32", "float64")}  # alpha and beta


def _gemm(cupy: Any, a: Any, b: Any, out: Any, add: bool, bias: Any, relu: bool) -> None:
    """Compute out^T = b^T a^T: cuBLAS is column-major and reads a row-major matrix as its transpose."""
    m, k = a.shape
    n = b.shape[1]
    if not (m and n and k):
        if not add:
            out.fill(0)
        return
    a, b = (x if leading_dimension(x) else cupy.ascontiguousarray(x) for x in (a, b))
    a_transposed, a_leading = leading_dimension(a)  # type: ignore[misc]
    b_transposed, b_leading = leading_dimension(b)  # type: ignore[misc]
    out_layout = leading_dimension(out)
    if out_layout is None or out_layout[0]:
        raise ValueError(f"matmul: expected out with contiguous rows; got shape {out.shape}, strides {out.strides}")
    linalg = cupy._core._routines_linalg
    compute = COMPUTE_32F
    scalars = ZERO_AND_ONE["float32"]
    if a.dtype == np.float64:
        compute = COMPUTE_64F
        scalars = ZERO_AND_ONE["float64"]
    elif a.dtype == np.float32 and linalg.get_compute_type(a.dtype) == linalg.COMPUTE_TYPE_TF32:
        compute = COMPUTE_32F_FAST_TF32
    zero = scalars.ctypes.data
    one = zero + scalars.itemsize
    if fuses_epilogues():
        use_graph_handle(cupy)  # used for all matmuls, so that a resumed run is bitwise identical
    multiply = _cupy_gemm_ex(cupy) if _graph_handle is None else _graph_handle.gemm_ex
    if bias is not None or relu:
        if _graph_handle is None:
            raise ValueError("matmul: expected NPX_CUBLASLT=1 for bias or relu on a GPU; got 0")
        multiply = functools.partial(_graph_handle.matmul, bias=0 if bias is None else bias.data.ptr, relu=relu)
    multiply(
        int(b_transposed), int(a_transposed), n, m, k,
        one, b.data.ptr, DATA_TYPE[b.dtype.name], b_leading, a.data.ptr, DATA_TYPE[a.dtype.name], a_leading,
        one if add else zero, out.data.ptr, DATA_TYPE[out.dtype.name], out_layout[1], compute, DEFAULT_ALGORITHM,
    )  # fmt: skip


def fuses_epilogues() -> bool:
    """Return whether cuBLASLt adds bias and applies ReLU within matmuls on a GPU: NPX_CUBLASLT=1."""
    return read_setting("NPX_CUBLASLT") == 1


def _cupy_gemm_ex(cupy: Any) -> Any:
    from cupy_backends.cuda.libs import cublas

    handle = cupy.cuda.device.get_cublas_handle()  # one per thread and device, shared with CuPy's own matmuls
    cublas.setMathMode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION)
    return functools.partial(cublas.gemmEx, handle)


def use_graph_handle(cupy: Any) -> None:
    """Run all later matmuls, in CUDA graphs and outside of them, with a cuBLAS handle that graphs can capture.

    A matmul in a graph therefore gives the same bits as a matmul outside.
    """
    global _graph_handle
    _graph_handle = _graph_handle or Cublas(cupy, DISALLOW_REDUCED_PRECISION_REDUCTION)
