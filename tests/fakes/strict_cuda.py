"""Fakes of CuPy's lower layers for strict_cupy.py: cuBLAS, compiled modules, events and the runtime.

`npx/cuda/blas.py` and `npx/cuda/launch.py` run unchanged: a matmul arrives here as the addresses and numbers that
cuBLAS would get, and a kernel as the source that NVRTC would get.
"""

import ctypes
import functools
import re
import time
import types

import numpy as np

from npx.cuda import launch
from npx.precision import dtype_named
from npx.testing.cuda_emulator import emulator
from tests.fakes.strict_graphs import STATE, Memory, MemoryPool, Stream, launched, using_allocator

HANDLE, GRAPH_HANDLE = 0xB1A5, 0x0B1A5  # cuBLAS handles: CuPy's, and the one that `create` returns
DISALLOW_REDUCED_PRECISION_REDUCTION = 16
SPLIT = 64  # this cuBLAS splits sums of at least this many terms in two


class Cublas(types.ModuleType):
    """A fake of `cupy_backends.cuda.libs.cublas`: the documented gemmEx on raw memory, computed by NumPy.

    If the math mode allows it, a long sum is split into two parts, which are rounded to the output's dtype before they
    are added.

    Attributes:
        calls: (columns, rows, sum, transposed, leading dimensions, dtypes) of each matmul.
    """

    TYPES = {0: "float32", 1: "float64", 2: "float16", 14: "bfloat16"}
    COMPUTE = {68: "float32", 70: "float64", 77: "float32"}

    def __init__(self):
        super().__init__("cupy_backends.cuda.libs.cublas")
        self.calls = []
        self.mode = 0

    def setMathMode(self, handle, mode):
        assert handle in (HANDLE, GRAPH_HANDLE)
        self.mode = mode

    @staticmethod
    def create():
        return GRAPH_HANDLE

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
        # Matrices are column-major, so each is the transpose of the row-major matrix in memory.
        left = rows(b, types[1], ldb, n, k, transb)
        right = rows(a, types[0], lda, k, m, transa)
        out = rows(c, types[2], ldc, n, m, False)
        (scale,) = memory(alpha, wide, 1)
        (add,) = memory(beta, wide, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            product = np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))
            if types[2] != wide and k >= SPLIT and not self.mode & DISALLOW_REDUCED_PRECISION_REDUCTION:
                first = np.matmul(left[:, : k // 2].astype(wide), right[: k // 2].astype(wide))
                product = first.astype(types[2]) + (product - first).astype(types[2])
            assert scale == 1 and add in (0, 1)
            out[...] = out.astype(wide) + product if add else product


def load_cublas():
    """Return a fake of the library that ctypes loads. It checks that the workspace is set after the stream."""
    current = {"stream": None, "workspace": None}

    def library_function(name, function):
        def checked(*args):
            for kind, arg in zip(checked.argtypes, args, strict=True):
                kind.from_param(arg)
            if not name.endswith(("Create", "Attribute")):
                handle, *args = args
                assert handle == GRAPH_HANDLE
            function(*args)
            return 0

        return checked

    def set_stream(stream):
        current.update(stream=stream, workspace=None)

    def set_workspace(address, size):
        assert address and size
        current["workspace"] = address

    def gemm_ex(*args):
        assert current["stream"] == STATE.streams[-1].ptr and current["workspace"], "wrong stream, or no workspace"
        if STATE.recording:
            for pointer in (args[6], args[9], args[13]):
                STATE.recording.address(pointer)
        launched(CUBLAS.multiply, *args)

    functions = {"cublasGemmEx": gemm_ex, "cublasSetStream_v2": set_stream, "cublasSetWorkspace_v2": set_workspace}
    return types.SimpleNamespace(
        **{name: library_function(name, f) for name, f in (functions | LT.functions()).items()}
    )


class CublasLt:
    """A fake of cuBLASLt: descriptors are dictionaries; a matmul adds the bias, applies ReLU and rounds once.

    Attributes:
        calls: the epilogue of each matmul.
        requests: number of requests for algorithms.
    """

    SIZES = {"MatmulDesc": {3: 4, 4: 4, 7: 4, 8: 8}, "MatmulPreference": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}}

    def __init__(self):
        self.descriptors = {}
        self.calls = []
        self.requests = 0

    def functions(self):
        functions = {"cublasLtMatmulAlgoGetHeuristic": self.heuristic, "cublasLtMatmul": self.matmul}
        for kind in (*self.SIZES, "MatrixLayout"):
            functions[f"cublasLt{kind}Create"] = functools.partial(self.create, kind)
            functions[f"cublasLt{kind}SetAttribute"] = functools.partial(self.set, kind)
        return functions

    def create(self, kind, place, *args):
        number = 4096 + len(self.descriptors)
        self.descriptors[number] = {"kind": kind, "args": args}
        place._obj.value = number

    def of(self, kind, pointer):
        descriptor = self.descriptors[pointer.value]
        assert descriptor["kind"] == kind
        return descriptor

    def set(self, kind, descriptor, attribute, value, size):
        assert size == self.SIZES[kind][attribute]
        self.of(kind, descriptor)[attribute] = value._obj.value

    def heuristic(self, operation, a, b, c, d, preference, limit, results, number):
        descriptor = self.check_shapes(operation, a, b, d)[0]
        descriptor["bias"] = min(16, descriptor.get(8, 16) & -descriptor.get(8, 16))  # alignment; 16 without a bias
        self.requests += 1
        preference = self.of("MatmulPreference", preference)
        assert (
            c is d
            and preference[1]
            and not preference[3] & 4
            and all(preference[i] in (2, 4, 8, 16) for i in (5, 6, 7, 8))
        )
        number._obj.value = limit
        results._obj.algorithm[0] = 7

    def check_shapes(self, operation, *layouts):
        """Check the shapes and return the descriptors with m, n and k."""
        operation = self.of("MatmulDesc", operation)
        a, b, d = (self.of("MatrixLayout", x)["args"] for x in layouts)
        _, m, n, leading = d
        a_shape = (a[1:3], a[2:0:-1])[operation[3]]
        b_shape = (b[1:3], b[2:0:-1])[operation[4]]
        k = a_shape[1]
        assert leading >= m and tuple(a_shape) == (m, k) and tuple(b_shape) == (k, n)
        assert a[3] >= a[1] and b[3] >= b[1]
        return operation, a, b, d, m, n, k

    def matmul(self, operation, alpha, a, at_a, b, at_b, beta, c, at_c, d, at_d, algorithm, workspace, size, stream):
        assert c == d and at_c is at_d and workspace and size and stream == STATE.streams[-1].ptr
        descriptor, in_a, in_b, in_c, m, n, k = self.check_shapes(operation, at_a, at_b, at_d)
        if STATE.recording:
            for pointer in (a, b, c, *([descriptor[8]] if descriptor[7] & 4 else [])):
                STATE.recording.address(pointer)
        assert not descriptor[7] & 4 or descriptor[8] % descriptor["bias"] == 0
        compute, scale = descriptor["args"]
        assert scale == (compute == 70) and algorithm._obj.algorithm[0] == 7
        self.calls.append(descriptor[7])
        args = (
            descriptor[3],
            descriptor[4],
            m,
            n,
            k,
            alpha,
            a,
            in_a[0],
            in_a[3],
            b,
            in_b[0],
            in_b[3],
            beta,
            c,
            in_c[0],
            in_c[3],
        )
        launched(self.product, args, compute, descriptor[7], descriptor.get(8))

    @staticmethod
    def product(args, compute, epilogue, bias):
        m, n = args[2:4]
        address, out_type, leading = args[13:16]
        dtype = dtype_named(CUBLAS.TYPES[out_type])
        mode = CUBLAS.mode
        CUBLAS.mode = DISALLOW_REDUCED_PRECISION_REDUCTION
        try:
            wide = np.dtype(CUBLAS.COMPUTE[compute])
            result = np.array(rows(address, dtype, leading, n, m, False), wide, order="C")
            code = {"float32": 0, "float64": 1}[wide.name]
            CUBLAS.multiply(*args[:13], result.ctypes.data, code, m, compute, -1)
        finally:
            CUBLAS.mode = mode
        result += memory(bias, dtype, m).astype(wide) if epilogue & 4 else 0
        rows(address, dtype, leading, n, m, False)[...] = np.maximum(result, 0) if epilogue & 2 else result


def memory(address, dtype, count):
    """Return an array that views `count` numbers at an address."""
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)


