"""Kernels (npx/kernels): every fast version equals its reference, whatever the shape, the memory layout, the threads.

The cases are drawn from the registry: a kernel without an entry in CASES fails by its name.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npx
from models import FlatParameters, Transformer, TransformerConfig
from npx import parallel, registry
from npx.registry import KERNELS, KernelMismatch, compare, kernel_mode

DTYPES = ("float32", "float64")
OVER = ("all", "others", "others_without_pad")
WRITTEN = {"adam": ("p", "m", "v", "low"), "attention_grad": ("out",)}  # arguments that a kernel writes to


class Draw:
    """Draws the arguments of one call: sizes and memory layouts by hypothesis, values by a seeded generator."""

    def __init__(self, data, dtype):
        self.data, self.dtype = data, np.dtype(dtype)
        self.rng = np.random.default_rng(self.any(st.integers(0, 2**32)))

    def any(self, strategy):
        return self.data.draw(strategy)

    def size(self, least=0, most=5):
        return self.any(st.integers(least, most))

    def shape(self, *last):
        """0 to 3 leading axes, some of them perhaps empty, then `last`."""
        return (*self.any(st.lists(st.integers(0, 5), max_size=3)), *last)

    def values(self, *shape, scale=1.0):
        return self.laid_out((self.rng.normal(size=shape) * scale).astype(self.dtype))

    def bools(self, *shape, share=0.6):
        return self.laid_out(self.rng.random(shape) < share)

    def ids(self, rows, *shape):
        """Integers below `rows`, often repeated."""
        return self.laid_out(self.rng.integers(0, rows, shape).astype(self.any(st.sampled_from(["int32", "int64"]))))

    def laid_out(self, x):
        """x in some memory layout, read-only: a kernel that writes to its input raises ValueError."""
        layout = self.any(st.sampled_from(["plain", "plain", "transposed", "strided", "offset"]))
        if layout == "transposed":
            x = np.asarray(x, order="F")
        elif layout == "strided" and x.ndim:
            x = np.repeat(x, 2, axis=-1)[..., ::2]
        elif layout == "offset" and x.ndim:
            x = np.concatenate([x[..., :1], x], axis=-1)[..., min(1, x.shape[-1]) :]
        x.flags.writeable = False
        return x

    def written(self, *shape):
        return self.rng.normal(size=shape).astype(self.dtype)

    def rate(self):
        return self.any(st.sampled_from([0.1, 0.3, 0.5, 0.9]))

    def key(self, optional=False):
        keys = st.builds(npx.Key, st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 1000))
        return self.any(st.none() | keys if optional else keys)

    def scale(self):
        return self.any(st.sampled_from([1.0, 1e-3, 1e4]))


def softmax(d):
    shape = d.shape(d.size())
    mask_shape = tuple(1 if d.any(st.booleans()) else n for n in shape)[d.any(st.integers(0, len(shape) - 1)) :]
    return {"x": d.values(*shape, scale=d.scale()), "mask": d.any(st.sampled_from([None, d.bools(*mask_shape)]))}


def softmax_grad(d):
    shape = d.shape(d.size(1))
    return {"g": d.values(*shape, scale=d.scale()), "y": npx.softmax.reference(d.values(*shape))}


def layer_norm(d):
    size = d.size(2, 9)
    scale = d.any(st.sampled_from([1.0, 1e4]))
    return {"x": d.values(*d.shape(size), scale=scale), "gamma": d.values(size), "beta": d.values(size)}


def layer_norm_grad(d):
    call = layer_norm(d)
    _, xhat, rstd = npx.layer_norm.reference(**call)
    return {"g": d.values(*xhat.shape), "gamma": call["gamma"], "xhat": xhat, "rstd": rstd}


def dropout(d):
    return {"x": d.values(*d.shape(d.size(0, 40))), "rate": d.rate(), "key": d.key()}


def dropout_grad(d):
    shape = d.shape(d.size(0, 40))
    return {"g": d.values(*shape, scale=d.scale()), "rate": d.rate(), "keep": d.bools(*shape)}


def dropout_residual_norm(d):
    size = d.size(2, 9)
    shape = d.shape(size)
    arrays = {"x": d.values(*shape), "residual": d.values(*shape), "gamma": d.values(size), "beta": d.values(size)}
    return arrays | {"rate": d.rate(), "key": d.key(optional=True)}


def dropout_residual_norm_grad(d):
    call = dropout_residual_norm(d)
    _, xhat, rstd, keep = npx.dropout_residual_norm.reference(**call)
    arrays = {"g": d.values(*xhat.shape), "gamma": call["gamma"], "xhat": xhat, "rstd": rstd, "keep": keep}
    return arrays | {"rate": call["rate"]}


def linear(d):
    n, i, o = d.size(), d.size(1), d.size(1)
    bias = d.any(st.sampled_from([None, d.values(o)]))
    return {"x": d.values(n, i), "w": d.values(i, o), "b": bias, "relu": d.any(st.booleans())}


def linear_grad(d):
    n, i, o = d.size(), d.size(1), d.size(1)
    y = d.any(st.sampled_from([None, np.maximum(d.values(n, o), 0)]))
    return {"g": d.values(n, o), "x": d.values(n, i), "w": d.values(i, o), "y": y, "bias": d.any(st.booleans())}


def embedding(d):
    rows = d.size(1)
    return {"table": d.values(rows, d.size(1)), "ids": d.ids(rows, *d.shape())}


def embedding_grad(d):
    rows, shape = d.size(1), d.shape()
    return {"g": d.values(*shape, d.size(1)), "ids": d.ids(rows, *shape), "rows": rows}


def attention(d):
    b, t, s, h, d_k, d_v = d.size(0, 3), d.size(0), d.size(0), d.size(1, 3), d.size(1, 3), d.size(1, 3)
    shapes = [(b, 1, 1, s), (t, s), (b, h, t, s), (1, 1, t, s), (s,)]
    mask = d.any(st.none() | st.sampled_from(shapes))
    scores = npx.Scores(
        causal=d.any(st.booleans()),
        lengths=d.any(st.sampled_from([None, d.ids(s + 2, b)])),
        bias=npx.mask_bias(mask and d.bools(*mask)),
        rotary=d.any(st.sampled_from([None, 10.0])) if d_k % 2 == 0 else None,
    )
    arrays = {"q": d.values(b, t, h, d_k), "k": d.values(b, s, h, d_k), "v": d.values(b, s, h, d_v)}
    return arrays | {"scores": scores, "rate": d.rate(), "key": d.key(optional=True)}


def attention_grad(d):
    call = attention(d)
    out, p, keep = npx.attention.reference(**call)
    q, k, v, scores = (call[name] for name in ("q", "k", "v", "scores"))
    call = {"g": d.values(*out.shape), "q": q, "k": k, "v": v, "p": p, "keep": keep, "rate": call["rate"]}
    call["scores"] = scores
    if d.any(st.booleans()):  # views of merged arrays, as the merged projections have them
        h = q.shape[2]
        merged = d.written(*k.shape[:2], h * (k.shape[3] + v.shape[3]))
        gk, gv = merged[..., : h * k.shape[3]].reshape(k.shape), merged[..., h * k.shape[3] :].reshape(v.shape)
        call["out"] = d.written(*q.shape), gk, gv
    return call


def cross_entropy(d):
    n, classes = d.size(0, 7), d.size(4, 9)
    smoothing = d.any(st.sampled_from([0.0, 0.1, 0.6]))
    return {
        "logits": d.values(n, classes, scale=d.any(st.sampled_from([1.0, 10.0]))),
        "targets": d.ids(classes, n),
        "smoothing": smoothing,
        "over": d.any(st.sampled_from(OVER)),
        "pad_id": d.any(st.sampled_from([0, 3])),
        "grad": d.any(st.booleans()),
    }


def linear_cross_entropy(d):
    call = cross_entropy(d)
    n, classes = call.pop("logits").shape
    size = d.size(1)
    return {"x": d.values(n, size), "w": d.values(classes, size), **call}


def adam(d):
    n = d.size(0, 40)
    rest = {
        "step": d.any(st.integers(1, 10**6)),
        "lr": d.any(st.sampled_from([0.0, 1e-3, 0.5])),
        "weight_decay": d.any(st.sampled_from([0.0, 0.1])),
        "eps": d.any(st.sampled_from([1e-9, 1e-3])),
        "eps_inside": d.any(st.booleans()),
        "low": d.any(st.sampled_from([None, np.zeros(n, "float16")])),
        "scale": d.any(st.sampled_from([1.0, 0.3])),
    }
    return {"p": d.written(n), "g": d.values(n), "m": d.written(n), "v": abs(d.written(n))} | rest


def top_k(d):
    n, columns = d.size(), d.size(1, 9)
    never = d.any(st.sets(st.integers(0, columns - 1), max_size=2))
    logits = d.values(n, columns, scale=d.scale())
    return {"logits": logits, "k": d.size(1, columns), "never": tuple(sorted(never))}


CASES = {
    case.__name__: case
    for case in (
        *(softmax, softmax_grad, layer_norm, layer_norm_grad, dropout, dropout_grad, dropout_residual_norm),
        *(dropout_residual_norm_grad, linear, linear_grad, embedding, embedding_grad, attention, attention_grad),
        *(cross_entropy, linear_cross_entropy, adam, top_k),
    )
}


def copied(value):
    return tuple(map(copied, value)) if type(value) is tuple else value.copy() if hasattr(value, "copy") else value


def run(name, function, call):
    """What `function` returns and what it leaves in the arguments it writes to; it must leave the others alone."""
    call = {key: copied(value) if key in WRITTEN.get(name, ()) else value for key, value in call.items()}
    before = {key: copied(value) for key, value in call.items() if key not in WRITTEN.get(name, ())}
    first, *rest = call.values()  # a kernel chooses its version by its first argument
    result = function(first, **dict(zip(list(call)[1:], rest, strict=True)))
    for key, value in before.items():
        compare(f"{name}, argument {key} afterwards", value, call[key])
    return result, tuple(call[key] for key in WRITTEN.get(name, ()) if key in call)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
@given(data=st.data())
def test_fast_version_equals_reference(name, dtype, data):
    assert name in CASES, f"kernel {name!r} has no case in tests/test_kernels.py"
    call = CASES[name](Draw(data, dtype))
    expected = run(name, KERNELS[name].reference, call)
    with kernel_mode("fast"):
        compare(name, expected, run(name, KERNELS[name], call))


@pytest.mark.parametrize("name", KERNELS)
@given(data=st.data())
def test_number_of_threads_changes_no_bit(name, data):
    """With blocks of a few bytes and panels of a row or two, so that several threads walk over even small arrays."""
    call = CASES[name](Draw(data, "float32"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "BLOCK_BYTES", 64)
        patch.setattr(parallel, "INLINE_BYTES", 0)
        patch.setattr(parallel, "INLINE_FLOPS", 0)
        patch.setattr(parallel, "PANEL_ROWS", (1, 2))
        results = []
        for threads in ("1", "3"):
            patch.setenv("NPX_THREADS", threads)
            results.append(run(name, KERNELS[name], call))
    assert_same_bits(*results)


def assert_same_bits(a, b):
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same_bits(x, y)
    elif a is not None:
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


BIG = {
    "softmax": lambda x: (x,),
    "layer_norm": lambda x: (x, x[0], x[1]),
    "layer_norm_grad": lambda x: (x, x[0], x, x[:, :1]),
    "dropout": lambda x: (x, 0.1, npx.Key(1, 2, 3)),
    "dropout_residual_norm": lambda x: (x, x, x[0], x[1], 0.1, npx.Key(1, 2, 3)),
    "linear": lambda x: (x, x[:256], x[0], True),
    "linear_grad": lambda x: (x, x, x[:256], x),
    "attention": lambda x: (x.reshape(32, 64, 4, 64),) * 3,
    "attention_grad": lambda x: (x.reshape(32, 64, 4, 64),) * 4 + (x[:2048].reshape(32, 4, 64, 64),),
    "cross_entropy": lambda x: (x, np.arange(len(x)) % 256, 0.1),
    "linear_cross_entropy": lambda x: (x[:, :64], x[:1024, :64], np.arange(len(x)) % 256, 0.1),
    "adam": lambda x: (x.reshape(-1), x.reshape(-1) * 2, x.reshape(-1) * 3, abs(x.reshape(-1)), 3, 0.1),
}


@pytest.mark.parametrize("name", BIG)
def test_large_arrays_run_on_several_threads_with_equal_bits(name, monkeypatch):
    walkers, submit = set(), parallel.ThreadPoolExecutor.submit
    monkeypatch.setattr(
        parallel.ThreadPoolExecutor,
        "submit",
        lambda pool, walk: submit(pool, lambda: (walkers.add(threading.get_ident()), walk())[1]),
    )
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("NPX_THREADS", threads)
        x = np.random.default_rng(0).normal(size=(2048, 256)).astype("float32")  # 2 MiB
        args = tuple(a.copy() if hasattr(a, "copy") else a for a in BIG[name](x))
        results.append((KERNELS[name](*args), args))
        assert bool(walkers) == (threads == "3")
    assert_same_bits(*results)


@given(m=st.integers(0, 9), k=st.integers(0, 9), n=st.integers(0, 9), threads=st.integers(1, 4))
def test_product_in_panels_equals_the_product(m, k, n, threads):
    a, b = np.arange(m * k, dtype=float).reshape(m, k) - 7, np.arange(k * n, dtype=float).reshape(k, n) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "INLINE_FLOPS", 0)
        patch.setattr(parallel, "PANEL_ROWS", (1, 2))
        patch.setenv("NPX_THREADS", str(threads))
        assert np.array_equal(parallel.matmul(a, b), a @ b)  # whole numbers: exact in any order
        out = np.empty((m, 2 * n))[:, ::2]
        assert parallel.matmul(a, b, out=out) is out and np.array_equal(out, a @ b)


@given(rows=st.integers(0, 300), row_bytes=st.integers(0, 100), threads=st.integers(1, 5))
def test_blocks_cover_every_row_once_in_order(rows, row_bytes, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "BLOCK_BYTES", 200)
        patch.setattr(parallel, "INLINE_BYTES", 1000)
        patch.setenv("NPX_THREADS", str(threads))
        blocks = parallel.map_blocks(lambda i, j: range(i, j), rows, row_bytes)
    assert [row for block in blocks for row in block] == list(range(rows))


def test_an_error_in_a_block_reaches_the_caller(monkeypatch):
    monkeypatch.setenv("NPX_THREADS", "3")
    monkeypatch.setattr(parallel, "INLINE_BYTES", 0)

    def body(i, j):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parallel.map_blocks(body, 100, parallel.BLOCK_BYTES)


# What a kernel computes


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_nothing_left_are_zeros(mode, dtype):
    x, mask = np.full((2, 3, 4), 7, dtype), np.zeros((2, 1, 4), bool)
    mask[1] = True
    with kernel_mode(mode):
        y = npx.softmax(x, mask)
        assert not y[0].any() and np.allclose(y[1], 0.25)
        q = np.ones((2, 3, 1, 4), dtype)
        out, p, _ = npx.attention(q, q, q, npx.Scores(bias=npx.mask_bias(mask[:, None, :, :3])))
        assert not out[0].any() and not p[0].any() and np.allclose(out[1], 1)
        for gradient in npx.attention_grad(np.ones_like(out), q, q, q, p):
            assert np.isfinite(gradient).all() and not gradient[0].any()


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_do_not_overflow(mode, dtype):
    huge = np.finfo(dtype).max / 4
    x = np.array([[huge, -huge, huge, 0]], dtype)
    with kernel_mode(mode):
        assert np.array_equal(npx.softmax(x), np.array([[0.5, 0, 0.5, 0]], dtype))
        loss, gradient = npx.cross_entropy(x[:, :3], np.array([2]), pad_id=0)
        assert np.isfinite(loss) and np.allclose(gradient, [[0.5, 0, -0.5]])


@pytest.mark.parametrize("mode", ["fast", "reference"])
def test_dropout_keeps_its_share_and_the_mean(mode):
    x = np.ones((500, 400), "float32")
    for rate in (0.1, 0.5):
        with kernel_mode(mode):
            y, keep = npx.dropout(x, rate, npx.Key(1, 2, 3))
        assert np.array_equal(y > 0, keep)
        assert abs(keep.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / x.size) ** 0.5
        assert abs(y.mean() - 1) < 0.02 and len(np.unique(y)) == 2


# The registry


def planted(monkeypatch, reference, *versions):
    """A kernel with the given reference and fast version for NumPy's float32, in a registry of its own."""
    monkeypatch.setattr(registry, "KERNELS", {})
    kernel = registry.kernel(reference)
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


