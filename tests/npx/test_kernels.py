"""Kernels (npx/kernels): every fast version equals its reference for all shapes, memory layouts and thread counts.

The tests run over the registry with the cases of tests/cases/kernels.py; a kernel without a case fails.
"""

import importlib
import inspect
import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from models import FlatParameters, Transformer, TransformerConfig
from npx import dispatch
from npx.cpu import row_blocks
from npx.dispatch import KERNELS, KernelMismatch, compare, copy_arrays, kernel_mode
from tests import ROOT
from tests.cases.kernels import KERNEL_CASES, Hypothesis, Large

DTYPES = ("float32", "float64")
WRITTEN = {
    "lstm": ("state",),
    "gru": ("state",),
    "adam": ("p", "m", "v", "p_compute"),
}  # arguments that a kernel writes in place


def draw_call(name, dtype, data):
    """Draw a small call to a kernel in one dtype. Raises AssertionError if the kernel has no case."""
    assert name in KERNEL_CASES, f"kernel {name!r} has no case in tests/cases/kernels.py"
    return KERNEL_CASES[name](Hypothesis(data.draw, dtype))


def run(name, call):
    """Return the results of a kernel and its gradient, and the arrays that they write in place.

    Checks that they do not change the other arguments or the gradient of the output.
    """
    kernel = KERNELS[name]
    written = WRITTEN.get(name, ())
    given = dict(zip(inspect.signature(kernel.reference).parameters, call.inputs, strict=False)) | call.options
    given = {key: copy_arrays(value) if key in written else value for key, value in given.items()}
    before = copy_arrays({key: value for key, value in given.items() if key not in written})
    first, *others = given  # the first argument, which selects the version, is positional
    result = kernel(given[first], **{key: given[key] for key in others})
    compare(f"{name}, arguments after the call", before, given)
    arrays = tuple(given[key] for key in written if key in given)
    if kernel.grad is None:
        return result, arrays
    y, saved = result
    if saved.values is None:
        return y
    g = np.asarray(np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype))
    y = y.copy()
    g_before = g.copy()
    gradient_options = copy_arrays(call.gradient_options)
    gradients = kernel.grad(g, saved, **gradient_options)
    compare(f"{name}, gradient of the output after the call", g_before, g)
    return y, gradients, (*gradient_options.values(), *arrays)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
@given(data=st.data())
def test_fast_version_equals_reference(name, dtype, data):
    call = draw_call(name, dtype, data)
    with kernel_mode("reference"):
        expected = run(name, call)
    with kernel_mode("fast"):
        compare(name, expected, run(name, call))


@pytest.mark.parametrize("mode", ["fast", "reference", "check"])
@pytest.mark.parametrize("name", KERNELS)
@given(data=st.data())
def test_kernels_reject_integers(name, mode, data):
    call = draw_call(name, "float64", data)
    first, *others = call.inputs
    message = f"^{name}: expected a floating-point dtype; got int64; try .astype"
    with kernel_mode(mode), pytest.raises(ValueError, match=message):
        KERNELS[name](first.astype("int64"), *others, **call.options)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_and_its_gradient_have_the_same_versions(name):
    """Only the gradient's version for the same key can use what a forward version saves."""
    kernel = KERNELS[name]
    assert kernel.grad is None or kernel.grad.versions.keys() == kernel.versions.keys()
    assert kernel.grad is None or (kernel.grad.name == f"{name}_grad" and getattr(npx, f"{name}_grad") is kernel.grad)
    assert getattr(npx, name) is kernel


@pytest.mark.parametrize("name", KERNELS)
@given(data=st.data())
def test_number_of_threads_changes_no_bit(name, data):
    call = draw_call(name, "float32", data)
    size = data.draw(st.integers(1, 3))
    results = []
    for threads in (1, 3):
        with npx.small_blocks(size, threads):
            results.append(run(name, call))
    assert_same_bits(*results)


