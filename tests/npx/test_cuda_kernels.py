"""The CUDA version of every kernel against its reference in float64.

Each call (the edge cases of tests/cases/kernels.py) runs as CUDA and, with the same rounded inputs, as the reference in
float64. It runs in the emulator, or on a GPU with NPX_TEST_ENGINE=cupy.
"""

import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npx
from autograd import Tensor, neural
from npx.dispatch import KERNELS, TOLERANCE, kernel_mode, map_arrays
from npx.precision import dtype_named
from npx.testing.cuda_emulator import emulator
from tests.cases import Call, check
from tests.cases.kernels import KERNEL_CASES, KEY, Edges, edge_calls
from tests.fakes.strict_cuda import CUBLAS
from tests.fakes.strict_cupy import device

# "cupy" runs the kernels on a GPU; "emulated" runs them in the emulator, on arrays of the fake CuPy.
USES_CUPY_ARRAYS = os.environ.get("NPX_TEST_ENGINE") in ("cupy", "emulated")
MODE = "fast" if USES_CUPY_ARRAYS else "emulate"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not USES_CUPY_ARRAYS and shutil.which("g++") is None, reason="the emulator needs g++"),
]

DTYPES = ("float32", "float16", "bfloat16")
ON_CUDA = [name for name, kernel in KERNELS.items() if any(library == "cupy" for library, _ in kernel.versions)]


@pytest.fixture(autouse=True, scope="module")
def engine():
    previous = npx.device()
    npx.use_device("cuda" if USES_CUPY_ARRAYS else "cpu")
    yield
    npx.use_device(previous)  # other test files follow in this process


