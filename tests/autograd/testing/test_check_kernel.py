"""`check_kernel` names the rule that a wrong fast version breaks."""

import re

import numpy as np
import pytest

from autograd.testing import check_kernel
from npx.cpu import row_blocks
from npx.dispatch import TOLERANCE, KernelMismatch, compare, kernel
from npx.registry import Registry

X = np.random.default_rng(0).normal(size=(7, 3))
W = np.random.default_rng(1).normal(size=(7, 3))
CACHE = {}  # state that wrong versions share between calls


@pytest.fixture
def product(monkeypatch):
    """A kernel y = x w, summed over columns, with a blocked fast version that tests reindex."""
    monkeypatch.setattr("npx.dispatch.KERNELS", Registry("kernel"))
    CACHE.clear()

    @kernel
    def product(x, w):
        return (x * w).sum(axis=1), (x, w)

    @product.define_gradient
    def product_grad(g, x, w):
        return g[:, None] * w, g[:, None] * x

    product.fast("numpy", "float64")(fast)
    product_grad.fast("numpy", "float64")(fast_grad)
    return product


def fast(x, w):
    y = np.empty(len(x))

    def body(i, j):
        y[i:j] = (x[i:j] * w[i:j]).sum(axis=1)

    row_blocks.parallel_for(body, len(x), row_blocks.overridable_size(1000))
    return y, (x, w)


def fast_grad(g, x, w):
    gx, gw = np.empty(x.shape), np.empty(x.shape)

    def body(i, j):
        np.multiply(g[i:j, None], w[i:j], out=gx[i:j])
        np.multiply(g[i:j, None], x[i:j], out=gw[i:j])

    row_blocks.parallel_for(body, len(x), row_blocks.overridable_size(1000))
    return gx, gw


def test_correct_version_passes(product):
    assert check_kernel(product, X, W) == check_kernel(product, X, W, thorough=False) == ["fast"]
    assert check_kernel(product, X[:0], W[:0]) and check_kernel(product, X[:1], W[:1])


