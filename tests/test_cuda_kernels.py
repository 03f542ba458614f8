"""CUDA kernels: every kernel's version for a GPU against its reference in float64, in the emulator, or on a GPU.

The calls (tests/cases/cuda.py) run once as CUDA and once by the references, on the same rounded numbers in float64.
NPX_TEST_ENGINE=cupy runs all of it on a GPU instead of the emulator.
"""

import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from autograd import Tensor, neural
from npx import cuda, emulator
from npx.kernels import cross_entropy as loss_file
from npx.kernels.dropout import keep_mask, keep_scale
from npx.precision import dtype as dtype_named
from npx.registry import KERNELS, TOLERANCE, kernel_mode
from tests.cases import check
from tests.cases.cuda import CASES, KEY, Draw

ON_GPU = os.environ.get("NPX_TEST_ENGINE") in ("cupy", "emulated")
MODE = "fast" if ON_GPU else "emulate"
pytestmark = pytest.mark.skipif(not ON_GPU and shutil.which("g++") is None, reason="the emulator needs g++; none found")

DTYPES = ("float32", "float16", "bfloat16")
ON_CUDA = [name for name, kernel in KERNELS.items() if any(engine == "cupy" for engine, _ in kernel.versions)]


@pytest.fixture(autouse=True, scope="module")
def engine():
    before = npx.device()
    npx.use_device("cuda" if ON_GPU else "cpu")
    yield
    npx.use_device(before)  # on a GPU other files follow in this process


def placed(x):
    """A copy where the kernels run."""
    return npx.asarray(np.copy(x))


def on_cuda(name, *args, **options):
    """What the kernel's version for a GPU returns; arrays of the host are moved, others are taken as they are."""
    with kernel_mode(MODE):
        return KERNELS[name](*(npx.asarray(x) if isinstance(x, np.ndarray) else x for x in args), **options)


def on_host(value):
    """The arrays of a result on the host."""
    if isinstance(value, tuple):
        return tuple(map(on_host, value))
    return npx.to_host(value) if hasattr(value, "dtype") else value


def in_reference(name, *args, **options):
    return KERNELS[name].reference(*args, **options)


def evaluate(call, run, change=placed):
    """What the call returns, each array of its arguments changed before."""
    function, *args = call

    def changed(x):
        if isinstance(x, npx.Scores):
            return npx.Scores(*map(changed, x))
        return change(x) if isinstance(x, np.ndarray) else x

    return function(run, *map(changed, args))


def wide(x):
    """On the host in float64, unless x holds integers."""
    x = npx.to_host(x)
    return x if x.dtype.kind in "bi" else x.astype("float64")


def calls(name, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="NumPy knows bfloat16 from ml_dtypes, which is not installed")
    assert name in CASES, f"kernel {name!r} has a version for a GPU and no case in tests/cases/cuda.py"
    return list(CASES[name](Draw(name, dtype_named(dtype))))


def assert_near(what, dtype, expected, result):
    """`result` near the float64 `expected`, by the tolerance of `dtype`."""
    if isinstance(expected, tuple):
        for i, (e, r) in enumerate(zip(expected, result, strict=True)):
            assert_near(f"{what}[{i}]", dtype, e, r)
    elif expected is not None and not isinstance(result, cuda.Kept):
        assert expected.shape == result.shape, what
        error, largest = np.abs(expected - wide(result)), np.abs(expected).max(initial=0)
        assert (error <= TOLERANCE[dtype] * largest).all(), f"{what}: off by {error.max()}, the largest is {largest}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_CUDA)
def test_equals_the_reference_in_float64(name, dtype):
    for i, call in enumerate(calls(name, dtype)):
        assert_near(f"{name}, case {i}", dtype, evaluate(call, in_reference, wide), evaluate(call, on_cuda))


@pytest.mark.parametrize("name", ON_CUDA)
def test_check_mode_finds_nothing(name):
    """Where the gradient's reference needs an array that the version for a GPU does not store, it is given one."""

    def checked(name, *args, **options):
        with kernel_mode("check" if ON_GPU else "emulate+check"):
            return KERNELS[name](*args, **options)

    for call in calls(name, "float32"):
        evaluate(call, checked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_CUDA)
