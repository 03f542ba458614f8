"""The CUDA version of attention (npx/kernels/attention.cu) against its reference in float64.

Covers lengths within one tile and over several, all kinds of masks, dropout, views of merged projections and decoding.
It runs in the emulator, or on a GPU with NPX_TEST_ENGINE=cupy.
"""

import os
import shutil

import numpy as np
import pytest

import npx
from autograd import Tensor, neural, no_grad
from autograd.saved import iterate_captured_arrays
from models import CrossAttention, SelfAttention
from npx.cuda import launch as launching
from npx.dispatch import TOLERANCE, kernel_mode
from npx.kernels.attention import LARGEST_HEAD, SHARED_BYTES, access_bytes, tile_size
from npx.precision import dtype_named
from npx.testing.cuda_emulator import emulator
from tests.fakes.strict_cupy import device

# "cupy" runs the kernels on a GPU; "emulated" runs them in the emulator, on arrays of the fake CuPy.
USES_CUPY_ARRAYS = os.environ.get("NPX_TEST_ENGINE") in ("cupy", "emulated")
MODE = "fast" if USES_CUPY_ARRAYS else "emulate"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not USES_CUPY_ARRAYS and shutil.which("g++") is None, reason="the emulator needs g++; none found"
    ),
]

DROP = npx.DropoutSpec(0.3, npx.Key(2**40 + 3, 7, 5))
DTYPES = ("float32", "float16", "bfloat16")
# The emulator skips bfloat16, whose kernels differ from those of float16 only in conversions.
two_dtypes = pytest.mark.parametrize("dtype", DTYPES if USES_CUPY_ARRAYS else DTYPES[:2], indirect=True)


@pytest.fixture(params=DTYPES)
def dtype(request):
    if request.param == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes, which is not installed")
    return dtype_named(request.param)


def inputs(dtype, batch, queries, keys, heads, d_k, d_v=None, seed=0):
    """Return g, q, k, v for one call."""
    rng = np.random.default_rng(seed)
    d_v = d_v or d_k
    shapes = (queries, heads, d_v), (queries, heads, d_k), (keys, heads, d_k), (keys, heads, d_v)
    return [rng.normal(size=(batch, *shape)).astype(dtype) for shape in shapes]


def masked(mask):
    """Return the AttentionSpec of a bool mask that is broadcastable to (B, H, T, S)."""
    return npx.AttentionSpec(constant_bias=npx.mask_bias(mask))


def make_spec(kind, batch, heads, queries, keys):
    """Return an AttentionSpec with one kind of mask, with its arrays on the host."""
    rng = np.random.default_rng(1)
    if kind == "none":
        return npx.AttentionSpec()
    if kind == "causal":
        return npx.AttentionSpec(causal=True)
    lengths = np.linspace(0, keys, batch).astype(int)  # no key of the first sentence, all keys of the last
    if kind == "lengths":
        return npx.AttentionSpec(kv_lengths=lengths)
    if kind == "all":
        return npx.AttentionSpec(True, lengths[::-1], rng.normal(size=(heads, 1, keys)), 100.0)
    shape = {"full": (batch, heads, queries, keys), "rows": (batch, 1, queries, 1), "heads": (heads, 1, keys)}[kind]
    mask = rng.random(shape) < 0.5
    mask[..., 0, :] = False
    return masked(mask)


def on_device(*arrays):
    """Return the arrays on the device that runs the kernels."""
    return [None if x is None else npx.asarray(x) for x in arrays]


def spec_on_device(spec):
    """Return the spec with its arrays on the device."""
    kv_lengths, bias = on_device(spec.kv_lengths, spec.constant_bias)
    return spec._replace(kv_lengths=kv_lengths, constant_bias=bias)


