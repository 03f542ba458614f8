"""Matmuls of the CUDA versions (npx/cuda/blas.py): rounding, and the arguments passed to cuBLAS."""

import numpy as np
import pytest

import npx
from npx.cuda.blas import leading_dimension, matmul
from tests.fakes.strict_cuda import CUBLAS
from tests.fakes.strict_cupy import device

pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 5, 2), (4, 0, 3), (0, 2, 2)])
def test_gemms_accumulate_in_float32_and_round_once(dtype, m, k, n):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(0)
    a = rng.normal(size=(m, k)).astype(dtype)
    b = rng.normal(size=(n, k)).astype(dtype).T
    wide = np.result_type(dtype, np.float32)
    exact = a.astype(wide) @ b.astype(wide)
    product = matmul(a, b)
    assert product.dtype == dtype and np.array_equal(product, exact.astype(dtype))
    out = np.ones((m, n), wide)
    assert matmul(a, b, out=out) is out and np.array_equal(out, exact)
    matmul(a, b, out=out, add=True)
    assert np.allclose(out, 2 * exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("m, k, n", [(3, 500, 2), (2, 7, 3), (4, 0, 3)])
def test_cublas_gives_the_same_bits(dtype, m, k, n):
    """The fake cuBLAS rounds partial sums wherever its math mode allows it."""
    rng = np.random.default_rng(0)
    wide = np.dtype(np.result_type(dtype, np.float32))
    a, b = (rng.normal(size=shape).astype(dtype) for shape in ((m, k), (n, k)))
    expected = matmul(a, b.T)
    initial = rng.normal(size=(m, 2 * n)).astype(wide)
    sums = matmul(a, b.T, out=initial[:, :n].copy(), add=True)
    with device(cuda=True):
        a, b, rows = npx.asarray(a), npx.asarray(b), npx.asarray(initial)
        assert npx.to_host(matmul(a, b.T)).tobytes() == expected.tobytes()
        assert npx.to_host(matmul(a, b.T, out=rows[:, :n], add=True)).tobytes() == sums.tobytes()
        assert np.array_equal(npx.to_host(rows)[:, n:], initial[:, n:])
        steps = [(call[:3], call[4], call[5][2]) for call in CUBLAS.calls]
        assert steps == [((m, n, k), (k, k, n), dtype), ((m, n, k), (k, k, 2 * n), wide.name)][: 2 * bool(k)]


def gemm(trans_a, trans_b, m, n, k, a, lda, b, ldb, c, ldc):
    """Compute cuBLAS's matmul of column-major matrices in flat memory: C (m, n) = op(A) (m, k) op(B) (k, n)."""

    def matrix(x, ld, rows, columns, transposed):
        if transposed:
            return matrix(x, ld, columns, rows, False).T
        return np.array([[x[i + j * ld] for j in range(columns)] for i in range(rows)]).reshape(rows, columns)

    product = matrix(a, lda, m, k, trans_a) @ matrix(b, ldb, k, n, trans_b)
    for i in range(m):
        for j in range(n):
            c[i + j * ldc] = product[i, j]


@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("m, k, n", [(2, 3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1, 1, 1)])
def test_leading_dimensions_describe_the_gemm_to_cublas(a_transposed, b_transposed, m, k, n):
    a = (
        np.arange(60.0).reshape(6, 10)[:k, 1 : 1 + m].T
        if a_transposed
        else np.arange(60.0).reshape(6, 10)[:m, 1 : 1 + k]
    )
    b = (
        np.arange(60.0).reshape(6, 10)[:n, 2 : 2 + k].T
        if b_transposed
        else np.arange(60.0).reshape(6, 10)[:k, 2 : 2 + n]
    )
    a_trans, lda = leading_dimension(a)
    b_trans, ldb = leading_dimension(b)

    def memory(x):
        return np.lib.stride_tricks.as_strided(x, (40,), (8,), writeable=False)

    c = np.zeros(m * n)
    gemm(b_trans, a_trans, n, m, k, memory(b), ldb, memory(a), lda, c, n)
    assert np.array_equal(c.reshape(m, n), a @ b)
    assert lda >= (m if a_trans else k) and ldb >= (k if b_trans else n)