def rows(address, dtype, step, n, columns, transposed):
    """Return the matrix (n, columns) at an address, whose rows (columns if `transposed`) are `step` numbers apart."""
    if transposed:
        return rows(address, dtype, step, columns, n, False).T
    assert step >= columns, f"cuBLAS: expected a leading dimension of at least {columns}; got {step}"
    flat = memory(address, dtype, (n - 1) * step + columns)
    return np.lib.stride_tricks.as_strided(flat, (n, columns), (step * dtype.itemsize, dtype.itemsize))


class RawModule:
    """A fake of cupy.RawModule that compiles the text of `launch.source_text` for the emulator."""

    def __init__(self, *, code, options):
        assert isinstance(code, str) and all(isinstance(option, str) for option in options)
        defines, name = re.search(r'\n((?:#define \w+ .*\n)*)#line 1 "([\w.]+\.cu)"\n', code).groups()
        pairs = tuple(tuple(line.split(" ", 2)[1:]) for line in defines.splitlines())
        self.module = emulator.module(launch.SOURCES / name, launch.HEADER, pairs)

    def get_function(self, kernel):
        return Function(self.module, kernel)


class Function:
    """Launches a kernel in the emulator; pointer arguments must be device arrays or null.

    All functions of a kernel share the limit of dynamic shared memory, as CuPy caches modules.
    """

    shared_size_bytes = 128  # static shared memory
    limits = {}

    def __init__(self, module, kernel):
        self.module = module
        self.kernel = kernel

    @property
    def max_dynamic_shared_size_bytes(self):
        return self.limits.get((id(self.module), self.kernel), (48 << 10) - self.shared_size_bytes)

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self.limits[id(self.module), self.kernel] = size

    def __call__(self, grid, block, args, *, shared_mem=0):
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "CUDA_ERROR_INVALID_VALUE"
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
    """A CUDA event with the host's time, because the fake runs everything synchronously."""

    at = None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        assert self.at is not None