def on_cuda(g, q, k, v, spec=npx.AttentionSpec(), drop=None, out=None, return_bias_grad=False):
    """Return (y, gq, gk, gv), and gz with `return_bias_grad`, of the CUDA version, on the host."""
    g, q, k, v = on_device(g, q, k, v)
    with kernel_mode(MODE):
        y, saved = npx.attention(q, k, v, spec_on_device(spec), drop)
        return [npx.to_host(x) for x in (y, *npx.attention_grad(g, saved, out=out, return_bias_grad=return_bias_grad))]


def in_reference(g, q, k, v, spec=npx.AttentionSpec(), drop=None, return_bias_grad=False):
    """Return (y, gq, gk, gv), and gz with `return_bias_grad`, of the references in float64."""
    g, q, k, v = on_device(*(x.astype("float64") for x in (g, q, k, v)))
    y, saved = npx.attention.reference(q, k, v, spec_on_device(spec), drop)
    return [npx.to_host(x) for x in (y, *npx.attention_grad.reference(g, *saved, return_bias_grad=return_bias_grad))]


def assert_near(dtype, expected, result):
    """Compare relative to the largest magnitude of all four arrays, because a gradient may be 0 up to rounding."""
    largest = max(np.abs(e).max(initial=0) for e in expected)
    for name, e, r in zip(("y", "gq", "gk", "gv", "gz")[: len(expected)], expected, result, strict=True):
        assert (e.shape, np.float32 if name == "gz" else dtype) == (r.shape, r.dtype), name
        error = np.abs(e - r.astype("float64")).max(initial=0)
        assert error <= TOLERANCE[dtype.name] * largest, f"{name}: off by {error}, the largest is {largest}"


@pytest.mark.parametrize("drop", [None, DROP], ids=["plain", "dropout"])
@pytest.mark.parametrize("kind", ["none", "causal", "lengths", "all", "full", "rows", "heads"])
@pytest.mark.parametrize("queries, keys", [(1, 1), (7, 7), (1, 33), (33, 7), (70, 65)])
def test_values_and_gradients(queries, keys, kind, drop, dtype):
    batch, heads = 2, 2
    arrays = inputs(dtype, batch, queries, keys, heads, 16)
    spec = make_spec(kind, batch, heads, queries, keys)
    return_bias_grad = kind == "all"
    assert_near(
        dtype,
        in_reference(*arrays, spec, drop, return_bias_grad),
        on_cuda(*arrays, spec, drop, return_bias_grad=return_bias_grad),
    )


@two_dtypes
@pytest.mark.parametrize("drop", [None, DROP], ids=["plain", "dropout"])
@pytest.mark.parametrize("kind", ["none", "causal", "all", "full"])
@pytest.mark.parametrize("queries, keys, d_k, d_v", [(11, 16, 16, 16), (30, 27, 32, 32), (21, 32, 24, 40)])
def test_a_sentence_that_fits_one_tile(queries, keys, d_k, d_v, kind, drop, dtype, monkeypatch):
    """The scores are computed once for all gradients."""
    one_tile = []

    def recording_launch(*args, **defines):
        one_tile.append(defines["ONE_TILE"])
        launching.launch(*args, **defines)

    monkeypatch.setattr("npx.kernels.attention.launch", recording_launch)
    arrays = inputs(dtype, 2, queries, keys, 2, d_k, d_v)
    spec = make_spec(kind, 2, 2, queries, keys)
    result = on_cuda(*arrays, spec, drop, return_bias_grad=kind == "all")
    assert one_tile == [1, 1]
    assert_near(dtype, in_reference(*arrays, spec, drop, kind == "all"), result)


@two_dtypes
def test_a_tile_of_four_warps_at_once(dtype):
    """Queries in each half of a sentence attend only to keys in the same half."""
    spec = masked(np.kron(np.eye(2, dtype=bool), np.ones((32, 25), bool)))
    arrays = inputs(dtype, 1, 64, 50, 1, 64)
    assert_near(dtype, in_reference(*arrays, spec, DROP), on_cuda(*arrays, spec, DROP))