@pytest.mark.parametrize("mistake", WRONG)
@pytest.mark.parametrize("size", [1, 3])
def test_check_mode_catches_a_wrong_fast_version(mistake, size, monkeypatch):
    def double(x, out):
        return x * 2, None

    kernel = planted(monkeypatch, double, WRONG[mistake])
    x = np.ones(size, "float32")
    with kernel_mode("check"), pytest.raises(KernelMismatch, match="double"):
        kernel(x, np.zeros(2))
    with kernel_mode("check"), pytest.raises(KernelMismatch, match="double"):
        kernel(x, out=np.zeros(2))
    with kernel_mode("reference"):
        assert np.array_equal(kernel(x, np.zeros(2))[0], x * 2)


def test_check_mode_passes_a_right_one_and_runs_both(monkeypatch):
    ran = []

    def double(x):
        ran.append("reference")
        return x * 2

    kernel = planted(monkeypatch, double, lambda x: (ran.append("fast"), x + x)[1])
    for mode, expected in (("fast", ["fast"]), ("reference", ["reference"]), ("check", ["reference", "fast"])):
        ran.clear()
        with kernel_mode(mode):
            assert kernel(np.ones(3, "float32")).sum() == 6
        assert ran == expected
    ran.clear()
    kernel(np.ones(3, "int64"))
    assert ran == ["reference"], "a dtype without a fast version falls back to the reference"


