"""The emulator detects planted bugs in every thread order: missing barriers, wrong indices, divergence, arguments."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import npx
from npx.cuda import launch as launching
from npx.cuda.launch import launch
from npx.dispatch import kernel_mode
from npx.kernels.layer_norm import sum_columns_cuda
from npx.random import Key, bits16
from npx.testing.cuda_emulator import emulator
from npx.testing.cuda_emulator.emulator import EmulatorError, Module, thread_order

try:
    emulator.compiler()
except EmulatorError as error:
    pytest.skip(str(error), allow_module_level=True)
ml_dtypes = pytest.importorskip("ml_dtypes")

HALVES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
DTYPES = [np.dtype("float32"), *HALVES]
PROBE = str(Path(__file__).with_name("probe.cu"))
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
orders = pytest.mark.parametrize("order", emulator.ORDERS)


def built(tmp_path, body, **defines):
    """Compile a module with one kernel, `probe(float* x, int n)`, with this body."""
    source = tmp_path / "small.cu"
    source.write_text('#include "device.cuh"\nextern "C" __global__ void probe(float* x, int n) {\n' + body + "\n}\n")
    return Module(source, launching.HEADER, {"T": "float", **defines})


def run(module, n=64, block=64, grid=1, shared=0):
    x = np.zeros(n, "float32")
    module.launch("probe", (grid, 1, 1), (block, 1, 1), (x, np.int32(n)), shared)
    return x


# device.cuh


@dtypes
def test_conversions_round_as_numpy_does(dtype):
    rng = np.random.default_rng(0)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 65519.99, 65520, 1e-8, 2.0**-25, 3 * 2.0**-25, 6e-8, 3e38, 1e-40]
    halfway = 1 + np.arange(9) / 512  # halfway between adjacent bfloat16 values
    x = np.concatenate([rng.normal(size=3000) * np.exp(8 * rng.normal(size=3000)), special, halfway, halfway / 16])
    x = x.astype("float32")
    low, back = np.empty(x.shape, dtype), np.empty_like(x)
    launch(PROBE, "probe_convert", -(-x.size // 128), 128, (x, low, back, np.int32(x.size)), T=dtype)
    with np.errstate(over="ignore"):
        expected = x.astype(dtype)
    assert np.array_equal(low.astype("float32"), expected.astype("float32"), equal_nan=True)
    assert np.array_equal(back, expected.astype("float32"), equal_nan=True)


@dtypes
@pytest.mark.parametrize("columns", [1, 31, 33, 200])
def test_reductions_in_every_thread_order(dtype, columns):
    x = np.random.default_rng(columns).normal(size=(3, columns)).astype(dtype)
    results = []
    for order in emulator.ORDERS:
        sums, peaks = np.empty(3, "float32"), np.empty(3, "float32")
        with thread_order(order):
            launch(PROBE, "probe_reduce", 3, 96, (x, sums, peaks, np.int32(columns)), T=dtype)
        results.append((sums, peaks))
        assert np.array_equal(peaks, x.astype("float32").max(1))
        assert np.allclose(sums, x.astype("float64").sum(1), rtol=1e-5, atol=1e-5)
    assert all(np.array_equal(results[0], other) for other in results)


@pytest.mark.parametrize("key", [Key(0, 0, 0), Key(3, 2**40, 9), Key(2**63, 1, 2)])
def test_random_bits_are_those_of_the_cpu(key):
    for first in (0, 7, 2**40):
        words = np.empty(1000, np.uint16)
        numbers = *map(np.uint64, (*key, first)), np.int32(words.size)
        launch(PROBE, "probe_random", 1, 64, (words, *numbers), T=np.float32)
        assert np.array_equal(words, bits16(key, 16 * first, 16 * first + words.size))


@dtypes
def test_sixteen_bytes_at_a_time_through_dynamic_shared_memory(dtype):
    x = np.random.default_rng(0).normal(size=264).astype(dtype)
    y = np.empty_like(x)
    launch(PROBE, "probe_vector", 1, 96, (x, y, np.int32(x.size)), shared=x.nbytes, T=dtype)
    assert np.array_equal(y.astype("float32"), 2 * x.astype("float32"))
    with pytest.raises(EmulatorError, match="not aligned"):
        launch(PROBE, "probe_vector", 1, 96, (x[1:], y[1:], np.int32(256)), shared=x.nbytes, T=dtype)


@orders
def test_tensor_cores(order):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(16, 16)), rng.normal(size=(16, 8))
    c = np.empty((16, 8), "float32")
    for dtype, kernel in zip(HALVES, ("probe_mma_half", "probe_mma_bf16"), strict=True):
        low = a.astype(dtype), b.astype(dtype)
        with thread_order(order):
            launch(PROBE, kernel, 1, 32, (*low, c), shared=768, T=dtype)
        assert np.allclose(c, low[0].astype("float32") @ low[1].astype("float32"), rtol=1e-6, atol=1e-6)


# Planted bugs are detected

SUM = """
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = s[(threadIdx.x + 33) % 64];
"""
LANES = """
    __shared__ float s[32];
    s[threadIdx.x] = threadIdx.x;
    __syncwarp();
    x[threadIdx.x] = s[31 - threadIdx.x];
