"""cuBLAS and cuBLASLt without CuPy's wrapper, which rejects cuBLAS during stream capture and has no cuBLASLt functions.

CuPy's compiled module is linked against both libraries, so their functions are found through it. The handle has its own
workspace, because cuBLAS can be captured in a CUDA graph only if it does not allocate (manual, "CUDA graphs support").
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np

WORKSPACE = 32 << 20  # bytes, NVIDIA's recommendation for Hopper
INT, SIZE, POINTER = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
GEMM = (*[INT] * 5, POINTER, POINTER, INT, INT, POINTER, INT, INT, POINTER, POINTER, INT, INT, INT, INT)
ARGUMENTS = {
    "cublasGemmEx": (POINTER, *GEMM),
    "cublasSetStream_v2": (POINTER, POINTER),
    "cublasSetWorkspace_v2": (POINTER, POINTER, SIZE),
    "cublasLtMatmulDescCreate": (POINTER, INT, INT),
    "cublasLtMatmulDescSetAttribute": (POINTER, INT, POINTER, SIZE),
    "cublasLtMatrixLayoutCreate": (POINTER, INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatmulPreferenceCreate": (POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": (POINTER, INT, POINTER, SIZE),
    "cublasLtMatmulAlgoGetHeuristic": (*[POINTER] * 7, INT, POINTER, POINTER),
    "cublasLtMatmul": (*[POINTER] * 14, SIZE, POINTER),
}
# Enum values of cuBLASLt: attributes of an operation and of a preference, and epilogues
TRANSPOSED_A, TRANSPOSED_B, EPILOGUE, BIAS = 3, 4, 7, 8
MAX_WORKSPACE, REDUCTIONS = 1, 3
ALIGNMENTS = (5, 6, 7, 8)
WITH_RELU, WITH_BIAS = 2, 4
FULL_PRECISION = 3  # partial sums are reduced in place or in float32, never in the dtype of the output


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace", SIZE), ("state", INT), ("waves", ctypes.c_float)]
    _fields_ += [("reserved", INT * 4)]


class GemmArguments(NamedTuple):
    """The arguments of cublasGemmEx after the handle: alpha op(A) op(B) + beta C, in column-major order.

    `leading_a`, `leading_b` and `leading_c` are the leading dimensions of the matrices. Pointers are addresses.
    """

    transposed_a: int
    transposed_b: int
    m: int
    n: int
    k: int
    alpha: int
    a: int
    dtype_a: int
    leading_a: int
    b: int
    dtype_b: int
    leading_b: int
    beta: int
    c: int
    dtype_c: int
    leading_c: int
    compute: int
    algorithm: int


class Plan(NamedTuple):
    """The cuBLASLt descriptors of a matmul: operation, layouts of operands and result, and the algorithm.

    The algorithm is the first that cuBLASLt recommends, which is the same in every run. The fastest one would have to
    be measured and could differ from run to run; for the matmuls of a base step it would save 3% (docs/gpu.md).
    """

    operation: Any
    layouts: tuple[Any, Any, Any]
    algorithm: Algorithm


def load_cublas() -> Any:
    """Load CuPy's compiled cuBLAS module as a shared library, to access the symbols of cuBLAS."""
    from cupy_backends.cuda.libs import cublas

    return ctypes.PyDLL(cublas.__file__)


