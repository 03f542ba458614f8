"""CUDA kernels: one function starts them, on a GPU for CuPy arrays, emulated for NumPy arrays. Next: `emulator.py`.

    launch("softmax.cu", "softmax_rows", grid, block, (x, y, np.int32(n)), T=x.dtype)

The source lies beside its reference in `kernels/` and includes `device.cuh` alone. Its line "Built with:" lists the
definitions it is compiled with; `python -m npx.nvrtc` compiles all of them for the GPUs of three generations and prints
what registers they take.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from npx import emulator
from npx.device import array_module

KERNELS = Path(__file__).parent / "kernels"
CTYPES = {
    "float32": "float",
    "float16": "half_t",
    "bfloat16": "bf16_t",
    "float64": "double",
    "int32": "int",
    "int64": "i64",
}
THREADS = 256  # of a block, where nothing asks for another number
OPTIONS = ("-std=c++17",)


class Kept:
    """What a forward kernel hands to its gradient's where the reference hands over an array.

    `reference` is that array, set in the registry's check mode, where the reference of the gradient needs it.
    """

    reference: Any = None


def launch(
    source: str, kernel: str, grid: Any, block: Any, args: Any, shared: int = 0, strided: bool = False, **defines: Any
) -> None:
    """Run `kernel` of `kernels/source` over `grid` blocks of `block` threads (an int or up to three).

    args: arrays (passed as pointers; contiguous, or else `strided` says that the kernel is given the strides), NumPy
    scalars (by value), None (a null pointer). shared: bytes of dynamic shared memory. defines: integers, or dtypes,
    which become the C type. A grid with no block does nothing.
    """
    grid3, block3 = _three(grid), _three(block)
    if 0 in grid3:
        return
    for i, arg in enumerate(() if strided else args):
        if arg is not None and not arg.flags.c_contiguous:
            raise ValueError(
                f"{source}, {kernel}, argument {i}: expected a contiguous array; got shape {arg.shape}, "
                f"strides {arg.strides}"
            )
    named = tuple(defines.items())
    if array_module(*args) is np:
        module = emulator.module(KERNELS / source, _text(named), KERNELS)
        module.launch(kernel, grid3, block3, args, shared)
    else:
        _run(_function(source, kernel, named, shared), grid3, block3, args, shared)


def contiguous(x: Any) -> Any:
    """x, copied if it is not contiguous; its shape stays (NumPy's ascontiguousarray gives a 0-d array an axis)."""
    return x if x is None or x.flags.c_contiguous else array_module(x).ascontiguousarray(x)


def _three(n: Any) -> tuple[int, int, int]:
    sizes = (n,) if isinstance(n, (int, np.integer)) else tuple(n)
    return tuple(int(size) for size in (*sizes, 1, 1)[:3])  # type: ignore[return-value]


def _text(defines: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, str], ...]:
    """The definitions as the compiler gets them: dtypes as C types, numbers in decimal."""
    return tuple(
        (name, str(int(value)) if isinstance(value, (int, np.integer)) else CTYPES[np.dtype(value).name])
        for name, value in defines
    )


def source_text(source: str, defines: tuple[tuple[str, str], ...]) -> str:
    """A kernel file as a compiler without an include path gets it: `device.cuh`, the definitions, the file.

    The definitions are no options (-DT=float), as CUDA's own headers, which come before all this, use such short names.
    """
    include = '#include "device.cuh"'
    text = (KERNELS / source).read_text().replace(include, "", 1)
    header = (KERNELS / "device.cuh").read_text()
    lines = "".join(f"#define {name} {value}\n" for name, value in defines)
    return f'#line 1 "device.cuh"\n{header}\n{lines}#line 1 "{source}"\n{text}'


@functools.cache
def _function(source: str, kernel: str, defines: tuple[tuple[str, Any], ...], shared: int) -> Any:
    import cupy

    function = cupy.RawModule(code=source_text(source, _text(defines)), options=OPTIONS).get_function(kernel)
    if shared > 48 << 10:
        function.max_dynamic_shared_size_bytes = shared
    return function


def _run(function: Any, grid: tuple[int, int, int], block: tuple[int, int, int], args: Any, shared: int) -> None:
    null = np.uintp(0)
    function(grid, block, tuple(null if arg is None else arg for arg in args), shared_mem=shared)


def matmul(a: Any, b: Any, out: Any = None, add: bool = False) -> Any:
    """a b (M, N) for a (M, K), b (K, N) of one dtype, into `out`, or onto it if `add`.

    Sums are formed in float32 (float64 for float64) and rounded once, to the dtype of `out`: that of a and b, or
    float32. The rows or the columns of a, b and out may lie apart: cuBLAS reads transposed matrices and parts of rows
    where they are.
    """
    xp, wide = array_module(a), np.result_type(a.dtype, np.float32)
    if out is None:
        out = xp.empty((a.shape[0], b.shape[1]), a.dtype)
    if xp is not np:
        _gemm(xp, a, b, out, add)
    elif add or a.dtype != wide:
        with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU, which gives inf and NaN without a word
            product = np.matmul(a.astype(wide), b.astype(wide))
            out[...] = out.astype(wide) + product if add else product
    else:
        np.matmul(a, b, out=out)
    return out


def leading(x: Any) -> tuple[bool, int] | None:
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
FACTORS = {name: np.array([0, 1], name) for name in ("float32", "float64")}


def _gemm(cupy: Any, a: Any, b: Any, out: Any, add: bool) -> None:
    """cuBLAS is column-major: a row-major matrix is its transpose there, so out^T = b^T a^T is what it is asked for."""
    from cupy_backends.cuda.libs import cublas

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
    cublas.gemmEx(
        cupy.cuda.device.get_cublas_handle(), int(b_transposed), int(a_transposed), n, m, k,
        one, b.data.ptr, DATA_TYPE[b.dtype.name], b_step, a.data.ptr, DATA_TYPE[a.dtype.name], a_step,
        one if add else zero, out.data.ptr, DATA_TYPE[out.dtype.name], to[1], compute, DEFAULT_ALGORITHM,
    )  # fmt: skip
