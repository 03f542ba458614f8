"""Launching CUDA kernels: on a GPU for CuPy arrays, in the emulator for NumPy arrays.

    launch("softmax.cu", "softmax_grad", grid, block, (g, y, gx, np.int32(n)), T=g.dtype)

A .cu file is next to its reference in `kernels/` and includes only `device.cuh`. Its "Built with:" lines name
the macros that the compiler needs, with their possible values. `python -m npx.testing.nvrtc_report` compiles the file
with each combination, for three generations of GPUs, and reports how many registers the kernels use.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from npx.backend import array_module

SOURCES = Path(__file__).parents[1] / "kernels"  # the folder of the .cu files
HEADER = Path(__file__).with_name("device.cuh")
CTYPES = {
    "float32": "float",
    "float16": "half_t",
    "bfloat16": "bf16_t",
    "float64": "double",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "i64",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "u64",
}
BLOCK_THREADS = 256
OPTIONS = ("-std=c++17",)


def launch(
    source: str, kernel: str, grid: Any, block: Any, args: Any, shared: int = 0, strided: bool = False, **defines: Any
) -> None:
    """Run a CUDA kernel. An empty grid is valid and launches nothing.

    Args:
        source: a file in `kernels/`, or an absolute path.
        kernel: the name of the kernel in that file.
        grid, block: number of blocks and of threads per block, each an int or a tuple of up to three.
        args: arrays (passed as pointers), NumPy scalars (passed by value) and None (a null pointer).
        shared: bytes of dynamic shared memory.
        strided: whether the kernel also receives the strides of its arrays; if not, non-contiguous arrays raise
            ValueError.
        defines: preprocessor definitions: integers, or dtypes, which become C types.
    """
    grid3, block3 = _as_dim3(grid), _as_dim3(block)
    if 0 in grid3:
        return
    for i, arg in enumerate(() if strided else args):
        if arg is not None and not arg.flags.c_contiguous:
            raise ValueError(
                f"{Path(source).name}, {kernel}, argument {i}: expected a contiguous array; got shape {arg.shape}, "
                f"strides {arg.strides}"
            )
    definitions = tuple(defines.items())
    if array_module(*args) is np:
        from npx.testing.cuda_emulator import emulator

        module = emulator.module(SOURCES / source, HEADER, _c_values(definitions))
        module.launch(kernel, grid3, block3, args, shared)
    else:
        pointers = tuple(np.uintp(0) if arg is None else arg for arg in args)
        _function(source, kernel, definitions, shared)(grid3, block3, pointers, shared_mem=shared)


@functools.cache
def shared_memory(xp: Any) -> int:
    """Return how many bytes of shared memory all blocks of a multiprocessor have together (emulator: 64 KiB).

    CUDA reserves 1 KiB of it for each block.
    """
    if xp is np:
        return 64 << 10
    return int(xp.cuda.runtime.getDeviceProperties(xp.cuda.runtime.getDevice())["sharedMemPerMultiprocessor"])


def contiguous(x: Any) -> Any:
    """Return x, or a contiguous copy if x is not contiguous. Preserves 0-d shapes, unlike NumPy's ascontiguousarray."""
    return x if x is None or x.flags.c_contiguous else array_module(x).ascontiguousarray(x)


def _as_dim3(n: Any) -> tuple[int, int, int]:
    sizes = (n,) if isinstance(n, (int, np.integer)) else tuple(n)
    return tuple(int(size) for size in (*sizes, 1, 1)[:3])  # type: ignore[return-value]


def _c_values(defines: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, str], ...]:
    """Return the definitions as text: dtypes as C types, integers in decimal."""
    return tuple(
        (name, str(int(value)) if isinstance(value, (int, np.integer)) else CTYPES[np.dtype(value).name])
        for name, value in defines
    )


def source_text(source: str, defines: tuple[tuple[str, str], ...]) -> str:
    """Return the source for a compiler without an include path: `device.cuh`, the definitions, the file itself.

    The definitions are not passed as options (-DT=float), because CUDA's own headers, which come first, use such short
    names.
    """
    include = '#include "device.cuh"'
    text = (SOURCES / source).read_text().replace(include, "", 1)
    lines = "".join(f"#define {name} {value}\n" for name, value in defines)
    return f'#line 1 "device.cuh"\n{HEADER.read_text()}\n{lines}#line 1 "{Path(source).name}"\n{text}'


@functools.cache
def _function(source: str, kernel: str, defines: tuple[tuple[str, Any], ...], shared: int) -> Any:
    import cupy

    function = cupy.RawModule(code=source_text(source, _c_values(defines)), options=OPTIONS).get_function(kernel)
    if shared + function.shared_size_bytes > 48 << 10:  # the limit counts static shared memory too
        # All values of `shared` use the same compiled function, so a smaller value must not lower the limit.
        function.max_dynamic_shared_size_bytes = max(shared, function.max_dynamic_shared_size_bytes)
    return function