@two_dtypes
@pytest.mark.parametrize("d_k, d_v", [(64, 64), (128, 128), (24, 40), (5, 3)])
def test_sizes_of_heads(d_k, d_v, dtype):
    arrays = inputs(dtype, 1, 20, 33, 1, d_k, d_v)
    assert_near(dtype, in_reference(*arrays), on_cuda(*arrays))


def test_a_head_too_large_for_the_kernel_is_computed_in_float32(dtype):
    arrays = inputs(dtype, 1, 3, 5, 1, LARGEST_HEAD + 8)
    assert_near(dtype, in_reference(*arrays, drop=DROP), on_cuda(*arrays, drop=DROP))


@pytest.mark.parametrize("shape", [(0, 3, 3, 2), (2, 0, 3, 2), (2, 3, 0, 2)])
def test_empty_batches_queries_and_keys(shape, dtype):
    batch, queries, keys, heads = shape
    arrays = inputs(dtype, batch, queries, keys, heads, 16)
    results = on_cuda(*arrays)
    assert [r.shape for r in results] == [arrays[0].shape] + [x.shape for x in arrays[1:]]
    assert not any(r.any() for r in results)


def test_fully_masked_queries_get_zeros(dtype):
    mask = np.ones((2, 1, 1, 33), bool)
    mask[1] = False
    y, *grads = on_cuda(*inputs(dtype, 2, 33, 33, 2, 16), masked(mask))
    assert y[0].any() and not y[1].any()
    for grad in grads:
        assert grad[0].any() and not grad[1].any()


@pytest.mark.parametrize("keys", [9, 16])
def test_the_dropout_mask_equals_that_of_the_cpu(keys, dtype):
    """With an identity matrix as values, y shows the forward mask and gv that of the gradient."""
    g, q, k, v = inputs(dtype, 1, 33, keys, 2, 16)
    v[...] = np.eye(keys, 16)[None, :, None]
    g[...] = 0
    g[:, 20, :, 3] = 1
    y, _, _, gv = on_cuda(g, q, k, v, drop=DROP)
    keep = DROP.keep_mask((1, 2, 33, keys))
    assert np.array_equal(y.swapaxes(1, 2)[..., :keys] != 0, keep)
    assert np.array_equal(gv.swapaxes(1, 2)[..., 3] != 0, keep[:, :, 20])


@two_dtypes
@pytest.mark.parametrize("queries, keys, size", [(20, 33, 16), (70, 65, 16), (30, 27, 32)])
def test_thread_order_changes_no_bit(queries, keys, size, dtype):
    arrays = inputs(dtype, 1, queries, keys, 1, size)
    results = []
    for order in emulator.ORDERS:
        with emulator.thread_order(order):
            results.append([x.tobytes() for x in on_cuda(*arrays, npx.AttentionSpec(causal=True), DROP)])
    assert results[0] == results[1] == results[2]


@two_dtypes
def test_without_tensor_cores(monkeypatch, dtype):
    """The kernels use no tensor cores for float32, nor for 16-bit floats on GPUs older than sm_80."""
    monkeypatch.setattr(
        "npx.kernels.attention.launch", lambda *args, **defines: launching.launch(*args, TENSOR_CORES=0, **defines)
    )
    for keys in (33, 27):
        arrays = inputs(dtype, 1, 20, keys, 2, 24, 40)
        assert_near(dtype, in_reference(*arrays, drop=DROP), on_cuda(*arrays, drop=DROP))


