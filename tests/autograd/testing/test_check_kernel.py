"""check_kernel (autograd/testing/kernels.py): each rule finds what breaks it, and says so."""

import re

import numpy as np
import pytest

from autograd.testing import check_kernel
from npx.cpu import row_blocks
from npx.dispatch import TOLERANCE, KernelMismatch, compare, kernel
from npx.registry import Registry

X = np.random.default_rng(0).normal(size=(7, 3))
W = np.random.default_rng(1).normal(size=(7, 3))
KEPT = {}


@pytest.fixture
def product(monkeypatch):
    """A kernel y = x w, summed over columns, with a fast version in blocks; both can be changed."""
    monkeypatch.setattr("npx.dispatch.KERNELS", Registry("kernel"))
    KEPT.clear()

    @kernel
    def product(x, w):
        return (x * w).sum(axis=1), (x, w)

    @product.gradient
    def product_grad(g, x, w):
        return g[:, None] * w, g[:, None] * x

    product.fast("numpy", "float64")(fast)
    product_grad.fast("numpy", "float64")(fast_grad)
    return product


def fast(x, w):
    y = np.empty(len(x))

    def body(i, j):
        y[i:j] = (x[i:j] * w[i:j]).sum(axis=1)

    row_blocks.parallel_ranges(body, len(x), row_blocks.block_size(1000))
    return y, (x, w)


def fast_grad(g, x, w):
    gx, gw = np.empty(x.shape), np.empty(x.shape)

    def body(i, j):
        np.multiply(g[i:j, None], w[i:j], out=gx[i:j])
        np.multiply(g[i:j, None], x[i:j], out=gw[i:j])

    row_blocks.parallel_ranges(body, len(x), row_blocks.block_size(1000))
    return gx, gw


def test_a_right_version_keeps_all_rules(product):
    assert check_kernel(product, X, W) == check_kernel(product, X, W, derive=False) == ["fast"]
    assert check_kernel(product, X[:0], W[:0]) and check_kernel(product, X[:1], W[:1])


