"""cuBLAS without CuPy's wrapper, which refuses every call while a stream is captured for a CUDA graph.

cuBLAS itself does not, where it has its workspace and need not allocate one (its manual, "CUDA graphs support"). So
gemmEx is called in the library that CuPy has loaded, on a handle and a workspace of our own.
"""

import ctypes
from typing import Any

import numpy as np

WORKSPACE = 32 << 20  # bytes, what NVIDIA recommends for Hopper
INT, POINTER = ctypes.c_int, ctypes.c_void_p
GEMM_EX = (  # handle, transa, transb, m, n, k, alpha, A, its type, lda, B, its type, ldb, beta, C, its type, ldc, ...
    POINTER, *[INT] * 5, POINTER, POINTER, INT, INT, POINTER, INT, INT, POINTER, POINTER, INT, INT, INT, INT,
)  # fmt: skip


def loaded() -> Any:
    """CuPy's module that is linked to cuBLAS, as a library: a symbol of it is one of what it is linked to."""
    from cupy_backends.cuda.libs import cublas

    return ctypes.PyDLL(cublas.__file__)


class Cublas:
    """A handle on the current stream, whichever that is, with one workspace: so products of one stream at a time."""

    def __init__(self, cupy: Any, math_mode: int) -> None:
        from cupy_backends.cuda.libs import cublas

        library, self.current = loaded(), cupy.cuda.get_current_stream
        self._gemm_ex, self._set_stream = library.cublasGemmEx, library.cublasSetStream_v2
        self._set_workspace, self.stream = library.cublasSetWorkspace_v2, None
        self._gemm_ex.argtypes = GEMM_EX
        self._set_stream.argtypes = POINTER, POINTER
        self._set_workspace.argtypes = POINTER, POINTER, ctypes.c_size_t
        self.handle, self.workspace = cublas.create(), cupy.empty(WORKSPACE, np.uint8)
        cublas.setMathMode(self.handle, math_mode)

    def gemm_ex(self, *args: int) -> None:
        """cublasGemmEx; RuntimeError with its status where it fails."""
        stream = self.current().ptr
        if stream != self.stream:  # a new stream takes cuBLAS back to a workspace of its own
            self._checked("cublasSetStream", self._set_stream(self.handle, stream))
            self._checked("cublasSetWorkspace", self._set_workspace(self.handle, self.workspace.data.ptr, WORKSPACE))
            self.stream = stream
        self._checked("cublasGemmEx", self._gemm_ex(self.handle, *args))

    @staticmethod
    def _checked(name: str, status: int) -> None:
        if status:
            raise RuntimeError(f"{name}: expected status 0; got {status}")