"""

PLANTED = {
    "no barrier": (SUM.replace("__syncthreads();", ""), "static shared memory, which .* with no barrier since"),
    "barrier of the warp alone": (SUM.replace("syncthreads", "syncwarp"), "which thread .* with no barrier since"),
    "write after read": ("__shared__ float s; if (threadIdx.x == 0) s = 1; __syncthreads(); x[threadIdx.x] = s;"
                         "if (threadIdx.x == 40) s = 2;", "writes byte 0 of static .* other threads read|reads byte 0"),
    "two writers": ("__shared__ float s; s = threadIdx.x; __syncthreads(); x[threadIdx.x] = s;", "writes .* wrote"),
    "array unordered": ("x[threadIdx.x] = 1; x[(threadIdx.x + 40) % 64] += 1;", "of argument 0, which thread"),
    "read past the end": ("x[0] = x[n];", r"reads 4 bytes at byte 256 of argument 0, which has 256 bytes \(small"),
    "write in front": ("x[(int)threadIdx.x - 1] = 0;", "writes 4 bytes at byte -4 of argument 0"),
    "far away": ("x[threadIdx.x + (1ll << 40)] = 0;", "far from all arrays"),
    "null": ("x = 0; x[threadIdx.x] = 1;", "null or not aligned|address"),
    "past a local array": ("float v[4] = {1, 2, 3, 4}; x[threadIdx.x] = v[n % 7 + 3];", r"past the end.*small\.cu:3"),
    "past static shared memory": ("__shared__ float s[64]; s[threadIdx.x + 1] = 0;", "past the end"),
    "past dynamic shared memory": ("dynamic_shared<float>()[threadIdx.x + 1] = 0;", "256 of dynamic shared memory"),
    "some return": ("if (threadIdx.x > 40) return; __syncthreads(); x[threadIdx.x] = 1;", "each other.*23 of 64"),
    "two barriers": ("if (threadIdx.x < 32)\n __syncthreads();\nelse\n __syncthreads();", r"small\.cu:4.*small\.cu:6"),
    "half a warp": ("if (threadIdx.x % 2) x[threadIdx.x] = warp_sum(1.0f);", "wait for each other|have returned"),
    "mask without itself": ("x[threadIdx.x] = __shfl_sync(1u, 1.0f, 0);", "mask 00000001 leaves it out"),
    "shift": ("x[0] = 1 << n;", "shifts by"),
    "division": ("x[0] = n / (int)threadIdx.y;", "divides an integer by zero"),
    "overflow": ("x[0] = (n << 24) * 100;", "overflows a signed integer"),
}  # fmt: skip


def test_correct_kernels_pass(tmp_path):
    assert np.array_equal(run(built(tmp_path, SUM)), (np.arange(64) + 33) % 64)
    assert np.array_equal(run(built(tmp_path, LANES), 32, 32), 31 - np.arange(32))


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_detected_in_every_thread_order(bug, tmp_path):
    body, message = PLANTED[bug]
    module = built(tmp_path, body)
    for order in emulator.ORDERS:
        with thread_order(order), pytest.raises(EmulatorError, match=f"(?s)small.cu, probe: .*({message})"):
            run(module, shared=256)


@orders
def test_a_missing_warp_barrier_and_a_race_between_blocks_are_detected(order, tmp_path):
    with thread_order(order):
        with pytest.raises(EmulatorError, match="with no barrier since"):
            run(built(tmp_path, LANES.replace("__syncwarp();", "")), 32, 32)
        with pytest.raises(EmulatorError, match="another block wrote in the same launch"):
            run(built(tmp_path, "x[threadIdx.x] = blockIdx.x;"), grid=2)


def test_shared_memory_starts_as_nan_in_every_block(tmp_path):
    body = "__shared__ float s[64]; x[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x]; s[threadIdx.x] = 1;"
    assert np.isnan(run(built(tmp_path, body), block=32, grid=2)).all()


def test_atomic_operations_need_no_barrier(tmp_path):
    x = run(built(tmp_path, "atomicAdd(x, 1.0f); atomicMax(x + 1, (float)threadIdx.x);"), grid=3)
    assert x[0] == 3 * 64 and x[1] == 63


def test_every_thread_has_the_right_indices(tmp_path):
    body = "x[threadIdx.x + 4 * (threadIdx.y + 3 * (threadIdx.z + 2 * (blockIdx.x + gridDim.x * blockIdx.y)))]"
    module = built(tmp_path, body + " = blockDim.y * 10 + gridDim.y;")
    x = np.zeros(144, "float32")
    module.launch("probe", (3, 2, 1), (4, 3, 2), (x, np.int32(0)))
    assert (x == 32).all()


# Bugs planted in the real kernels


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """Use an editable copy of the kernels and return the function that edits it."""
    copy = tmp_path / "kernels"
    shutil.copytree(launching.SOURCES, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(launching.HEADER, copy)
    monkeypatch.setattr(launching, "SOURCES", copy)
    monkeypatch.setattr(launching, "HEADER", copy / launching.HEADER.name)
    emulator.module.cache_clear()

    def edit(file, old, new, which=0):
        parts = (copy / file).read_text().split(old)
        assert len(parts) > which + 1, f"{file} has no {old!r} number {which}"
        (copy / file).write_text(old.join(parts[: which + 1]) + new + old.join(parts[which + 1 :]))
        emulator.module.cache_clear()

    return edit


def softmax_rows():
    with kernel_mode("emulate"):
        return npx.softmax(np.random.default_rng(0).normal(size=(2, 1099)).astype("float32"))[0]


def column_sums():
    return sum_columns_cuda(np.ones((11, 40), "float32"), np.dtype("float32"), (None,))[0]


REAL = {
    "barrier before the scratch is reused": (softmax_rows, "device.cuh", "    __syncthreads();\n", "", 0),
    "barrier before the scratch is read": (softmax_rows, "device.cuh", "    __syncthreads();\n", "", 3),
    "one column too many": (softmax_rows, "softmax.cu", "n - start, v)", "n + 1 - start, v)", 0),
    "barrier between the warps' sums": (column_sums, "column_sums.cu", "    __syncthreads();\n", "", 0),
    "one warp too many": (column_sums, "column_sums.cu", "other < WARPS", "other <= WARPS", 0),
    "the adjacent row": (column_sums, "column_sums.cu", "row * (i64)columns", "(row + 1) * (i64)columns", 0),
}


@pytest.mark.parametrize("bug", REAL)
def test_bugs_planted_in_real_kernels_are_detected(bug, kernels):
    call, file, old, new, which = REAL[bug]
    call()
    kernels(file, old, new, which)
    for order in emulator.ORDERS:
        with thread_order(order), pytest.raises(EmulatorError, match=r"\.cu, \w+: thread .* of block"):
            call()


# Every barrier in the kernels is needed: removing one is detected


def relu_rows():
    x, y = np.ones((11, 70), "float32"), np.ones((11, 70), "float32")
    with kernel_mode("emulate"):
        _, saved = npx.linear(np.ones((11, 3), "float32"), np.ones((3, 70), "float32"), y[0], "relu")
        return npx.linear_grad(x, saved)


def normed_rows():
    with kernel_mode("emulate"):
        x = np.random.default_rng(0).normal(size=(20, 700)).astype("float32")
        return npx.layer_norm_grad(x, npx.layer_norm(x, x[0], x[1])[1])


def embedded():
    with kernel_mode("emulate"):
        _, saved = npx.embedding(np.ones((4, 50), "float32"), np.arange(40) % 3)
        return npx.embedding_grad(np.ones((40, 50), "float32"), saved)


def attended():
    """Run sentences of several tiles, with aligned and unaligned rows, and of one tile."""
    rng = np.random.default_rng(0)
    drop = npx.DropoutSpec(0.3, npx.Key(1, 2, 3))
    results = []
    for queries, keys, size in ((70, 90, 16), (70, 65, 15), (30, 27, 32)):
        g, q, k, v = (rng.normal(size=(1, n, 1, size)).astype("float16") for n in (queries, queries, keys, keys))
        with kernel_mode("emulate"):
            y, saved = npx.attention(q, k, v, npx.AttentionSpec(), drop)
            results += [y, *npx.attention_grad(g, saved)]
    return results


USES = {
    "attention.cu": attended,
    "column_sums.cu": column_sums,
    "embedding.cu": embedded,
    "layer_norm.cu": normed_rows,
    "linear.cu": relu_rows,
}
WAITS = ["__syncthreads();", "__syncwarp();", "wait_for_copies();"]
BARRIERS = [
    (path.name, wait, i)
    for path in sorted(launching.SOURCES.glob("*.cu"))
    for wait in WAITS
    for i in range(path.read_text().count(wait))
]


@pytest.mark.slow
@pytest.mark.parametrize("file, wait, which", BARRIERS)
def test_every_barrier_is_needed(file, wait, which, kernels):
    assert file in USES, f"{file} has a barrier and no call in USES"
    expected = USES[file]()
    kernels(file, wait, ";", which)
    try:
        result = USES[file]()
    except EmulatorError as error:
        assert "with no barrier since" in str(error)
    else:  # without waiting, a copy leaves NaN
        assert any(not np.array_equal(e, r) for e, r in zip(expected, result, strict=True))


# Launches and messages


def test_a_kernel_that_does_not_compile_shows_the_compilers_message(tmp_path):
    with pytest.raises(EmulatorError, match=r"(?s)small\.cu: .*g\+\+ reports.*small\.cu:3:.*.undeclared.*"):
        built(tmp_path, "x[0] = undeclared;")


WRONG = {
    "too few": ((np.zeros(4, "float32"),), "expected 2 arguments; got 1"),
    "type of a number": ((np.zeros(4, "float32"), np.int64(4)), "argument 1: expected int32; got int64"),
    "Python number": ((np.zeros(4, "float32"), 4), "argument 1: expected int32; got int"),
    "type of an array": ((np.zeros(4, "float16"), np.int32(4)), r"argument 0: expected float32\*; got float16\*"),
    "number for array": ((np.float32(1), np.int32(4)), r"argument 0: expected float32\*; got float32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_are_checked_against_the_signature(case, tmp_path):
    args, message = WRONG[case]
    module = built(tmp_path, "x[0] = n;")
    with pytest.raises(EmulatorError, match=message):
        module.launch("probe", (1, 1, 1), (1, 1, 1), args)


def test_limits_of_a_launch(tmp_path):
    module = built(tmp_path, "x[0] = n;")
    args = np.zeros(4, "float32"), np.int32(4)
    with pytest.raises(EmulatorError, match="expected one of probe; got 'prob'"):
        module.launch("prob", (1, 1, 1), (1, 1, 1), args)
    for grid, block, shared in [
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 65536, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1, 1, 1), 1 << 18),
    ]:
        with pytest.raises(EmulatorError, match="expected at most"):
            module.launch("probe", grid, block, args, shared)
    x = np.zeros((4, 4), "float32")
    with pytest.raises(ValueError, match="probe_convert, argument 0: expected a contiguous array"):
        launch(PROBE, "probe_convert", 1, 32, (x.T, x, x, np.int32(16)), T=x.dtype)
    launch(PROBE, "probe_convert", 0, 32, (x, x, x, np.int32(16)), T=x.dtype)
    with pytest.raises(ValueError, match="expected one of forward, reverse, random; got 'odd'"), thread_order("odd"):
        pass


# The mode


def test_emulate_mode_runs_cuda_versions_and_the_check_compares_gradients_alone(monkeypatch):
    """A version may save other values than the reference; here it saves x itself."""
    monkeypatch.setattr(npx.dispatch, "KERNELS", npx.registry.Registry("kernel"))

    @npx.kernel
    def double(x):
        return x * 2, (x * x, "two")

    @double.define_gradient
    def double_grad(g, square, kind):
        return g * 2 * square

    ran = []
    double.fast("cupy", "float32")(lambda x: (ran.append("double"), (x + x, x))[1])
    double_grad.fast("cupy", "float32")(lambda g, x: (ran.append("grad"), 2 * g * x * x)[1])
    x = np.array([1, 2, 3], "float32")
    for mode in ("emulate", "emulate+check"):
        ran.clear()
        with kernel_mode(mode):
            y, saved = double(x)
            assert npx.dispatch.is_emulating() and np.array_equal(double_grad(y, saved), 4 * x * x * x)
        assert ran == ["double", "grad"]
        assert (saved.reference_saved is not None) == (mode == "emulate+check")
    double_grad.fast("cupy", "float32")(lambda g, x: g)
    with kernel_mode("emulate+check"), pytest.raises(npx.KernelMismatch, match="double_grad"):
        double_grad(*double(x))
    assert not npx.dispatch.is_emulating()


@pytest.mark.parametrize(
    "dtypes", [("float32", None), (None, "float32"), ("float64", "float32"), ("float64", "float64")]
)
def test_gradients_are_added_to_the_sums_that_exist(dtypes):
    """Without a sum, for example because a weight is frozen, the kernels return a new array."""
    x, gamma = np.ones((3, 4), "float32") * np.arange(4, dtype="float32"), np.ones(4, "float32")
    sums = tuple(None if dtype is None else np.ones(4, dtype) for dtype in dtypes)
    with kernel_mode("emulate+check"):
        _, saved = npx.layer_norm(x, gamma, gamma)
        _, *gradients = npx.layer_norm_grad(x, saved, accumulate_into=sums)
        _, *new = npx.layer_norm_grad(x, saved)
    for gradient, total, alone in zip(gradients, sums, new, strict=True):
        assert total is None or gradient is total
        np.testing.assert_allclose(gradient, alone + (0 if total is None else 1), rtol=1e-6)


def test_a_table_gradient_is_added_to_a_wider_sum():
    total = np.ones((5, 3))
    with kernel_mode("emulate+check"):
        _, saved = npx.embedding(np.zeros((5, 3), "float32"), np.array([1, 1, 4]))
        assert npx.embedding_grad(np.ones((3, 3), "float32"), saved, accumulate_into=total) is total
    assert total[:, 0].tolist() == [1, 3, 1, 1, 2]
