"""Bias and ReLU within matmuls, by cuBLASLt (npx/cuda/cublas.py); a fake (strict_cuda.py) reads the descriptors."""

import shutil

import numpy as np
import pytest

import npx
from benchmarks.launches import recorded
from npx.cuda import blas
from npx.precision import dtype_named
from tests.fakes.strict_cuda import LT
from tests.fakes.strict_cupy import device
from tests.fakes.strict_graphs import STATE
from tests.train.test_cuda_graphs import EVERY_DROPOUT, batches, updated

pytest.importorskip("ml_dtypes")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are emulated by g++; none found")


@pytest.fixture(autouse=True)
def use_cublaslt(monkeypatch):
    monkeypatch.setenv("NPX_CUBLASLT", "1")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_cublaslt_equals_cublas(dtype):
    """Rows and columns are contiguous or strided; outputs are new, overwritten or accumulated. ReLU is exact."""
    rng = np.random.default_rng(0)
    dtype = dtype_named(dtype)
    a, b = (rng.normal(size=shape).astype(dtype) for shape in ((6, 70), (70, 5)))

    def matmuls(relu):
        results = []
        with device(cuda=True):
            x, y = npx.asarray(a), npx.asarray(b)
            for left in (x, npx.asarray(a.T).T, npx.asarray(np.tile(a, 2))[:, :70]):
                for right in (y, npx.asarray(b.T).T, npx.asarray(np.tile(b, 2))[:, 5:]):
                    results.append(blas.matmul(left, right, relu=relu))
                    for add in (False, True):
                        out = npx.ones((6, 9), np.result_type(dtype, "float32"))[:, :5]
                        results.append(blas.matmul(left, right, out, add, relu=relu))
            results = [npx.to_host(x) for x in results]
        return [np.maximum(x, 0).tobytes() for x in results]

    by_cublaslt = matmuls(relu=True)
    assert LT.calls == [2] * 27
    assert matmuls(relu=False) == by_cublaslt and not LT.calls


@needs_gxx
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bias_and_relu_are_fused(dtype):
    rng = np.random.default_rng(1)
    n, i, o = 5, 16, 24
    numbers = [rng.normal(size=shape).astype(dtype_named(dtype)) for shape in ((n, i), (i, o), (o,))]
    for bias, activation, epilogue in ((True, "relu", 6), (True, None, 4), (False, "relu", 2), (False, None, 0)):
        with device(cuda=True), recorded() as calls:
            x, w, b = map(npx.asarray, numbers)
            y, saved = npx.linear(x, w, b if bias else None, activation)
            first = npx.to_host(y)
            npx.linear_grad(y, saved)
            other = npx.asarray(numbers[2][::-1].copy())
            second = npx.to_host(npx.linear(x, w, other if bias else None, activation)[0])
        assert "bias_relu" not in {call.name for call in calls} and sum(call.is_matmul for call in calls) == 4
        assert LT.calls == [epilogue] * 2 * bool(epilogue) and LT.requests == bool(epilogue)
        for b, result in ((numbers[2], first), (numbers[2][::-1], second)):
            wide = [a.astype("float64") for a in (*numbers[:2], b)]
            expected = npx.linear.reference(wide[0], wide[1], wide[2] if bias else None, activation)[0]
            assert np.abs(result.astype("float64") - expected).max() < (1e-5 if dtype == "float32" else 4e-2)


@needs_gxx
def test_a_bias_may_have_any_alignment():
    """A bias in a flat buffer may be unaligned; the algorithm is requested for the alignment of its address."""
    rng = np.random.default_rng(1)
    numbers = [rng.normal(size=shape).astype("float32") for shape in ((5, 16), (16, 24), (30,))]
    with device(cuda=True):
        x, w, b = map(npx.asarray, numbers)
        for start in (0, 1, 2, 4):
            result = npx.to_host(npx.linear(x, w, b[start : start + 24])[0])
            expected = numbers[0] @ numbers[1] + numbers[2][start : start + 24]
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        assert LT.requests == 3  # alignments 16 (twice), 4 and 8


@needs_gxx
def test_a_captured_update_equals_one_without_cublaslt(monkeypatch):
    micro = batches(4)
    with device(cuda=True):
        with_lt = updated(True, micro, "float32", model_changes=EVERY_DROPOUT)
        assert STATE.launches == 2 and LT.calls
    monkeypatch.setenv("NPX_CUBLASLT", "0")
    with device(cuda=True):
        without = updated(False, micro, "float32", model_changes=EVERY_DROPOUT)
    assert abs(with_lt[0] - without[0]).max() < 1e-4


def test_a_shape_without_an_algorithm_is_an_error(monkeypatch):
    monkeypatch.setattr(LT, "heuristic", lambda *args: None)
    with (
        device(cuda=True),
        pytest.raises(RuntimeError, match="no algorithm for a 2 x 3 x 4 matmul; try NPX_CUBLASLT=0"),
    ):
        blas.matmul(npx.ones((3, 4)), npx.ones((4, 2)), relu=True)