def calls(name, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes, which is not installed")
    assert name in KERNEL_CASES, f"kernel {name!r} has a CUDA version but no case in tests/cases/kernels.py"
    supports_decode_step = ("cupy", dtype) in KERNELS[
        name
    ].versions or name == "adam"  # adam writes a copy in any dtype
    return list(edge_calls(name, dtype_named(dtype))) if supports_decode_step else []


def copied_to_device(x):
    """Return a copy on the device that runs the kernels."""
    return npx.asarray(np.copy(npx.to_host(x)))


def wide(x):
    """Return a copy on the device, in float64 unless x holds integers."""
    x = np.copy(npx.to_host(x))
    return npx.asarray(x if x.dtype.kind in "bi" else x.astype("float64"))


def evaluate(name, call, mode, change=copied_to_device):
    """Return (y, gradients, arrays written to) of a call and what it saved, on the host.

    `change` is applied to each input array first.
    """
    kernel = KERNELS[name]
    args, options, gradient_options = map_arrays(change, (call.inputs, call.options, call.gradient_options))
    with kernel_mode(mode):
        result = kernel(*args, **options)
        if kernel.grad is None:
            return on_host((result, (args, options))), None
        y, saved = result
        if saved.values is None:
            return on_host(y), None
        saved_values = on_host(saved.values)  # copied, because a gradient may overwrite it
        g = np.cos(np.arange(y.size)).reshape(y.shape).astype(call.inputs[0].dtype)  # the same rounded values for both
        return on_host((y, kernel.grad(change(g).astype(y.dtype), saved, **gradient_options))), saved_values


def on_host(value):
    """Return a value with copies of its arrays on the host."""
    return map_arrays(lambda x: np.copy(npx.to_host(x)), value)


def on_cuda(name, *args, **options):
    """Run the CUDA version of a kernel on host arrays."""
    with kernel_mode(MODE):
        return KERNELS[name](*(npx.asarray(x) if isinstance(x, np.ndarray) else x for x in args), **options)


def assert_near(what, dtype, expected, result):
    """Compare `result` with the float64 `expected`, with the tolerance of `dtype`."""
    if isinstance(expected, (tuple, dict)):
        for i in expected if isinstance(expected, dict) else range(len(expected)):
            assert_near(f"{what}[{i}]", dtype, expected[i], result[i])
    elif isinstance(expected, np.ndarray):
        assert expected.shape == result.shape, what
        finite = np.isfinite(expected)
        assert np.array_equal(expected[~finite], result[~finite]), what
        error = np.abs(expected[finite] - result[finite].astype("float64"))
        largest = np.abs(expected[finite]).max(initial=0)
        assert (error <= TOLERANCE[dtype] * largest).all(), f"{what}: off by {error.max()}, the largest is {largest}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_CUDA)
def test_equals_the_reference_in_float64(name, dtype):
    for i, call in enumerate(calls(name, dtype)):
        expected, _ = evaluate(name, call, "reference", wide)
        assert_near(f"{name}, case {i}", dtype, expected, evaluate(name, call, MODE)[0])


@pytest.mark.parametrize("name", ON_CUDA)
def test_check_mode_passes(name):
    """Forward and gradient are compared; each version of the gradient gets what its own forward version saved."""
    for call in calls(name, "float32"):
        evaluate(name, call, "check" if USES_CUPY_ARRAYS else "emulate+check")


@pytest.mark.parametrize(
    "dtype", DTYPES if USES_CUPY_ARRAYS else DTYPES[:2]
)  # the order depends on indices, not on dtypes
@pytest.mark.parametrize("name", ON_CUDA)
def test_thread_order_changes_no_bit(name, dtype):
    """The results of three orders in the emulator, or of three runs on a GPU, are equal bit for bit."""
    for call in calls(name, dtype):
        results = []
        for order in emulator.ORDERS:
            with emulator.thread_order(order):
                results.append(bits(evaluate(name, call, MODE)))
        assert results[0] == results[1] == results[2]


def bits(value):
    """Return all bytes of a result, including what is saved for the gradient."""
    if isinstance(value, (tuple, dict)):
        return tuple(map(bits, value.values() if isinstance(value, dict) else value))
    return npx.to_host(value).tobytes() if hasattr(value, "dtype") else value


def other_layout(x):
    """Return the same values in a layout that is not contiguous, for arrays with two or more axes."""
    return npx.repeat(npx.asarray(np.asarray(x)), 2, axis=-1)[..., ::2] if x.ndim > 1 else copied_to_device(x)


@pytest.mark.parametrize("name", ON_CUDA)
def test_inputs_of_any_memory_layout(name):
    for call in calls(name, "float32"):
        expected, _ = evaluate(name, call, "reference", wide)
        assert_near(name, "float32", expected, evaluate(name, call, MODE, other_layout)[0])


@pytest.mark.parametrize("name, dtype", [(n, d) for n in ON_CUDA for d in DTYPES if ("cupy", d) in KERNELS[n].versions])
def test_results_have_the_dtype_of_the_inputs(name, dtype):
    """Exceptions are the loss, which is float32 because a batch's sum exceeds float16's range, and Adam's arrays."""
    result, _ = evaluate(name, calls(name, dtype)[0], MODE)
    if name != "adam":
        loss = name.endswith("cross_entropy")
        y, gradients = result if KERNELS[name].grad else (result[0], ())
        outputs = y if isinstance(y, tuple) else (y,)
        assert {x.dtype.name for x in outputs if x.dtype.kind != "i"} == {"float32" if loss else dtype}
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        assert {x.dtype.name for x in gradients if x is not None} <= {dtype}


@pytest.mark.parametrize("shape", [(64,), (3, 31), (5, 2, 9)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_dropout_mask_equals_that_of_the_cpu(shape, rate):
    """The masks are equal bit for bit in the flat order of the array, wherever a row begins."""
    ones = np.ones(shape, "float32")
    drop = npx.DropoutSpec(rate, KEY)
    expected = drop.keep_mask(shape) * np.float32(drop.scale)
    y, saved = on_cuda("dropout", ones, drop)
    assert np.array_equal(on_host(y), expected)
    assert np.array_equal(on_host(npx.dropout_grad(npx.asarray(ones), saved)), expected)
    rows = np.arange(np.prod(shape), dtype="float32").reshape(shape) + 1
    identity = np.ones(shape[-1], "float32"), np.zeros(shape[-1], "float32")
    dropped = on_cuda("dropout_residual_norm", rows, rows * 0, *identity, drop)[0]
    expected_norm = npx.layer_norm.reference(rows * expected, *identity)[0].astype("float64")
    assert_near("rows", "float32", expected_norm, on_host(dropped))


def loss_and_gradients(x, w, targets):
    loss, saved = on_cuda("linear_cross_entropy", x, w, targets, npx.LabelSmoothing(0.1))
    return on_host((loss, *npx.linear_cross_entropy_grad(npx.ones((), loss.dtype), saved)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ON_CUDA)
def test_small_blocks_change_nothing_but_rounding(name, dtype):
    """Vary the chunks of the vocabulary loss, slices of summed rows, blocks of partial sums and columns of top k."""
    for i, call in enumerate(calls(name, dtype)):
        if max(x.size for x in call.inputs if isinstance(x, np.ndarray)) <= 2000:
            expected, _ = evaluate(name, call, "reference", wide)
            with npx.small_blocks(2, threads=1):
                assert_near(f"{name}, case {i}", dtype, expected, evaluate(name, call, MODE)[0])


@pytest.mark.skipif(USES_CUPY_ARRAYS, reason="reads the arguments from the fake cuBLAS")
@pytest.mark.parametrize("classes", [37, 64, 97])
def test_rows_of_logits_are_aligned_for_cublas(classes):
    """A vocabulary often has an odd size; without padding every other row would be aligned to only 2 bytes."""
    pytest.importorskip("ml_dtypes", reason="bfloat16 needs ml_dtypes, which is not installed")
    draw = Edges("rows", dtype_named("bfloat16"), [])
    x, w, targets = draw.values(5, 8), draw.values(classes, 8), draw.ids(classes, 5)
    expected = evaluate("linear_cross_entropy", Call((x, w, targets, npx.LabelSmoothing(0.1))), "reference", wide)[0]
    with device(cuda=True):
        assert_near("gx, gw", "bfloat16", expected[1], loss_and_gradients(x, w, targets)[1:])
        columns = -(-classes // 64) * 64
        assert [(*call[:3], *call[4]) for call in CUBLAS.calls] == [
            (5, classes, 8, 8, 8, columns), (5, 8, classes, columns, 8, 8), (classes, 8, 5, columns, 8, 8)
        ]  # fmt: skip


def loss_and_gradient(logits, targets):
    loss, saved = on_cuda("cross_entropy", logits, targets)
    return on_host((loss, npx.cross_entropy_grad(npx.ones(()), saved)))


def test_padding_has_no_loss_and_no_gradient():
    logits = np.full((2, 9), 3, "float32")
    targets = np.array([4, 0])
    loss, gz = loss_and_gradient(logits, targets)
    assert np.isclose(loss, np.log(9)) and not gz[1].any() and gz[0, 4] < 0


def test_the_largest_numbers_do_not_overflow():
    huge = np.finfo("float32").max / 4
    x = np.array([[huge, -huge, huge, 0]], "float32")
    assert np.array_equal(on_host(on_cuda("softmax", x)[0]), np.array([[0.5, 0, 0.5, 0]], "float32"))
    loss, gradient = loss_and_gradient(x[:, :3], np.array([2]))
    assert np.isfinite(loss) and np.allclose(gradient, [[0.5, 0, -0.5]])


def test_fully_masked_rows_are_zeros():
    x = np.full((3, 40), -np.inf, "float32")
    x[1:] = 7
    mask = np.arange(40) < [[40], [0], [20]]
    expected = np.where(mask, np.array([[0], [0], [0.05]]), 0).astype("float32")
    assert np.allclose(on_host(on_cuda("softmax", x, mask)[0]), expected)
    assert not on_host(on_cuda("softmax", x[:1])[0]).any()


def test_nan_propagates_through_every_kernel():
    """A training run then detects the NaN in the loss."""
    x = np.ones((2, 33), "float32")
    x[1, 7] = np.nan
    ones = np.ones(33, "float32")
    assert np.isnan(on_host(on_cuda("layer_norm", x, ones, ones)[0])[1]).all()
    assert np.isnan(on_host(on_cuda("linear", x, np.eye(33, dtype="float32"), ones, "relu")[0])[1]).any()
    assert np.isnan(on_host(on_cuda("cross_entropy", x, np.array([3, 4]))[0]))
    assert np.isnan(on_host(on_cuda("softmax", x)[0])[1]).all()


# Operations of autograd, forward and backward


def operations(d):
    rows = d.values(2, 3, 33), d.values(2, 3, 33), d.values(33), d.values(33)
    targets = d.ids(9, 2, 3)
    return {
        "softmax": ((d.values(2, 3, 33), d.masks(3, 33)), {}),
        "layer_norm": (rows[1:], {"eps": 1e-2}),
        "dropout": ((d.values(3, 33), npx.DropoutSpec(0.3, KEY)), {}),
        "dropout_residual_norm": (rows, {"drop": npx.DropoutSpec(0.3, KEY), "eps": 1e-2}),
        "linear": ((d.values(2, 3, 33), d.values(33, 9), d.values(9)), {"activation": "relu"}),
        "embedding": ((d.values(9, 33), d.ids(9, 2, 5)), {"scale": 2.5}),
        "cross_entropy": ((d.values(2, 3, 9), targets), {"smoothing": npx.LabelSmoothing(0.1)}),
        "linear_cross_entropy": ((d.values(2, 3, 5), d.values(9, 5), targets), {"smoothing": npx.LabelSmoothing(0.1)}),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", operations(Edges("names", "float32", [])))
def test_gradients_of_an_operation(name, dtype):
    calls("softmax", dtype)  # skips if the dtype is unavailable
    draw = Edges(name, dtype_named(dtype), [])
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


@pytest.mark.skipif(USES_CUPY_ARRAYS, reason="the gradient checker generates its inputs on the host")
@pytest.mark.parametrize("name", operations(Edges("names", "float32", [])))
@settings(max_examples=5)
@given(data=st.data())
def test_an_emulated_operation_passes_the_gradient_checker(name, data):
    """The checker compares float32 results of the CUDA kernels with float64 results of the references."""
    with kernel_mode(MODE):
        check(f"operation {name}", data)


@pytest.mark.skipif(USES_CUPY_ARRAYS, reason="needs the fake GPU")
def test_large_rows_of_logits_raise_the_limit_of_shared_memory():
    """Rows of about 48 KiB need it because of the kernel's static shared memory; smaller rows do not lower it again."""
    targets = np.ones(1, "int64")
    with device(cuda=True):
        for classes in (12288, 15000, 13000, 15000):
            loss, saved = on_cuda("cross_entropy", np.zeros((1, classes), "float32"), targets)
            assert np.isclose(on_host(loss), np.log(classes))