def assert_same_bits(a, b):
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same_bits(x, y)
    elif a is not None:
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize(
    "name", [name for name in KERNELS if name not in ("embedding", "log_softmax_top_k")]
)  # single-threaded
def test_large_arrays_run_on_several_threads_with_equal_bits(name, monkeypatch):
    workers = set()
    make_offers = row_blocks.make_offers
    started = threading.Semaphore(0)

    def make_and_await(work, n):
        offers = make_offers(lambda: (workers.add(threading.get_ident()), started.release(), work()), n)
        for _ in offers:
            assert started.acquire(timeout=60)
        return offers

    monkeypatch.setattr(row_blocks, "make_offers", make_and_await)
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("NPX_THREADS", threads)
        results.append(run(name, KERNEL_CASES[name](Large())))  # 2 MiB
        assert bool(workers) == (threads == "3")
    assert_same_bits(*results)


@pytest.mark.parametrize("is_configured", [True, False])
def test_gemms_are_split_only_if_blas_is_limited_to_one_thread(is_configured, monkeypatch):
    shapes = []
    matmul = np.matmul

    def recording_matmul(a, b, out=None):
        shapes.append(a.shape)
        return matmul(a, b, out=out)

    monkeypatch.setattr(np, "matmul", recording_matmul)
    monkeypatch.setattr(importlib.import_module("npx.cpu.tune"), "_is_configured", is_configured)
    monkeypatch.setenv("NPX_THREADS", "2")
    x, w = np.ones((600, 50), "float32"), np.ones((50, 400), "float32")  # 24 MFLOP
    y, saved = npx.linear(x, w, w[0])
    assert (shapes == [(600, 50)]) == (not is_configured)
    npx.linear_grad(y, saved)
    npx.linear_cross_entropy(x, np.ones((70, 50), "float32"), np.arange(600) % 70)
    assert (len(shapes) in (5, 6)) == (not is_configured) and np.array_equal(y, x @ w + w[0])


IMPORT = """
import os, signal, threading, numpy, threadpoolctl
def process():
    blas = [x["num_threads"] for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]
    return blas, dict(os.environ), threading.active_count(), numpy.geterr(), signal.getsignal(signal.SIGINT)
before = process()
import npx, autograd.testing, models, models.search, train, train.cli.main
from train.cli.main import COMMANDS, load_commands
load_commands(*COMMANDS)
print(process() == before, npx.is_configured())
npx.configure_process()
print({*process()[0]} <= {1} if npx.is_configured() else process()[0] == before[0], npx.is_configured())
"""


@pytest.mark.parametrize("setting", ["1", "0"])
def test_importing_leaves_the_process_unchanged_and_configuring_changes_it(setting):
    """Use a new process, because this one is already configured."""
    environment = os.environ | {"NPX_TUNE": setting, "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False", "True", str(setting == "1")], done.stderr


def test_the_testing_packages_are_imported_only_when_used():
    code = "import sys, npx, autograd, models, train.cli; print([m for m in sys.modules if '.testing' in m]); "
    code += "print(autograd.gradcheck is autograd.testing.gradcheck, {'gradcheck', 'testing'} <= {*dir(autograd)})"
    output = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert output.splitlines() == ["[]", "True True"]


# Results


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fully_masked_rows_are_zeros(mode, dtype):
    x = np.full((2, 3, 4), 7, dtype)
    mask = np.zeros((2, 1, 4), bool)
    mask[1] = True
    with kernel_mode(mode):
        y, _ = npx.softmax(x, mask)
        assert not y[0].any() and np.allclose(y[1], 0.25)
        q = np.ones((2, 3, 1, 4), dtype)
        spec = npx.AttentionSpec(constant_bias=npx.mask_bias(mask[:, None, :, :3]))
        out, saved = npx.attention(q, q, q, spec)
        p = npx.attention_weights(q, q, spec)
        assert not out[0].any() and not p[0].any() and np.allclose(out[1], 1)
        for gradient in npx.attention_grad(np.ones_like(out), saved):
            assert np.isfinite(gradient).all() and not gradient[0].any()