def get_elapsed_time(start, end):
    """Return milliseconds."""
    return (end.at - start.at) * 1e3


class DefaultPool:
    """CuPy's default memory pool, and its limit."""

    limit = 0
    used, total = 3 << 30, 4 << 30

    def free_all_blocks(self):
        self.total = self.used

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total

    def get_limit(self):
        return self.limit

    def set_limit(self, size):
        self.limit = size


PROPERTIES = {
    "name": b"a fake GPU", "major": 9, "minor": 0, "totalGlobalMem": 8 << 30, "multiProcessorCount": 132,
    "sharedMemPerMultiprocessor": 228 << 10,
}  # fmt: skip
CUBLAS, LT = Cublas(), CublasLt()
CUDA = types.SimpleNamespace(
    Event=Event,
    get_elapsed_time=get_elapsed_time,
    get_current_stream=lambda: STATE.streams[-1],
    Stream=Stream,
    MemoryPool=MemoryPool,
    using_allocator=using_allocator,
    set_allocator=lambda allocator=None: None,
    set_pinned_memory_allocator=lambda allocator: setattr(STATE, "pinned", allocator),
    Memory=Memory,
    MemoryPointer=lambda memory, offset: types.SimpleNamespace(mem=memory, offset=offset),
    device=types.SimpleNamespace(get_cublas_handle=lambda: HANDLE),
    runtime=types.SimpleNamespace(
        memGetInfo=lambda: (1 << 30, 8 << 30),
        getDeviceCount=lambda: 1,
        getDevice=lambda: 0,
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