def test_kernels_have_one_name_each_and_modes_are_checked(monkeypatch):
    def double(x):
        return x

    kernel = planted(monkeypatch, double)
    assert registry.KERNELS == {"double": kernel}
    with pytest.raises(ValueError, match="registered already"):
        registry.kernel(double)
    known = "expected one of fast, reference, check, emulate, .* got 'quick'"
    with pytest.raises(ValueError, match=known), kernel_mode("quick"):
        pass


PLANT = """
import numpy as np, npx
npx.softmax.fast("numpy", "float32")(lambda x, mask=None: x)
try:
    print(npx.softmax(np.zeros((2, 4), "float32"))[0, 0])
except npx.KernelMismatch as error:
    print("KernelMismatch")
"""


@pytest.mark.parametrize(
    "mode, seen", [("check", "KernelMismatch"), ("fast", "0.0"), ("reference", "0.25"), ("quick", "NPX_KERNELS: exp")]
)
def test_the_environment_chooses_the_mode(mode, seen):
    done = subprocess.run(
        [sys.executable, "-c", PLANT],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"NPX_KERNELS": mode},
        capture_output=True,
        text=True,
    )
    assert seen in done.stdout + done.stderr
    assert (done.returncode == 0) == (mode != "quick")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_training_step_is_the_same_in_every_mode(dtype):
    config = TransformerConfig(
        13, d_model=8, d_ff=12, n_heads=2, n_layers=2, dropout=0.2, attention_dropout=0.1, activation_dropout=0.1
    )
    rng = np.random.default_rng(0)
    src, tgt = rng.integers(3, 13, (4, 6)), rng.integers(3, 13, (4, 5))
    src[1, 4:], tgt[2, 3:], tgt[:, 0] = 0, 0, 1
    results = {}
    for mode in ("reference", "fast", "check"):
        with kernel_mode(mode):
            model = Transformer(config, seed=1, dtype=dtype)
            flat = FlatParameters(model)
            with npx.keyed(3, 4):
                loss = model.loss(src, tgt)
            loss.backward()
            gradient = flat.grad.copy()
            m, v = np.zeros_like(flat.data), np.zeros_like(flat.data)
            npx.adam(flat.data, flat.grad, m, v, 1, 0.01, eps=1e-3)
            results[mode] = loss.data, gradient, flat.data, m, v
    compare("training step", results["reference"], results["fast"])
    assert_same_bits(results["fast"], results["check"])