@given(rows=st.integers(1, 3), d=st.integers(1, 800), value=st.integers(-(2**13), 2**13), dtype=st.sampled_from(DTYPES))
def test_a_norm_maps_a_constant_row_to_zero(rows, d, value, dtype):
    """The sums of such rows are exact."""
    x, one = np.full((rows, d), value, dtype), np.ones(d, dtype)
    for mode in ("fast", "reference"):
        with kernel_mode(mode):
            assert not npx.layer_norm(x, one, np.zeros(d, dtype))[0].any()


@given(d=st.integers(8, 300), scale=st.sampled_from([1.0, 300.0, 1e4]), seed=st.integers(0, 9))
def test_the_norm_of_float16_is_computed_in_float32(d, scale, seed):
    rng = np.random.default_rng(seed)
    x, g = ((rng.standard_normal((40, d)) * size).astype("float16") for size in (scale, 30))
    gamma, beta = (rng.standard_normal(d).astype("float16") for _ in range(2))
    y, saved = npx.layer_norm(x, gamma, beta)
    gradients = npx.layer_norm_grad(g, saved)
    y32, saved = npx.layer_norm(*(a.astype("float32") for a in (x, gamma, beta)))
    for a, b in zip((y, *gradients), (y32, *npx.layer_norm_grad(g.astype("float32"), saved)), strict=True):
        assert a.dtype == "float16"
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3 * np.abs(b).max())


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_do_not_overflow(mode, dtype):
    huge = np.finfo(dtype).max / 4
    x = np.array([[huge, -huge, huge, 0]], dtype)
    with kernel_mode(mode):
        assert np.array_equal(npx.softmax(x)[0], np.array([[0.5, 0, 0.5, 0]], dtype))
        loss, saved = npx.cross_entropy(x[:, :3], np.array([2]))
        gradient = npx.cross_entropy_grad(np.ones((), dtype), saved)
        assert np.isfinite(loss) and np.allclose(gradient, [[0.5, 0, -0.5]])


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_dropout_keeps_the_right_fraction_and_the_mean(mode):
    x = np.ones((500, 400), "float32")
    for rate in (0.1, 0.5):
        with kernel_mode(mode):
            y, saved = npx.dropout(x, npx.DropoutSpec(rate, npx.Key(1, 2, 3)))
            keep = npx.dropout_grad(x, saved) > 0
        assert np.array_equal(y > 0, keep)
        assert abs(keep.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / x.size) ** 0.5
        assert abs(y.mean() - 1) < 0.02 and len(np.unique(y)) == 2


# Dispatch


def make_kernel(monkeypatch, reference, *versions):
    """Return a kernel with a reference and fast versions for NumPy float32, in a temporary registry."""
    monkeypatch.setattr(dispatch, "KERNELS", npx.registry.Registry("kernel"))
    kernel = dispatch.kernel(reference)
    for version in versions:
        kernel.fast("numpy", "float32")(version)
    return kernel


WRONG = {
    "value": lambda x, out: (x * 2.001, None),
    "nan": lambda x, out: (x * np.float32("nan"), None),
    "dtype": lambda x, out: (x.astype("float64") * 2, None),
    "shape": lambda x, out: (x[None] * 2, None),
    "none": lambda x, out: (None, None),
    "more": lambda x, out: (x * 2, x),
    "argument": lambda x, out: (x * 2, out.fill(1)),
}


@pytest.mark.parametrize("bug", WRONG)
@pytest.mark.parametrize("size", [1, 3])
def test_check_mode_catches_a_wrong_fast_version(bug, size, monkeypatch):
    def double(x, out):
        return x * 2, None

    kernel = make_kernel(monkeypatch, double, WRONG[bug])
    x = np.ones(size, "float32")
    with kernel_mode("check"), pytest.raises(KernelMismatch, match="double"):
        kernel(x, np.zeros(2))
    with kernel_mode("check"), pytest.raises(KernelMismatch, match="double"):
        kernel(x, out=np.zeros(2))
    with kernel_mode("reference"):
        assert np.array_equal(kernel(x, np.zeros(2))[0], x * 2)