def tail_lost(x, w):
    y, saved = fast(x, w)
    y[len(x) // row_blocks.block_size(1000) * row_blocks.block_size(1000) or len(x) :] = 0
    return y, saved


def blocks_of_its_own(x, w):
    y, saved = fast(x, w)
    y[1024:] = y[: len(y) - 1024] if len(y) > 1024 else y[1024:]
    return y, saved


def scratch_of_all_threads(x, w):
    y, scratch = np.empty(len(x)), np.empty((1000, x.shape[1]))

    def body(i, j):
        y[i:j] = np.multiply(x[i:j], w[i:j], out=scratch[: j - i]).sum(axis=1)

    row_blocks.parallel_ranges(body, len(x), row_blocks.block_size(1000))
    return y, (x, w)


def sums_as_they_come(g, x, w):
    total = np.zeros(())

    def body(i, j):
        total.__iadd__(w[i:j].sum())

    row_blocks.parallel_ranges(body, len(x), row_blocks.block_size(1000))
    gx, gw = fast_grad(g, x, w)
    return gx * (total / w.sum()), gw


def ones_handed_on(g, x, w):
    gx, gw = fast_grad(g, x, w)
    return (np.ones_like(gx), gw) if (g == 1).all() else (gx, gw)


def kept_output(x, w):
    y = KEPT.setdefault(len(x), np.empty(len(x)))
    y[...] = fast(x, w)[0]
    return y, (x, w)


def kept_in_parts(x, w):
    """A workspace that grows."""
    if len(KEPT.get("y", ())) < len(x):
        KEPT["y"] = np.empty(len(x))
    y = KEPT["y"][: len(x)]
    y[...] = fast(x, w)[0]
    return y, (x, w)


def last_arguments(x, w):
    KEPT["last"] = x, w
    return fast(x, w)


def transposed_once(x, w):
    return fast(x, KEPT.setdefault(id(w), w.T.copy()).T)


def output_for_scratch(g, x, w):
    KEPT["y"][...] = 0
    return fast_grad(g, x, w)


def remembered_output(x, w):
    KEPT["y"] = fast(x, w)[0]
    return KEPT["y"], (x, w)


def written(array, value):
    array[...] = value
    return value


FORWARD = [
    ("reference", lambda x, w: (fast(x, w)[0] * 1.001, (x, w))),
    ("reference", lambda x, w: (fast(x, w)[0].astype("float32"), (x, w))),
    ("reference", lambda x, w: 1 / 0),
    ("untouched", lambda x, w: (fast(x, w)[0], (x, written(w, w * 2)))),
    ("input layout", lambda x, w: fast(x.ravel(order="K").reshape(x.shape), w)),
    ("input layout", lambda x, w: fast(x if x.flags.c_contiguous else x + 1, w)),
    ("input layout", lambda x, w: fast(written(x, x), w)),
    ("blocks", tail_lost),
    ("blocks", blocks_of_its_own),
    ("threads", scratch_of_all_threads),
    ("calls", kept_output),
    ("calls", kept_in_parts),
    ("calls", transposed_once),
]
GRADIENT = [
    ("reference", lambda g, x, w: (fast_grad(g, x, w)[0], None)),
    ("reference", lambda g, x, w: (fast_grad(g, x, w)[0] * np.nan, fast_grad(g, x, w)[1])),
    ("untouched", lambda g, x, w: fast_grad(written(g, g * 2) / 2, x, w)),
    ("untouched", lambda g, x, w: (fast_grad(g, x, w), written(x, x * 0))[0]),
    ("incoming layout", lambda g, x, w: fast_grad(np.frombuffer(g.base if g.strides[0] < 0 else g), x, w)),
    ("incoming layout", lambda g, x, w: fast_grad(g if g.strides[0] else g[:1] * np.arange(len(g)), x, w)),
    ("incoming layout", lambda g, x, w: fast_grad(written(g, g), x, w)),
    (
        "blocks",
        lambda g, x, w: tuple(v * (np.arange(len(v)) < row_blocks.block_size(9))[:, None] for v in fast_grad(g, x, w)),
    ),
    ("threads", sums_as_they_come),
    ("linear", lambda g, x, w: fast_grad(np.clip(g, -1000, 1000), x, w)),
    ("linear", lambda g, x, w: fast_grad(g * (abs(g) > 1e-5), x, w)),
    ("linear", ones_handed_on),
    ("linear", lambda g, x, w: fast_grad(g / np.sqrt((g * g).sum()) * np.sqrt((g * g).sum()), x, w)),
    ("linear", lambda g, x, w: fast_grad(g if (g != 0).sum() != 1 else -g, x, w)),
]


def broken_rule(call, *args, **options):
    with pytest.raises(KernelMismatch) as caught:
        call(*args, **options)
    assert re.search(f"^rule: {caught.value.rule}$", str(caught.value), re.MULTILINE)
    assert re.search("^reproduce: .*check_kernel", str(caught.value), re.MULTILINE)
    return caught.value.rule


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("place, seed", [(i, seed) for i in range(len(FORWARD) + len(GRADIENT)) for seed in (0, 1, 2)])
def test_a_broken_rule_is_named(product, place, seed):
    if place < len(FORWARD):
        rule, product.versions["numpy", "float64"] = FORWARD[place]
    else:
        rule, product.grad.versions["numpy", "float64"] = GRADIENT[place - len(FORWARD)]
    assert broken_rule(check_kernel, product, X, W, seed=seed) == rule


def test_what_the_reference_writes_is_a_result(monkeypatch):
    """And breaks the rule it is found by; what it leaves alone has to be untouched."""
    monkeypatch.setattr("npx.dispatch.KERNELS", Registry("kernel"))

    @kernel
    def doubled(x, out):
        out += x

    def fast(x, out):
        row_blocks.parallel_ranges(lambda i, j: out[i:j].__iadd__(x[i:j]), len(x), row_blocks.block_size(1000))

    doubled.fast("numpy", "float64")(fast)
    assert check_kernel(doubled, X, W) == ["fast"]
    for rule, wrong in {
        "reference": lambda x, out: fast(x, 1.001 * out),
        "untouched": lambda x, out: [fast(x, out), written(x, x + 1)].clear(),
        "blocks": lambda x, out: fast(x[: len(x) // row_blocks.block_size(1) * row_blocks.block_size(1)], out),
        "calls": lambda x, out: fast(KEPT.setdefault("x", x.copy()), out),
    }.items():
        doubled.versions["numpy", "float64"] = wrong
        assert broken_rule(check_kernel, doubled, X, W) == rule
        KEPT.clear()


def test_large_arguments_are_held_to_the_reference(product):
    large = np.resize(X, (60_000, 3))
    assert check_kernel(product, large, large[::-1])
    product.versions["numpy", "float64"] = blocks_of_its_own
    assert broken_rule(check_kernel, product, large, large[::-1]) == "reference"


def test_what_the_last_call_left_is_found(product):
    product.versions["numpy", "float64"] = last_arguments
    product.grad.versions["numpy", "float64"] = lambda g, x, w: fast_grad(g, *KEPT["last"])
    assert broken_rule(check_kernel, product, X, W) == "calls"
    product.versions["numpy", "float64"] = remembered_output
    product.grad.versions["numpy", "float64"] = output_for_scratch
    assert broken_rule(check_kernel, product, X, W) == "untouched"


def test_a_mistake_of_both_is_found_where_it_depends_on_blocks(product):
    """Random numbers, say, that the reference takes from the same function as its fast version."""
    product.reference = product.versions["numpy", "float64"] = lambda x, w: tail_lost(x, w)
    with pytest.raises(KernelMismatch, match="blocks of 2, reference") as caught:
        check_kernel(product, X, W, derive=False)
    assert caught.value.rule == "blocks"


def test_what_the_reference_refuses_is_no_mistake(product):
    """Kernels take what their reference takes: here square matrices, and gradients of size 1."""
    right = product.reference

    def reference(x, w):
        assert x.shape == (3, 3) and (x > 0).all() and (w > 0.5).all()
        return right(x, w)

    product.reference = reference
    assert check_kernel(product, 1 + abs(X[:3]), 1 + abs(W[:3]))


# What is compared


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reference, result", [(1.0, np.nan), (np.nan, 1.0), (1.0, np.inf), (np.inf, 1.0),
                                               (np.inf, -np.inf), (np.nan, np.inf), (-np.inf, np.nan)])  # fmt: skip
@pytest.mark.parametrize("others", [0.0, 1e30, np.inf])
def test_what_is_not_finite_agrees_with_nothing_else(dtype, reference, result, others):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    from npx.precision import dtype as dtype_named

    with np.errstate(over="ignore"):
        expected, found = (np.array([others, x, 2.0]).astype(dtype_named(dtype)) for x in (reference, result))
    with pytest.raises(KernelMismatch):
        compare("x", expected, found)
    compare("x", expected, expected.copy())
    compare("x", found, found.copy())


def test_a_large_row_hides_no_small_one():
    expected = np.array([[1e9, -3.0], [1.0, 2.0]])
    compare("x", expected, expected + [[1e-3, 1e-3], [1e-12, 1e-12]])
    with pytest.raises(KernelMismatch, match=r"at \(1, 0\)"):
        compare("x", expected, expected + [[0, 0], [1e-6, 0]])
    with pytest.raises(KernelMismatch):
        compare("x", expected[1, 0], expected[1, 0] + 1e-6)