BUGS = {
    "no barrier before keys are read": ("wait_for_copies();\n        __syncthreads();", "wait_for_copies();"),
    "no barrier before keys are replaced": ("first > 0 && !__syncthreads_or(bits != 0)", "false"),
    "no barrier between the gradient's halves": ("__syncthreads();  // all threads are done with the first half", ""),
    "no barrier before y overwrites values": ("__syncthreads();  // all threads are done with the values\n", ""),
    "no barrier before gq overwrites keys": ("__syncthreads();  // all threads are done with the keys\n", ""),
    "no barrier before results overwrite queries": ("__syncthreads();  // all threads are done with queries and g", ""),
    "no barrier before gv overwrites g": ("__syncthreads();  // all threads are done with g and", "//"),
    "no barrier before gk overwrites queries": ("__syncthreads();  // all threads are done with the queries", ""),
    "rows stored before they are complete": ("= pair;\n    }\n    __syncwarp();", "= pair;\n    }"),
    "no wait for copies": ("wait_for_copies();\n        __syncthreads();", "__syncthreads();"),
    "wrong rows of values": ("b.row[k + lane % 16] + n", "b.row[k + lane % 8] + n"),
    "one row too many": ("bool valid = row < rows", "bool valid = row <= rows"),
    "the wrong words of dropout": ("one_run ? position / 16 + i :", "one_run ? position / 16 + i + 1 :"),
    "sums of the wrong query": ("factor - delta[query])", "factor - delta[key])"),
    "no barrier before gq of one tile overwrites keys": (
        "__syncthreads();  // all threads are done with the keys, which",
        "//",
    ),
    "no barrier before scores overwrite gq": (
        "d_k);\n        __syncthreads();\n        store_scores",
        "d_k);\n        store_scores",
    ),
    "no barrier before values are overwritten": (
        "__syncthreads();  // all threads are done with the values, which",
        "//",
    ),
    "scores of the wrong queries": ("a.row[k + lane / 16 * 8 + lane % 8]", "a.row[k + lane % 16]"),
    "scores not dropped out": ("weight *= factor", "weight *= dropout.scale"),
}


@pytest.mark.skipif(USES_CUPY_ARRAYS, reason="what a faulty kernel does on a GPU is not defined")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_detected(bug, monkeypatch, tmp_path):
    """The emulator's checks or a wrong result reveal the bug."""
    ignored = shutil.ignore_patterns("*.py", "__pycache__")
    shutil.copytree(launching.SOURCES, tmp_path, dirs_exist_ok=True, ignore=ignored)
    right, wrong = BUGS[bug]
    source = tmp_path / "attention.cu"
    text = source.read_text()
    assert right in text
    source.write_text(text.replace(right, wrong))
    monkeypatch.setattr(launching, "SOURCES", tmp_path)
    half = np.dtype("float16")
    shapes = (30, 27, 1, 32), (33, 35, 1, 16), (70, 65, 1, 15)  # rows of 15 are stored value by value
    one_tile, short, long = (inputs(half, 1, *shape) for shape in shapes)
    with pytest.raises((emulator.EmulatorError, AssertionError)):
        assert_near(half, in_reference(*one_tile, drop=DROP), on_cuda(*one_tile, drop=DROP))
        assert_near(half, in_reference(*short, drop=DROP), on_cuda(*short, drop=DROP))
        assert_near(half, in_reference(*long), on_cuda(*long))


# Views and their alignment


@two_dtypes
@pytest.mark.parametrize("before", [0, 8, 1], ids=["aligned", "aligned to 8 values", "not aligned"])
def test_views_of_a_merged_projection_are_read_and_written_in_place(before, dtype):
    """Only the values of the views are written, not those around them."""
    g, *qkv = inputs(dtype, 2, 7, 9, 2, 16, 24)
    sizes = [x[0, 0].size for x in qkv]

    def views(fill):
        """Return merged projections filled with one number, and views of their parts."""
        merged = [npx.full((*x.shape[:2], before + n + 3), fill, dtype) for x, n in zip(qkv, sizes, strict=True)]
        slices = [m[..., before : before + n] for m, n in zip(merged, sizes, strict=True)]
        return merged, tuple(part.reshape(x.shape) for part, x in zip(slices, qkv, strict=True))

    _, parts = views(0)
    merged, out = views(7)
    for part, x in zip(parts, qkv, strict=True):
        part[...] = npx.asarray(x)
    spec = make_spec("lengths", 2, 2, 7, 9)
    expected = on_cuda(g, *qkv, spec, DROP)
    result = on_cuda(g, *parts, spec, DROP, out=out)
    assert [x.tobytes() for x in expected] == [x.tobytes() for x in result]
    for m, n, x in zip(map(npx.to_host, merged), sizes, expected[1:], strict=True):
        assert (m[..., before : before + n] == x.reshape(*x.shape[:2], n)).all()
        assert (m[..., :before] == 7).all() and (m[..., before + n :] == 7).all()