def test_check_mode_accepts_a_correct_version_and_runs_both(monkeypatch):
    ran = []

    def double(x):
        ran.append("reference")
        return x * 2

    kernel = make_kernel(monkeypatch, double, lambda x: (ran.append("fast"), x + x)[1])
    for mode, expected in (("fast", ["fast"]), ("reference", ["reference"]), ("check", ["reference", "fast"])):
        ran.clear()
        with kernel_mode(mode):
            assert kernel(np.ones(3, "float32")).sum() == 6
        assert ran == expected
    ran.clear()
    kernel(np.ones(3, "float16"))
    assert ran == ["reference"], "a dtype without a fast version falls back to the reference"


@pytest.mark.parametrize("bug", WRONG)
def test_check_mode_catches_a_wrong_gradient(bug, monkeypatch):
    """The gradient's version is compared with its reference, whatever each forward version saved."""
    kernel = make_kernel(monkeypatch, lambda_named("double", lambda x: (x * 2, "nothing")), lambda x: (x + x, x))

    @kernel.define_gradient
    def double_grad(g, _, out=None):
        return g * 2, None

    double_grad.fast("numpy", "float32")(lambda g, x, out: WRONG[bug](g, out))
    x = np.ones(3, "float32")
    with kernel_mode("check"):
        y, saved = kernel(x)
        with pytest.raises(KernelMismatch, match="double_grad"):
            double_grad(x, saved, out=np.zeros(2))
    y, saved = kernel(x)
    assert saved.reference_saved is None and np.array_equal(y, x * 2)
    with kernel_mode("reference"):
        assert np.array_equal(double_grad(x, kernel(x)[1])[0], x * 2)


def test_a_gradient_always_gets_what_its_own_version_saved(monkeypatch):
    """The mode may change between forward and backward."""
    double = lambda_named("double", lambda x: (x * 2, "reference"))
    kernel = make_kernel(monkeypatch, double, lambda x: (x + x, ("fast", 1)))
    grad = kernel.define_gradient(lambda_named("double_grad", lambda g, saved: saved))
    grad.fast("numpy", "float32")(lambda g, name, one: name)
    x = np.ones(3, "float32")
    for mode, other in (("fast", "reference"), ("reference", "fast")):
        with kernel_mode(mode):
            _, saved = kernel(x)
        with kernel_mode(other):
            assert grad(x, saved) == mode


def lambda_named(name, function):
    function.__name__ = name
    return function


def test_kernel_names_are_unique_and_modes_are_checked(monkeypatch):
    def double(x):
        return x

    kernel = make_kernel(monkeypatch, double)
    assert dispatch.KERNELS == {"double": kernel}
    with pytest.raises(ValueError, match="already registered"):
        dispatch.kernel(double)
    known = "expected one of fast, reference, check, emulate, .* got 'quick'"
    with pytest.raises(ValueError, match=known), kernel_mode("quick"):
        pass


PLANT = """
import numpy as np, npx
npx.softmax.fast("numpy", "float32")(lambda x, mask=None: (x, x))
try:
    print(npx.softmax(np.zeros((2, 4), "float32"))[0][0, 0])
except npx.KernelMismatch as error:
    print("KernelMismatch")
"""


