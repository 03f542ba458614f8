"""cuBLAS and cuBLASLt without CuPy's wrapper, which refuses the one while a stream is captured and has not the other.

CuPy's compiled module is linked to both, so their functions are found in what it has loaded. A handle and a workspace
are our own: cuBLAS can be captured in a CUDA graph where it need not allocate (its manual, "CUDA graphs support").
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np

WORKSPACE = 32 << 20  # bytes, what NVIDIA recommends for Hopper
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
# Numbers of cuBLASLt's enumerations: attributes of a product and of what is asked of an algorithm, epilogues
TRANSPOSED_A, TRANSPOSED_B, EPILOGUE, BIAS = 3, 4, 7, 8
MOST_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)
NO_EPILOGUE, WITH_RELU, WITH_BIAS = 1, 2, 4
IN_FULL_PRECISION = 3  # sums that are cut up are reduced in place or in float32, never in the type of the output
CHOICES = 8  # algorithms that are asked for


class Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [("algorithm", ctypes.c_uint64 * 8), ("workspace", SIZE), ("state", INT), ("waves", ctypes.c_float)]
    _fields_ += [("reserved", INT * 4)]


class Plan(NamedTuple):
    """A product as cuBLASLt wants it described: the operation, both factors and the result, algorithms, best first."""

    operation: Any
    layouts: tuple[Any, Any, Any]
    choices: list[Choice]


def loaded() -> Any:
    """CuPy's module that is linked to cuBLAS, as a library: a symbol of it is one of what it is linked to."""
    from cupy_backends.cuda.libs import cublas

    return ctypes.PyDLL(cublas.__file__)


class Cublas:
    """A handle on the current stream, whichever that is, with one workspace: so products of one stream at a time.

    choice: the number of cuBLASLt's algorithm among those it recommends for a shape. The first is always the same one;
    which is the fastest is to be measured, and would be another one from run to run.
    """

    def __init__(self, cupy: Any, math_mode: int) -> None:
        from cupy_backends.cuda.libs import cublas

        self.functions, self.current, self.stream = loaded(), cupy.cuda.get_current_stream, None
        for name, kinds in ARGUMENTS.items():
            getattr(self.functions, name).argtypes = kinds
        self.handle, self.workspace = cublas.create(), cupy.empty(WORKSPACE, np.uint8)
        cublas.setMathMode(self.handle, math_mode)
        self.plans: dict[Any, Plan] = {}
        self.choice = 0

    def ask(self, name: str, *args: Any) -> None:
        """A function of the library; RuntimeError with its status where it fails."""
        if status := getattr(self.functions, name)(*args):
            raise RuntimeError(f"{name}: expected status 0; got {status}")

    def gemm_ex(self, *args: int) -> None:
        """cublasGemmEx."""
        stream = self.current().ptr
        if stream != self.stream:  # a new stream takes cuBLAS back to a workspace of its own
            self.ask("cublasSetStream_v2", self.handle, stream)
            self.ask("cublasSetWorkspace_v2", self.handle, self.workspace.data.ptr, WORKSPACE)
            self.stream = stream
        self.ask("cublasGemmEx", self.handle, *args)

    def matmul(self, *args: int, bias: int = 0, relu: bool = False) -> None:
        """The same product by cuBLASLt, plus `bias` (an address, 0: none), then max(0, .) if `relu`, rounded once."""
        alpha, a, b, beta, c = (args[i] for i in (5, 6, 9, 12, 13))
        aligned = tuple(min(16, address & -address) for address in (a, b, c, bias))
        key = args[:5], args[7:9], args[10:12], args[14:17], aligned, relu
        plan = self.plans.get(key)
        if plan is None:
            plan = self.plans[key] = self.plan(args, aligned, relu)
        if bias:
            self.set("MatmulDesc", plan.operation, BIAS, POINTER(bias))
        layout_a, layout_b, layout_c = plan.layouts
        choice = plan.choices[min(self.choice, len(plan.choices) - 1)]
        self.ask(
            "cublasLtMatmul", self.handle, plan.operation, alpha, a, layout_a, b, layout_b, beta, c, layout_c,
            c, layout_c, ctypes.byref(choice), self.workspace.data.ptr, WORKSPACE, self.current().ptr,
        )  # fmt: skip

    def plan(self, args: tuple[int, ...], aligned: tuple[int, ...], relu: bool) -> Plan:
        """What is described once for a shape: gemmEx's arguments but addresses. RuntimeError if there is no way.

        aligned: bytes of which the addresses of both factors, the result and the bias are multiples; 0: no bias.
        """
        (transposed_a, transposed_b, m, n, k), compute = args[:5], args[16]
        a, b, c = args[7:9], args[10:12], args[14:16]  # type and leading dimension
        operation = self.made("MatmulDesc", compute, int(a[0] == 1))  # alpha and beta are float32, or float64
        self.set("MatmulDesc", operation, TRANSPOSED_A, INT(transposed_a))
        self.set("MatmulDesc", operation, TRANSPOSED_B, INT(transposed_b))
        *least, of_bias = aligned
        epilogue = WITH_RELU * relu + WITH_BIAS * bool(of_bias) or NO_EPILOGUE
        self.set("MatmulDesc", operation, EPILOGUE, INT(epilogue))
        if of_bias:  # an address with as many zeros: what is recommended depends on it, and it is read by none
            self.set("MatmulDesc", operation, BIAS, POINTER(of_bias))
        sizes = (k, m) if transposed_a else (m, k), (n, k) if transposed_b else (k, n), (m, n)
        layouts = [
            self.made("MatrixLayout", kind, *size, step) for (kind, step), size in zip((a, b, c), sizes, strict=True)
        ]
        wanted = self.made("MatmulPreference")
        self.set("MatmulPreference", wanted, MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))
        self.set("MatmulPreference", wanted, REDUCTIONS, INT(IN_FULL_PRECISION))
        for attribute, multiple in zip(ALIGNMENTS, (*least, least[2]), strict=True):
            self.set("MatmulPreference", wanted, attribute, INT(multiple))
        found, number = (Choice * CHOICES)(), INT()
        described = (operation, layouts[0], layouts[1], layouts[2], layouts[2], wanted)
        self.ask("cublasLtMatmulAlgoGetHeuristic", self.handle, *described, CHOICES, found, ctypes.byref(number))
        choices = [choice for choice in found[: number.value] if choice.state == 0]
        if not choices:
            raise RuntimeError(f"cublasLt: expected a way to multiply {m} x {n} x {k}; got none; try NPX_CUBLASLT=0")
        return Plan(operation, (layouts[0], layouts[1], layouts[2]), choices)

    def made(self, kind: str, *args: int) -> Any:
        """A description of cuBLASLt's, made for good."""
        found = POINTER()
        self.ask(f"cublasLt{kind}Create", ctypes.byref(found), *args)
        return found

    def set(self, kind: str, described: Any, attribute: int, value: Any) -> None:
        self.ask(f"cublasLt{kind}SetAttribute", described, attribute, ctypes.byref(value), ctypes.sizeof(value))
