"""Matrix products of the CUDA versions: cuBLAS on a GPU, NumPy for what is emulated."""

import functools
from typing import Any

import numpy as np

from npx.array import Array, array_module
from npx.cuda.cublas import Cublas


def matmul(a: Array, b: Array, out: Array | None = None, add: bool = False) -> Array:
    """a b (M, N) for a (M, K), b (K, N) of one dtype, into `out`, or onto it if `add`; None: a new array.

    Sums are formed in float32 (float64 for float64) and rounded once, to the dtype of `out`: that of a and b, or
    float32. The rows or the columns of a, b and out may lie apart: cuBLAS reads transposed matrices and parts of rows
    where they are.
    """
    xp, wide = array_module(a), np.result_type(a.dtype, np.float32)
    if out is None:
        out, add = xp.empty((a.shape[0], b.shape[1]), a.dtype), False
    if xp is not np:
        _gemm(xp, a, b, out, add)
    elif add or a.dtype != wide:
        with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU, which gives inf and NaN without a word
            product = np.matmul(a.astype(wide), b.astype(wide))
            out[...] = out.astype(wide) + product if add else product
    else:
        np.matmul(a, b, out=out)
    return out


def leading(x: Array) -> tuple[bool, int] | None:
    """How cuBLAS reads a matrix: whether its columns are contiguous, not its rows, and the elements between two.

    None where neither rows nor columns are contiguous.
    """
    (rows, columns), (down, right) = x.shape, (stride // x.itemsize for stride in x.strides)
    if right == 1 or columns == 1:
        step = down if rows > 1 else columns
        return (False, step) if step >= columns else None
    step = right
    return (True, step) if (down == 1 or rows == 1) and step >= rows else None


# Numbers of cuBLAS's and CUDA's enumerations
DATA_TYPE = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32, DEFAULT_ALGORITHM = 68, 70, 77, -1
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # else long sums are cut up, and their parts rounded to the type of `out`
_own: Cublas | None = None
FACTORS = {name: np.array([0, 1], name) for name in ("float32", "float64")}


def _gemm(cupy: Any, a: Any, b: Any, out: Any, add: bool) -> None:
    """cuBLAS is column-major: a row-major matrix is its transpose there, so out^T = b^T a^T is what it is asked for."""
    (m, k), n = a.shape, b.shape[1]
    if not (m and n and k):
        if not add:
            out.fill(0)
        return
    a, b = (x if leading(x) else cupy.ascontiguousarray(x) for x in (a, b))
    (a_transposed, a_step), (b_transposed, b_step), to = leading(a), leading(b), leading(out)  # type: ignore[misc]
    if to is None or to[0]:
        raise ValueError(f"matmul: expected out with contiguous rows; got shape {out.shape}, strides {out.strides}")
    products = cupy._core._routines_linalg
    compute, factors = COMPUTE_32F, FACTORS["float32"]
    if a.dtype == np.float64:
        compute, factors = COMPUTE_64F, FACTORS["float64"]
    elif a.dtype == np.float32 and products.get_compute_type(a.dtype) == products.COMPUTE_TYPE_TF32:
        compute = COMPUTE_32F_FAST_TF32
    zero = factors.ctypes.data
    one = zero + factors.itemsize
    gemm_ex = _own.gemm_ex if _own else _cupys_gemm_ex(cupy)
    gemm_ex(
        int(b_transposed), int(a_transposed), n, m, k,
        one, b.data.ptr, DATA_TYPE[b.dtype.name], b_step, a.data.ptr, DATA_TYPE[a.dtype.name], a_step,
        one if add else zero, out.data.ptr, DATA_TYPE[out.dtype.name], to[1], compute, DEFAULT_ALGORITHM,
    )  # fmt: skip


def _cupys_gemm_ex(cupy: Any) -> Any:
    from cupy_backends.cuda.libs import cublas

    handle = cupy.cuda.device.get_cublas_handle()  # of this thread and device, and CuPy's own products'
    cublas.setMathMode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION)
    return functools.partial(cublas.gemmEx, handle)


def use_own_handle(cupy: Any) -> None:
    """From now on products are those of cublas.py, in and outside of CUDA graphs: with one workspace, the same bits."""
    global _own
    _own = _own or Cublas(cupy, DISALLOW_REDUCED_PRECISION_REDUCTION)