def test_the_order_of_the_threads_changes_no_bit(name, dtype):
    """Three orders in the emulator; on a GPU, which has its own, three runs."""
    for call in calls(name, dtype):
        results = []
        for order in emulator.ORDERS:
            with emulator.thread_order(order):
                results.append(bits(evaluate(call, on_cuda)))
        assert results[0] == results[1] == results[2]


def bits(value):
    """Every bit of a result, of what is kept for the gradient too."""
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    if isinstance(value, cuda.Kept):
        return tuple(bits(part) for part in vars(value).values())
    return npx.to_host(value).tobytes() if hasattr(value, "dtype") else value


def other_layout(x):
    """The same numbers, not contiguous, for arrays of two axes and more."""
    return npx.repeat(npx.asarray(x), 2, axis=-1)[..., ::2] if x.ndim > 1 else placed(x)


@pytest.mark.parametrize("name", ON_CUDA)
def test_inputs_of_any_memory_layout(name):
    for call in calls(name, "float32"):
        assert_near(name, "float32", evaluate(call, in_reference, wide), evaluate(call, on_cuda, other_layout))


@pytest.mark.parametrize("name, dtype", [(n, d) for n in ON_CUDA for d in DTYPES if ("cupy", d) in KERNELS[n].versions])
def test_results_have_the_dtype_of_the_inputs(name, dtype):
    """But for the loss, which is float32 (a sum over a batch is beyond the range of float16), and Adam's arrays."""
    losses = {"cross_entropy": 1, "linear_cross_entropy": 1, "adam": 4}.get(name, 0)
    result = evaluate(calls(name, dtype)[0], on_cuda)
    for i, array in enumerate(result if isinstance(result, tuple) else (result,)):
        if array is not None and not isinstance(array, cuda.Kept) and array.dtype.kind != "i":
            assert array.dtype == ("float32" if i < losses else dtype_named(dtype))