@pytest.mark.parametrize(
    "mode, seen", [("check", "KernelMismatch"), ("fast", "0.0"), ("reference", "0.25"), ("quick", "expected one of")]
)
def test_the_environment_selects_the_mode(mode, seen):
    process = subprocess.run(
        [sys.executable, "-c", PLANT],
        cwd=ROOT,
        env=os.environ | {"NPX_KERNELS": mode},
        capture_output=True,
        text=True,
    )
    assert seen in process.stdout + process.stderr
    assert (process.returncode == 0) == (mode != "quick")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_training_step_is_the_same_in_every_mode(dtype):
    config = TransformerConfig(
        13, d_model=8, d_ff=12, n_heads=2, n_layers=2, dropout=0.2, attention_dropout=0.1, activation_dropout=0.1
    )
    rng = np.random.default_rng(0)
    src, tgt = rng.integers(3, 13, (4, 6)), rng.integers(3, 13, (4, 5))
    src[1, 4:] = tgt[2, 3:] = 0
    tgt[:, 0] = 1
    results = {}
    for mode in ("reference", "fast", "check"):
        with kernel_mode(mode):
            model = Transformer(config, seed=1, dtype=dtype)
            flat = FlatParameters(model)
            with npx.keyed(3, 4):
                loss = model.loss(src, tgt)
            loss.backward()
            gradient = flat.flatten_grad().copy()
            m, v = np.zeros_like(flat.data), np.zeros_like(flat.data)
            npx.adam(flat.data, flat.flatten_grad(), m, v, npx.adam_coefficients(1, 0.01, eps=1e-3))
            results[mode] = loss.data, gradient, flat.data, m, v
    compare("training step", results["reference"], results["fast"])
    assert_same_bits(results["fast"], results["check"])


SIZES = st.sampled_from([0.0, -1e-30, 1e-12, -1e-3, 0.3, 1.0, -40.0, 1e6])


@given(gamma=st.lists(SIZES, min_size=1, max_size=6), data=st.data(), dtype=st.sampled_from(["float32", "float64"]))
def test_a_norm_recovers_its_rows_from_its_output_for_any_gain_and_bias(gamma, data, dtype):
    """Only y is saved for a column, unless a small gamma, or a beta much larger than gamma, makes xhat inaccurate."""
    beta = data.draw(st.lists(SIZES, min_size=len(gamma), max_size=len(gamma)))
    x, g = np.random.default_rng(0).normal(size=(2, 5, len(gamma))).astype(dtype)
    gamma, beta = np.array(gamma, dtype), np.array(beta, dtype)
    y, saved = npx.layer_norm(x, gamma, beta, 1e-2)
    gx, ggamma, _ = npx.layer_norm_grad(g, saved)
    wide = [a.astype("float64") for a in (x, gamma, beta)]
    expected = npx.layer_norm_grad.reference(g.astype("float64"), *npx.layer_norm.reference(*wide, 1e-2)[1])
    near = 30 * np.finfo(dtype).eps
    for result, exact in zip((gx, ggamma), expected, strict=False):
        assert np.abs(result - exact).max() <= near * np.abs(exact).max(initial=1e-30 + np.abs(gamma).max())
    recoverable = (4 * np.abs(gamma) >= np.abs(beta)) & (np.abs(gamma) > 1e-18 if dtype == "float32" else gamma != 0)
    assert saved.values[3][1].shape == (5, sum(~recoverable))


def test_a_device_key_is_not_copied():
    device_key = npx.random.DeviceKey(1, 2, 3, np.zeros(2, np.uint64))
    x = np.ones(3)
    drop = npx.DropoutSpec(0.5, device_key)
    copies = copy_arrays((x, {"drop": drop}))
    assert copies[0] is not x and copies[1]["drop"] is drop
    with kernel_mode("check"), pytest.raises(RuntimeError, match="only the device knows the step"):
        npx.dropout(x, drop)


@pytest.mark.parametrize("mode", ["fast", "reference", "check"])
@pytest.mark.parametrize("rate", [1.5, -1, math.nan])
def test_an_invalid_dropout_rate_is_an_error(mode, rate):
    x = np.ones((2, 3))
    drop = npx.DropoutSpec(rate, npx.Key(1, 2, 3))
    calls = (lambda: npx.dropout(x, drop), lambda: npx.dropout_residual_norm(x, x, x[0], x[0], drop))
    for call in calls:
        with kernel_mode(mode), pytest.raises(ValueError, match="DropoutSpec: expected a rate from 0 to 1; got"):
            call()