class Cublas:
    """A cuBLAS handle that follows the current stream. It has one workspace, which one stream can use at a time."""

    def __init__(self, cupy: Any, math_mode: int) -> None:
        from cupy_backends.cuda.libs import cublas

        self.functions = load_cublas()
        self.current = cupy.cuda.get_current_stream
        self.stream: int | None = None
        for name, types in ARGUMENTS.items():
            getattr(self.functions, name).argtypes = types
        self.handle = cublas.create()
        self.workspace = cupy.empty(WORKSPACE, np.uint8)
        cublas.setMathMode(self.handle, math_mode)
        self.plans: dict[Any, Plan] = {}

    def call(self, name: str, *args: Any) -> None:
        """Call a function of the library. Raises RuntimeError with the status if the call fails."""
        if status := getattr(self.functions, name)(*args):
            raise RuntimeError(f"{name}: expected CUBLAS_STATUS_SUCCESS (0); got status {status}")

    def gemm_ex(self, *args: int) -> None:
        """Call cublasGemmEx on the current stream."""
        stream = self.current().ptr
        if stream != self.stream:  # setting a stream resets the workspace to cuBLAS's default
            self.call("cublasSetStream_v2", self.handle, stream)
            self.call("cublasSetWorkspace_v2", self.handle, self.workspace.data.ptr, WORKSPACE)
            self.stream = stream
        self.call("cublasGemmEx", self.handle, *args)

    def matmul(self, *args: int, bias: int = 0, relu: bool = False) -> None:
        """Compute a matmul with cuBLASLt, add `bias` and apply ReLU if `relu`, with one rounding at the end.

        Args:
            args: the arguments of cublasGemmEx after the handle.
            bias: an address, or 0 for no bias.
        """
        gemm = GemmArguments(*args)
        alignments = tuple(min(16, address & -address) for address in (gemm.a, gemm.b, gemm.c, bias))
        product = gemm.transposed_a, gemm.transposed_b, gemm.m, gemm.n, gemm.k, gemm.compute
        layouts = gemm.dtype_a, gemm.leading_a, gemm.dtype_b, gemm.leading_b, gemm.dtype_c, gemm.leading_c
        key = product, layouts, alignments, relu
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self.make_plan(gemm, alignments, relu)
        if bias:
            self.set_attribute("MatmulDesc", plan.operation, BIAS, POINTER(bias))
        layout_a, layout_b, layout_c = plan.layouts
        self.call(
            "cublasLtMatmul", self.handle, plan.operation, gemm.alpha, gemm.a, layout_a, gemm.b, layout_b, gemm.beta,
            gemm.c, layout_c, gemm.c, layout_c, ctypes.byref(plan.algorithm), self.workspace.data.ptr, WORKSPACE,
            self.current().ptr,
        )  # fmt: skip

    def make_plan(self, gemm: GemmArguments, alignments: tuple[int, ...], relu: bool) -> Plan:
        """Create the descriptors of a matmul. Raises RuntimeError if no algorithm exists.

        Args:
            alignments: alignment in bytes of the addresses of both operands, the result and the bias (0: no bias).
        """
        m, n, k = gemm.m, gemm.n, gemm.k
        operation = self.create_descriptor(
            "MatmulDesc", gemm.compute, int(gemm.dtype_a == 1)
        )  # alpha and beta are float32, or float64
        self.set_attribute("MatmulDesc", operation, TRANSPOSED_A, INT(gemm.transposed_a))
        self.set_attribute("MatmulDesc", operation, TRANSPOSED_B, INT(gemm.transposed_b))
        *matrix_alignments, bias_alignment = alignments
        epilogue = WITH_RELU * relu + WITH_BIAS * bool(bias_alignment)
        self.set_attribute("MatmulDesc", operation, EPILOGUE, INT(epilogue))
        if bias_alignment:  # a fake address with this alignment for the heuristic; it is never read
            self.set_attribute("MatmulDesc", operation, BIAS, POINTER(bias_alignment))
        size_a = (k, m) if gemm.transposed_a else (m, k)
        size_b = (n, k) if gemm.transposed_b else (k, n)
        layout_a = self.create_descriptor("MatrixLayout", gemm.dtype_a, *size_a, gemm.leading_a)
        layout_b = self.create_descriptor("MatrixLayout", gemm.dtype_b, *size_b, gemm.leading_b)
        layout_c = self.create_descriptor("MatrixLayout", gemm.dtype_c, m, n, gemm.leading_c)
        preference = self.create_descriptor("MatmulPreference")
        self.set_attribute("MatmulPreference", preference, MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        self.set_attribute("MatmulPreference", preference, REDUCTIONS, INT(FULL_PRECISION))
        for attribute, alignment in zip(ALIGNMENTS, (*matrix_alignments, matrix_alignments[2]), strict=True):
            self.set_attribute("MatmulPreference", preference, attribute, INT(alignment))
        algorithm = Algorithm()
        count = INT()
        descriptors = (operation, layout_a, layout_b, layout_c, layout_c, preference)
        heuristic = "cublasLtMatmulAlgoGetHeuristic"
        self.call(heuristic, self.handle, *descriptors, 1, ctypes.byref(algorithm), ctypes.byref(count))
        if not count.value or algorithm.state:
            raise RuntimeError(f"cublasLt: no algorithm for a {m} x {n} x {k} matmul; try NPX_CUBLASLT=0")
        return Plan(operation, (layout_a, layout_b, layout_c), algorithm)

    def create_descriptor(self, kind: str, *args: int) -> Any:
        """Create a cuBLASLt descriptor, which is never destroyed."""
        descriptor = POINTER()
        self.call(f"cublasLt{kind}Create", ctypes.byref(descriptor), *args)
        return descriptor

    def set_attribute(self, kind: str, descriptor: Any, attribute: int, value: Any) -> None:
        """Set an attribute of a descriptor."""
        self.call(f"cublasLt{kind}SetAttribute", descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value))