@pytest.mark.parametrize("shape", [(64,), (3, 31), (5, 2, 9)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_what_the_cpu_drops(shape, rate):
    """Bit for bit, in the flat order of the array, whether a row begins at a multiple of 16 or not."""
    ones = np.ones(shape, "float32")
    expected = keep_mask(KEY, shape, rate) * np.float32(keep_scale(rate))
    y, keep = on_cuda("dropout", ones, rate, KEY)
    assert np.array_equal(on_host(y), expected)
    assert np.array_equal(on_host(on_cuda("dropout_grad", ones, rate, keep)), expected)
    rows = np.arange(np.prod(shape), dtype="float32").reshape(shape) + 1
    identity = np.ones(shape[-1], "float32"), np.zeros(shape[-1], "float32")
    dropped = on_cuda("dropout_residual_norm", rows, rows * 0, *identity, rate, KEY)[0]
    assert_near("rows", "float32", in_reference("layer_norm", rows * expected, *identity)[0].astype("float64"), dropped)


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_of_the_vocabulary_loss_change_nothing_but_rounding(dtype, monkeypatch):
    draw = Draw("chunks", dtype_named(dtype))
    x, w, targets = draw.real(200, 7), draw.real(9, 7), draw.ids(9, 200)
    whole = on_cuda("linear_cross_entropy", x, w, targets, 0.1)
    monkeypatch.setattr(loss_file, "CUDA_CHUNK", 1)  # loss_file.CUDA_ROWS rows at a time
    parts = on_cuda("linear_cross_entropy", x, w, targets, 0.1)
    assert bits(whole[:2]) == bits(parts[:2])
    assert_near("gw", dtype, wide(whole[2]), parts[2])


def test_padding_has_no_loss_and_no_gradient():
    logits, targets = np.full((2, 9), 3, "float32"), np.array([4, 0])
    loss, gz = on_host(on_cuda("cross_entropy", logits, targets))
    assert np.isclose(loss, np.log(9)) and not gz[1].any() and gz[0, 4] < 0


def test_the_largest_numbers_do_not_overflow():
    huge = np.finfo("float32").max / 4
    x = np.array([[huge, -huge, huge, 0]], "float32")
    assert np.array_equal(on_host(on_cuda("softmax", x)), np.array([[0.5, 0, 0.5, 0]], "float32"))
    loss, gradient = on_host(on_cuda("cross_entropy", x[:, :3], np.array([2])))
    assert np.isfinite(loss) and np.allclose(gradient, [[0.5, 0, -0.5]])


def test_rows_with_nothing_left_are_zeros():
    x = np.full((3, 40), -np.inf, "float32")
    x[1:], mask = 7, np.arange(40) < [[40], [0], [20]]
    expected = np.where(mask, np.array([[0], [0], [0.05]]), 0).astype("float32")
    assert np.allclose(on_host(on_cuda("softmax", x, mask)), expected)
    assert not on_host(on_cuda("softmax", x[:1])).any()


def test_nothing_is_lost_when_a_number_is_not_finite():
    """NaN comes through every kernel on the way of the loss, so that a training notices it."""
    x = np.ones((2, 33), "float32")
    x[1, 7] = np.nan
    ones = np.ones(33, "float32")
    assert np.isnan(on_host(on_cuda("layer_norm", x, ones, ones)[0])[1]).all()
    assert np.isnan(on_host(on_cuda("linear", x, np.eye(33, dtype="float32"), ones, True))[1]).any()
    assert np.isnan(on_host(on_cuda("cross_entropy", x, np.array([3, 4]))[0]))
    assert np.isnan(on_host(on_cuda("softmax", x))[1]).all()


# The operations of autograd, whole: forward and backward


def operations(d):
    rows = d.real(2, 3, 33), d.real(2, 3, 33), d.real(33), d.real(33)
    targets = d.ids(9, 2, 3)
    return {
        "softmax": ((d.real(2, 3, 33), d.bools(3, 33)), {}),
        "layer_norm": (rows[1:], {"eps": 1e-2}),
        "dropout": ((d.real(3, 33), 0.3, KEY), {}),
        "dropout_residual_norm": (rows, {"rate": 0.3, "key": KEY, "eps": 1e-2}),
        "linear": ((d.real(2, 3, 33), d.real(33, 9), d.real(9)), {"relu": True}),
        "embedding": ((d.real(9, 33), d.ids(9, 2, 5)), {"scale": 2.5}),
        "cross_entropy": ((d.real(2, 3, 9), targets), {"smoothing": 0.1}),
        "linear_cross_entropy": ((d.real(2, 3, 5), d.real(9, 5), targets), {"smoothing": 0.1}),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", operations(Draw("names", np.dtype("float32"))))
def test_gradients_of_an_operation(name, dtype):
    calls("softmax", dtype)  # skips where the dtype is not known
    draw = Draw(name, dtype_named(dtype))
    inputs, options = operations(draw)[name]

    def run(mode, dtype):
        with kernel_mode(mode):
            floats = {i for i, x in enumerate(inputs) if isinstance(x, np.ndarray) and x.dtype == draw.dtype}
            args = [npx.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs]
            args = [Tensor(x.astype(dtype), requires_grad=True) if i in floats else x for i, x in enumerate(args)]
            y = getattr(neural, name)(*args, **options)
            y.backward(npx.asarray(np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)))
            return on_host((y.data, *(args[i].grad for i in sorted(floats))))

    assert_near(name, dtype, run("reference", np.dtype("float64")), run(MODE, draw.dtype))


@pytest.mark.skipif(ON_GPU, reason="the kit draws its inputs on the host")
@pytest.mark.parametrize("name", operations(Draw("names", np.dtype("float32"))))
@settings(max_examples=15)
@given(data=st.data())
def test_an_operation_in_emulation_keeps_the_rules_of_the_kit(name, data):
    """In float64 the references run; the kit holds the results in float32, from the CUDA kernels, to those."""
    with kernel_mode(MODE):
        check(f"operation {name}", data)