def test_arrays_of_any_memory_layout(dtype):
    arrays = inputs(dtype, 2, 7, 9, 2, 16)
    spec = make_spec("full", 2, 2, 7, 9)
    spec = spec._replace(constant_bias=np.asfortranarray(spec.constant_bias))
    out = tuple(npx.empty(x.shape[::-1], dtype).T for x in arrays[1:])
    strided = [npx.asarray(np.ascontiguousarray(x.T)).T for x in arrays]
    assert_near(dtype, in_reference(*arrays, spec), on_cuda(*strided, spec, out=out))


def test_access_is_as_wide_as_all_rows_allow():
    x = npx.zeros((4, 32), "float16")[:, :24]
    assert access_bytes(x) == 16 and access_bytes(x[:, :4]) == 8 and access_bytes(x[:, 1:9]) == 2
    assert access_bytes(x, npx.zeros((2, 6), "float32")) == 8


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("head", range(16, LARGEST_HEAD + 1, 16))
def test_tiles_fit_the_shared_memory_of_every_gpu(head, size):
    tile = tile_size(1000, 4 * size * head)
    assert tile in (16, 32, 48, 64)
    dropout_bytes = 2 * (tile // 16 + 1)
    sum_bytes = 2 * 4
    assert tile * (4 * (size * head + 16) + dropout_bytes + sum_bytes) <= SHARED_BYTES
    assert tile_size(20, 4 * size * 16) == 32 and tile_size(0, 64) == 16


def test_no_array_over_queries_and_keys_is_saved(dtype):
    q, k, v = on_device(*inputs(dtype, 2, 33, 40, 2, 16)[1:])
    with kernel_mode(MODE):
        y, saved = npx.attention(q, k, v, npx.AttentionSpec(), DROP)
    arrays = [x for x in iterate_captured_arrays(saved.values) if x.ndim]
    assert [x.shape for x in arrays] == [q.shape, k.shape, v.shape, (2, 2, 33), y.shape] and arrays[-1] is y


@pytest.mark.parametrize("keys", [33, 70])
def test_large_scores_do_not_overflow(keys):
    """With scores far apart, all probability is at one key."""
    g, q, k, v = inputs("float32", 1, 3, keys, 1, 16)
    q[...] = 1
    k[...] = 0
    k[0, 17] = 1e4
    y, _, _, gv = on_cuda(g, q, k, v)
    assert np.array_equal(y, v[:, 17:18].repeat(3, axis=1)) and np.allclose(gv[0, 17], g[0].sum(axis=0))


# Above the kernels


@pytest.mark.parametrize("drop", [None, DROP], ids=["plain", "dropout"])
@pytest.mark.parametrize("name", ["attention", "self_attention", "cross_attention"])
def test_operations_equal_their_composition(name, drop, dtype):
    rng = np.random.default_rng(2)
    shapes = {
        "attention": [(2, 7, 2, 16), (2, 9, 2, 16), (2, 9, 2, 24)],
        "self_attention": [(2, 7, 2 * (16 + 16 + 24))],
        "cross_attention": [(2, 7, 2 * 16), (2, 9, 2 * (16 + 24))],
    }[name]
    arrays = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    heads = {} if name == "attention" else {"n_heads": 2, "d_k": 16}
    spec = {"causal": True} if name == "self_attention" else {"kv_lengths": npx.asarray(np.array([1, 9]))}
    spec = npx.AttentionSpec(**spec, rotary_base=10.0)  # the composition supports no fully masked rows

    def run(operation, dtype):
        tensors = [Tensor(npx.asarray(x.astype(dtype)), requires_grad=True) for x in arrays]
        y = operation(*tensors, **heads, spec=spec, drop=drop)
        y.backward(npx.asarray(np.cos(np.arange(y.size)).reshape(y.shape).astype(dtype)))
        return [npx.to_host(x) for x in (y.data, *(t.grad for t in tensors))]

    expected = run(neural.COMPOSITIONS[name], np.dtype("float64"))
    with kernel_mode(MODE):
        result = run(getattr(neural, name), dtype)
    for e, r in zip(expected, result, strict=True):
        assert np.abs(e - r.astype("float64")).max() <= TOLERANCE[dtype.name] * np.abs(e).max()


def test_check_mode_compares_both_kernels_with_their_references():
    g, q, k, v = on_device(*inputs("float32", 2, 7, 9, 2, 16))
    with kernel_mode("check" if USES_CUPY_ARRAYS else "emulate+check"):
        _, saved = npx.attention(q, k, v, npx.AttentionSpec(), DROP)
        npx.attention_grad(g, saved)
    assert saved.reference_saved.gradient is npx.attention_grad.reference is not saved.gradient


def test_decoding_one_position_at_a_time_equals_whole_sequences():
    """Self-attention over a growing cache, and cross-attention in which three hypotheses share a source."""
    rng = np.random.default_rng(3)
    with npx.keyed(1, 0):
        self_attention = SelfAttention(32, 2).eval()
        cross_attention = CrossAttention(32, 2).eval()
    x, memory = on_device(rng.normal(size=(6, 5, 32)).astype("float32"), rng.normal(size=(2, 9, 32)).astype("float32"))
    causal = npx.AttentionSpec(causal=True)
    lengths = on_device(np.array([4, 9]), np.array([4, 4, 4, 9, 9, 9]))
    source, repeated = (npx.AttentionSpec(kv_lengths=x) for x in lengths)

    def near(y, expected):
        return np.allclose(npx.to_host(y.data), npx.to_host(expected.data), atol=1e-5)

    with no_grad():
        with kernel_mode("reference"):
            y_self = self_attention(Tensor(x), causal)
            y_cross = cross_attention(Tensor(x), Tensor(npx.repeat(memory, 3, axis=0)), repeated)
        with kernel_mode(MODE):
            self_cache = self_attention.new_cache(6, x.dtype, capacity=2)
            cross_cache = cross_attention.new_cache(Tensor(memory))
            for i in range(5):
                step = Tensor(x[:, i : i + 1])
                assert near(self_attention(step, causal, self_cache), y_self[:, i : i + 1])
                assert near(cross_attention(step, None, source, cross_cache), y_cross[:, i : i + 1])


@pytest.mark.skipif(USES_CUPY_ARRAYS, reason="uses a fake GPU")
@pytest.mark.parametrize("size", [16, LARGEST_HEAD + 8])
def test_the_host_code_works_with_cupy_arrays(size):
    """The host code runs on the strict fake of CuPy, which rejects whatever CuPy rejects."""
    dtype = np.dtype("float32")
    arrays = inputs(dtype, 2, 7, 9, 2, size)
    spec = make_spec("lengths", 2, 2, 7, 9)
    expected = in_reference(*arrays, spec, DROP)
    with device(cuda=True), kernel_mode("fast"):
        g, q, k, v = on_device(*arrays)
        for out in None, tuple(npx.empty(x.shape[::-1], dtype).T for x in arrays[1:]):
            y, saved = npx.attention(q, k, v, spec_on_device(spec), DROP)
            grads = npx.attention_grad(g, saved, out=out)
            assert_near(dtype, expected, [npx.to_host(x) for x in (y, *grads)])