def last_block_skipped(x, w):
    y, saved = fast(x, w)
    y[len(x) // row_blocks.overridable_size(1000) * row_blocks.overridable_size(1000) or len(x) :] = 0
    return y, saved


def wrong_after_1024_rows(x, w):
    y, saved = fast(x, w)
    y[1024:] = y[: len(y) - 1024] if len(y) > 1024 else y[1024:]
    return y, saved


def scratch_shared_by_threads(x, w):
    y = np.empty(len(x))
    scratch = np.empty((1000, x.shape[1]))

    def body(i, j):
        y[i:j] = np.multiply(x[i:j], w[i:j], out=scratch[: j - i]).sum(axis=1)

    row_blocks.parallel_for(body, len(x), row_blocks.overridable_size(1000))
    return y, (x, w)


def sum_in_thread_order(g, x, w):
    total = np.zeros(())

    def body(i, j):
        total.__iadd__(w[i:j].sum())

    row_blocks.parallel_for(body, len(x), row_blocks.overridable_size(1000))
    gx, gw = fast_grad(g, x, w)
    return gx * (total / w.sum()), gw


def ones_special_case(g, x, w):
    gx, gw = fast_grad(g, x, w)
    return (np.ones_like(gx), gw) if (g == 1).all() else (gx, gw)


def output_reused(x, w):
    y = CACHE.setdefault(len(x), np.empty(len(x)))
    y[...] = fast(x, w)[0]
    return y, (x, w)


def growing_workspace(x, w):
    if len(CACHE.get("y", ())) < len(x):
        CACHE["y"] = np.empty(len(x))
    y = CACHE["y"][: len(x)]
    y[...] = fast(x, w)[0]
    return y, (x, w)


def last_arguments_saved(x, w):
    CACHE["last"] = x, w
    return fast(x, w)


def transpose_cached(x, w):
    return fast(x, CACHE.setdefault(id(w), w.T.copy()).T)


def output_overwritten(g, x, w):
    CACHE["y"][...] = 0
    return fast_grad(g, x, w)


def output_remembered(x, w):
    CACHE["y"] = fast(x, w)[0]
    return CACHE["y"], (x, w)


def overwrite(array, value):
    """Overwrite an array, as an expression."""
    array[...] = value
    return value


FORWARD = [  # wrong versions of the kernel, with the rule that each breaks
    ("reference", lambda x, w: (fast(x, w)[0] * 1.001, (x, w))),
    ("reference", lambda x, w: (fast(x, w)[0].astype("float32"), (x, w))),
    ("reference", lambda x, w: 1 / 0),
    ("no mutation", lambda x, w: (fast(x, w)[0], (x, overwrite(w, w * 2)))),
    ("input layout", lambda x, w: fast(x.ravel(order="K").reshape(x.shape), w)),
    ("input layout", lambda x, w: fast(x if x.flags.c_contiguous else x + 1, w)),
    ("input layout", lambda x, w: fast(overwrite(x, x), w)),
    ("block size", last_block_skipped),
    ("block size", wrong_after_1024_rows),
    ("thread count", scratch_shared_by_threads),
    ("independent calls", output_reused),
    ("independent calls", growing_workspace),
    ("independent calls", transpose_cached),
]
GRADIENT = [  # wrong versions of its gradient, with the rule that each breaks
    ("reference", lambda g, x, w: (fast_grad(g, x, w)[0], None)),
    ("reference", lambda g, x, w: (fast_grad(g, x, w)[0] * np.nan, fast_grad(g, x, w)[1])),
    ("no mutation", lambda g, x, w: fast_grad(overwrite(g, g * 2) / 2, x, w)),
    ("no mutation", lambda g, x, w: (fast_grad(g, x, w), overwrite(x, x * 0))[0]),
    ("incoming gradient layout", lambda g, x, w: fast_grad(np.frombuffer(g.base if g.strides[0] < 0 else g), x, w)),
    ("incoming gradient layout", lambda g, x, w: fast_grad(g if g.strides[0] else g[:1] * np.arange(len(g)), x, w)),
    ("incoming gradient layout", lambda g, x, w: fast_grad(overwrite(g, g), x, w)),
    (
        "block size",
        lambda g, x, w: tuple(
            v * (np.arange(len(v)) < row_blocks.overridable_size(9))[:, None] for v in fast_grad(g, x, w)
        ),
    ),
    ("thread count", sum_in_thread_order),
    ("linearity", lambda g, x, w: fast_grad(np.clip(g, -1000, 1000), x, w)),
    ("linearity", lambda g, x, w: fast_grad(g * (abs(g) > 1e-5), x, w)),
    ("linearity", ones_special_case),
    ("linearity", lambda g, x, w: fast_grad(g / np.sqrt((g * g).sum()) * np.sqrt((g * g).sum()), x, w)),
    ("linearity", lambda g, x, w: fast_grad(g if (g != 0).sum() != 1 else -g, x, w)),
]


def broken_rule(call, *args, **options):
    """Return the rule that a failing check names."""
    with pytest.raises(KernelMismatch) as caught:
        call(*args, **options)
    assert re.search(f"^rule: {caught.value.rule}$", str(caught.value), re.MULTILINE)
    assert re.search("^reproduce: .*check_kernel", str(caught.value), re.MULTILINE)
    return caught.value.rule


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "part, rule, version",
    [("forward", *pair) for pair in FORWARD] + [("gradient", *pair) for pair in GRADIENT],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_wrong_version_breaks_its_rule(product, part, rule, version, seed):
    wrong = product if part == "forward" else product.grad
    wrong.versions["numpy", "float64"] = version
    assert broken_rule(check_kernel, product, X, W, seed=seed) == rule


def test_arguments_that_the_reference_writes_are_results(monkeypatch):
    """The check compares such arguments like results; the other arguments must stay unmodified."""
    monkeypatch.setattr("npx.dispatch.KERNELS", Registry("kernel"))

    @kernel
    def doubled(x, out):
        out += x

    def fast(x, out):
        row_blocks.parallel_for(lambda i, j: out[i:j].__iadd__(x[i:j]), len(x), row_blocks.overridable_size(1000))

    doubled.fast("numpy", "float64")(fast)
    assert check_kernel(doubled, X, W) == ["fast"]
    for rule, wrong in {
        "reference": lambda x, out: fast(x, 1.001 * out),
        "no mutation": lambda x, out: [fast(x, out), overwrite(x, x + 1)].clear(),
        "block size": lambda x, out: fast(
            x[: len(x) // row_blocks.overridable_size(1) * row_blocks.overridable_size(1)], out
        ),
        "independent calls": lambda x, out: fast(CACHE.setdefault("x", x.copy()), out),
    }.items():
        doubled.versions["numpy", "float64"] = wrong
        assert broken_rule(check_kernel, doubled, X, W) == rule
        CACHE.clear()


def test_large_arguments_are_compared_with_the_reference(product):
    large = np.resize(X, (60_000, 3))
    assert check_kernel(product, large, large[::-1])
    product.versions["numpy", "float64"] = wrong_after_1024_rows
    assert broken_rule(check_kernel, product, large, large[::-1]) == "reference"


def test_state_left_by_the_last_call_is_found(product):
    product.versions["numpy", "float64"] = last_arguments_saved
    product.grad.versions["numpy", "float64"] = lambda g, x, w: fast_grad(g, *CACHE["last"])
    assert broken_rule(check_kernel, product, X, W) == "independent calls"
    product.versions["numpy", "float64"] = output_remembered
    product.grad.versions["numpy", "float64"] = output_overwritten
    assert broken_rule(check_kernel, product, X, W) == "no mutation"


def test_bug_shared_with_the_reference_is_found_if_it_depends_on_blocks(product):
    """Reference and fast version may share a function, such as a random number generator."""
    product.reference = product.versions["numpy", "float64"] = lambda x, w: last_block_skipped(x, w)
    with pytest.raises(KernelMismatch, match="blocks of 2, reference") as caught:
        check_kernel(product, X, W, thorough=False)
    assert caught.value.rule == "block size"


def test_inputs_that_the_reference_rejects_are_skipped(product):
    """This reference accepts square matrices of large positive numbers only."""
    right = product.reference

    def reference(x, w):
        assert x.shape == (3, 3) and (x > 0).all() and (w > 0.5).all()
        return right(x, w)

    product.reference = reference
    assert check_kernel(product, 1 + abs(X[:3]), 1 + abs(W[:3]))


def test_a_bug_in_the_reference_is_not_mistaken_for_a_rejection(product):
    right = product.reference
    product.reference = lambda x, w: right(x, w if len(x) == 3 else w.missing)
    with pytest.raises(AttributeError, match="missing"):
        check_kernel(product, X[:3], W[:3])


# What is compared


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reference, result", [(1.0, np.nan), (np.nan, 1.0), (1.0, np.inf), (np.inf, 1.0),
                                               (np.inf, -np.inf), (np.nan, np.inf), (-np.inf, np.nan)])  # fmt: skip
@pytest.mark.parametrize("others", [0.0, 1e30, np.inf])
def test_non_finite_values_equal_only_themselves(dtype, reference, result, others):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    from npx.precision import dtype_named

    with np.errstate(over="ignore"):
        expected, other = (np.array([others, x, 2.0]).astype(dtype_named(dtype)) for x in (reference, result))
    with pytest.raises(KernelMismatch):
        compare("x", expected, other)
    compare("x", expected, expected.copy())
    compare("x", other, other.copy())


def test_rows_are_compared_at_their_own_magnitude():
    expected = np.array([[1e9, -3.0], [1.0, 2.0]])
    compare("x", expected, expected + [[1e-3, 1e-3], [1e-12, 1e-12]])
    with pytest.raises(KernelMismatch, match=r"at index \(1, 0\)"):
        compare("x", expected, expected + [[0, 0], [1e-6, 0]])
    with pytest.raises(KernelMismatch):
        compare("x", expected[1, 0], expected[1, 0] + 1e-6)
