"""What CuPy has below its arrays, for the stand-in of strict_cupy.py: cuBLAS, compiled modules, events, the runtime.

`npx/cuda/blas.py` and `npx/cuda/launch.py` run as they are: a product arrives here as the addresses and numbers that
cuBLAS gets, a kernel as the text that NVRTC gets.
"""

import ctypes
import re
import time
import types

import numpy as np

from npx.cuda import launch
from npx.cuda.emulator import emulator
from npx.precision import dtype as dtype_named
from tests.strict_graphs import STATE, MemoryPool, Stream, launched, using_allocator

HANDLE, OWN_HANDLE = 0xB1A5, 0x0B1A5  # of cuBLAS: CuPy's, and the one that `create` gives
DISALLOW_REDUCED_PRECISION_REDUCTION = 16
SPLIT = 64  # terms of a sum from which on this cuBLAS cuts it into two


class Cublas(types.ModuleType):
    """`cupy_backends.cuda.libs.cublas`: gemmEx on memory, as its documentation has it, the product by NumPy.

    calls: (columns, rows, sum, transposed, leading dimensions, dtypes) of each product. Where the mode allows it a long
    sum is cut in two, whose parts are rounded to the output's type before they are added.
    """

    TYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
    COMPUTE = {68: "float32", 70: "float64", 77: "float32"}

    def __init__(self):
        super().__init__("cupy_backends.cuda.libs.cublas")
        self.calls, self.mode = [], 0

    def setMathMode(self, handle, mode):
        assert handle in (HANDLE, OWN_HANDLE)
        self.mode = mode

    @staticmethod
    def create():
        return OWN_HANDLE

    def gemmEx(self, handle, *args):
        assert handle == HANDLE
        if STATE.recording:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        self.multiply(*args)

    def multiply(
        self, transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, how
    ):
        assert how == -1 and min(m, n, k) > 0
        types = [dtype_named(self.TYPES[code]) for code in (a_type, b_type, c_type)]
        wide = np.dtype(self.COMPUTE[compute])
        assert types[0] == types[1] and types[2] in (types[0], wide) and wide == np.result_type(types[0], np.float32)
        self.calls.append((n, m, k, (transb, transa), (ldb, lda, ldc), tuple(t.name for t in types)))
        # Column-major matrices: theirs is the transpose of what lies there in rows.
        left, right = rows(b, types[1], ldb, n, k, transb), rows(a, types[0], lda, k, m, transa)
        out = rows(c, types[2], ldc, n, m, False)
        (scale,), (keep,) = memory(alpha, wide, 1), memory(beta, wide, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            product = np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))
            if types[2] != wide and k >= SPLIT and not self.mode & DISALLOW_REDUCED_PRECISION_REDUCTION:
                first = np.matmul(left[:, : k // 2].astype(wide), right[: k // 2].astype(wide))
                product = first.astype(types[2]) + (product - first).astype(types[2])
            assert scale == 1 and keep in (0, 1)
            out[...] = out.astype(wide) + product if keep else product


def loaded():
    """The library's own functions, as ctypes finds them: of a stream and a workspace, given in this order."""
    on = {"stream": None, "workspace": None}

    def library_function(function):
        def checked(*args):
            assert len(args) == len(checked.argtypes)
            for kind, arg in zip(checked.argtypes, args, strict=True):
                kind.from_param(arg)
            assert args[0] == OWN_HANDLE
            function(*args[1:])
            return 0

        return checked

    def set_stream(stream):
        on.update(stream=stream, workspace=None)

    def set_workspace(address, size):
        assert address and size
        on["workspace"] = address

    def gemm_ex(*args):
        assert on["stream"] == STATE.streams[-1].ptr and on["workspace"], "not on this stream, or without a workspace"
        if STATE.recording:
            for pointer in (args[6], args[9], args[13]):
                STATE.recording.address(pointer)
        launched(CUBLAS.multiply, *args)

    return types.SimpleNamespace(
        cublasGemmEx=library_function(gemm_ex),
        cublasSetStream_v2=library_function(set_stream),
        cublasSetWorkspace_v2=library_function(set_workspace),
    )


def memory(address, dtype, count):
    """`count` numbers at an address."""
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)


def rows(address, dtype, step, n, columns, transposed):
    """The matrix (n, columns) at an address, its rows, or its columns if `transposed`, `step` numbers apart."""
    if transposed:
        return rows(address, dtype, step, columns, n, False).T
    assert step >= columns, f"cuBLAS: expected a leading dimension of at least {columns}; got {step}"
    flat = memory(address, dtype, (n - 1) * step + columns)
    return np.lib.stride_tricks.as_strided(flat, (n, columns), (step * dtype.itemsize, dtype.itemsize))


class RawModule:
    """A kernel file as `launch.source_text` gives it to NVRTC, compiled for the emulator instead."""

    def __init__(self, *, code, options):
        assert isinstance(code, str) and all(isinstance(option, str) for option in options)
        defines, name = re.search(r'\n((?:#define \w+ .*\n)*)#line 1 "([\w.]+\.cu)"\n', code).groups()
        pairs = tuple(tuple(line.split(" ", 2)[1:]) for line in defines.splitlines())
        self.module = emulator.module(launch.SOURCES / name, launch.HEADER, pairs)

    def get_function(self, kernel):
        return Function(self.module, kernel)


class Function:
    """Launches in the emulator, of device arrays alone: a pointer is one of those, or a null one."""

    def __init__(self, module, kernel):
        self.module, self.kernel = module, kernel

    def __call__(self, grid, block, args, *, shared_mem=0):
        held = []
        for kind, arg in zip(self.module.parameters[self.kernel], args, strict=True):
            if kind.endswith("*") and isinstance(arg, np.uintp):
                assert arg == 0
                held.append(None)
            else:
                assert hasattr(arg, "held") == kind.endswith("*"), f"{self.kernel}: {kind} got {type(arg)}"
                held.append(arg.held if hasattr(arg, "held") else arg)
        launched(self.module.launch, self.kernel, grid, block, tuple(held), shared_mem)


class Event:
    """A moment, read from the host's clock, as everything here is done when it is asked for."""

    at = None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        assert self.at is not None


def get_elapsed_time(start, end):
    """Milliseconds."""
    return (end.at - start.at) * 1e3


PROPERTIES = {"name": b"a stand-in", "major": 9, "minor": 0, "totalGlobalMem": 8 << 30, "multiProcessorCount": 132}
CUBLAS = Cublas()
CUDA = types.SimpleNamespace(
    Event=Event,
    get_elapsed_time=get_elapsed_time,
    get_current_stream=lambda: STATE.streams[-1],
    Stream=Stream,
    MemoryPool=MemoryPool,
    using_allocator=using_allocator,
    set_allocator=lambda allocator=None: None,
    device=types.SimpleNamespace(get_cublas_handle=lambda: HANDLE),
    runtime=types.SimpleNamespace(
        memGetInfo=lambda: (1 << 30, 8 << 30),
        getDeviceCount=lambda: 1,
        getDeviceProperties=lambda device: PROPERTIES,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        deviceSynchronize=lambda: None,
    ),
)
MODULES = {
    "cupy_backends": types.ModuleType("cupy_backends"),
    "cupy_backends.cuda": types.ModuleType("cupy_backends.cuda"),
    "cupy_backends.cuda.libs": types.SimpleNamespace(cublas=CUBLAS),
    "cupy_backends.cuda.libs.cublas": CUBLAS,
}
