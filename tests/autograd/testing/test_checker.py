"""The gradient checker: its reports, the errors for invalid use, and the examples that its strategies draw."""

import ast
import re

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import autograd.testing
import npx
from autograd import OPERATIONS, Tensor, differentiable, neural
from autograd import operations as ops
from autograd.testing import CheckError, GradientError, check_kernel, check_layer, check_operation, gradcheck
from autograd.testing import strategies as s
from autograd.testing.report import RULES
from models import Dropout, FeedForward, Linear
from npx.dispatch import KernelMismatch, kernel
from npx.registry import Registry
from tests import ROOT
from tests.helpers.expressions import BINARY, UNARY, Expression, expressions
from tests.user_code.right import gelu

RNG = np.random.default_rng(0)
X = np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]])


def wrong(name, change):
    """Return an operation with a changed gradient, which is not registered."""
    raw = OPERATIONS[name].__wrapped__

    def function(x):
        y, vjp = raw(x)
        return y, lambda g: (change(vjp(g)[0]),)

    function.__name__ = f"wrong_{name}"
    operation = differentiable(function)
    del OPERATIONS[f"{__name__}.{function.__qualname__}"]
    return operation


# Reports


def test_report_shows_both_gradients_and_the_worst_entry():
    with pytest.raises(GradientError) as caught:
        gradcheck(wrong("exp", lambda gx: gx * (1 + np.eye(2, 3))), X)
    report = str(caught.value)
    assert "wrong gradient of input 0, (2, 3) float64, in 2 of 6 entries; the largest error is at (0, 0)" in report
    analytic, numerical = (float(re.search(rf"    {what} +(\S+)", report)[1]) for what in ("analytic", "numerical"))
    assert analytic == pytest.approx(2 * numerical)
    assert len(re.findall(r"^    .*\[.*\] +\| .*\[.*\]", report, re.MULTILINE)) == 2, "rows side by side"
    assert "input 0 = array([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0]])" in report


def test_entries_of_derived_inputs_are_compared_only_in_doubt():
    smooth, kinked = check_operation(ops.exp, X), check_operation(ops.relu, X)
    assert smooth.variants > 20 and X.size < smooth.compared <= 2 * smooth.variants
    assert len(kinked.kinks) > 1, "at zeros, of a derived input"


@pytest.mark.parametrize(
    "change, cause",
    [
        (lambda gx: 0 * gx, "the gradient is 0: the input is detached from the graph"),
        (lambda gx: -gx, "the sign is wrong"),
        (lambda gx: 2 * gx, "every wrong entry is 2 times the numerical derivative"),
        (lambda gx: gx * (np.arange(gx.size).reshape(gx.shape) % 5 > 0), "the gradient of every wrong entry is 0"),
        (lambda gx: gx + gx**2 * [[0], [1]], "all wrong entries have index 1 on axis 0"),
    ],
    ids=["zero", "sign", "factor", "some zeros", "row"],
)
def test_report_names_a_likely_cause(change, cause):
    with pytest.raises(GradientError, match=f"likely cause: .*{cause}"):
        gradcheck(wrong("exp", change), X)


def test_report_says_where_a_result_differs():
    with pytest.raises(
        CheckError, match=r"(?s)got \S+ instead of \S+ at \(\d, \d\)\nrule: linearity\nrequires: .*cause: "
    ):
        check_operation(wrong("exp", lambda gx: gx * (abs(gx) < 100)), X)


def test_every_rule_of_the_table_is_checked():
    sources = [p.read_text(encoding="utf-8") for p in (ROOT / "autograd/testing").glob("*.py") if p.stem != "report"]
    assert [rule for rule in RULES if f'"{rule}"' not in "".join(sources)] == []


def test_modules_import_only_from_modules_listed_above_them():
    order = re.findall(r"(\w+)\.py", autograd.testing.__doc__.split("mutate.py")[0])
    for name in order:
        text = (ROOT / "autograd" / "testing" / f"{name}.py").read_text(encoding="utf-8")
        imports = re.findall(r"^from autograd\.testing(?:\.(\w+))? import (.*)$", text, re.MULTILINE)
        modules = {module for module, _ in imports} | {
            m for module, names in imports if not module for m in order if re.search(rf"\b{m}\b", names)
        }
        assert modules - {"", *order[: order.index(name)]} == set(), name


def run_line(report, **names):
    exec(re.search(r"^reproduce: (.*)$", report, re.MULTILINE)[1], names)  # no other names are needed


def test_line_that_reproduces_an_operation_fails_the_same_way(monkeypatch):
    right = npx.attention_grad
    monkeypatch.setattr(npx, "attention_grad", lambda g, saved: tuple(2 * x for x in right(g, saved)))
    q = np.arange(8.0).reshape(1, 2, 2, 2) / 4
    scores = npx.AttentionSpec(constant_bias=npx.mask_bias(np.array([[True, False], [True, True]])))
    with pytest.raises(GradientError) as first:
        check_operation(neural.attention, q, q + 1, q, scores, drop=npx.DropoutSpec(0.5, npx.Key(1, 2, 3)))
    with pytest.raises(GradientError) as second:
        run_line(str(first.value))
    assert str(first.value) == str(second.value)


def test_line_that_reproduces_a_broken_rule_fails_the_same_way():
    with pytest.raises(
        CheckError, match="at most 7 bytes saved for backward beyond inputs and output; got 16"
    ) as first:
        check_operation(neural.layer_norm, X, X[0], X[1], max_saved_bytes=7)
    with pytest.raises(CheckError) as second:
        run_line(str(first.value))
    assert str(first.value) == str(second.value)


def test_line_that_reproduces_a_layer_restores_its_parameters(monkeypatch):
    monkeypatch.setattr(neural, "linear", lambda x, w, b, *_, **__: OPERATIONS["linear"](x, w, b.detach()))
    with npx.keyed(1, 0):
        layer = Linear(3, 2)
    with pytest.raises(GradientError, match="Linear, train mode: wrong gradient of parameter bias") as first:
        check_layer(layer, X)
    with npx.keyed(2, 0):
        another = Linear(3, 2)
    with pytest.raises(GradientError) as second:
        run_line(str(first.value), layer=another)
    assert str(first.value) == str(second.value)


def test_line_that_reproduces_a_kernel_fails_the_same_way(monkeypatch):
    monkeypatch.setitem(npx.KERNELS["softmax"].versions, ("numpy", "float64"), lambda x, mask=None: (x, x))
    with pytest.raises(KernelMismatch, match="check_kernel: softmax") as first:
        check_kernel(npx.softmax, X, np.array([True, False, True]))
    with pytest.raises(KernelMismatch) as second:
        run_line(str(first.value))
    assert str(first.value) == str(second.value)


@pytest.mark.parametrize("option", [np.exp, np.random.default_rng(0), np.float32, object()])
def test_line_that_reproduces_a_failure_is_python_for_every_option(option):
    with pytest.raises(CheckError) as caught:
        check_operation(lambda x, option: ops.exp(x), X, option=option, reference=lambda x, option: 2 * np.exp(x))
    ast.parse(str(caught.value).split("reproduce: ")[1])


def test_functions_without_an_import_are_defined_by_the_caller():
    def local(x):
        return wrong("exp", lambda gx: -gx)(x)

    with pytest.raises(GradientError) as first:
        gradcheck(local, np.array(0.5))
    with pytest.raises(GradientError):
        run_line(str(first.value), local=local)


def test_kinks_are_reported_and_pass():
    report = check_operation(ops.relu, np.array([-1.0, 0.0, 2.0]), vary_inputs=False)
    assert len(report.kinks) == 1 and "input 0 (1,): kink; left and right derivatives differ by" in report.kinks[0]
    assert gradcheck(ops.relu, np.array([-1.0, 2.0])).kinks == []
    assert gradcheck(ops.absolute, np.zeros((2, 2))).kinks


def test_noise_and_curvature_are_not_kinks():
    with pytest.raises((CheckError, GradientError), match="rule: (linearity|float64 precision|gradient)"):
        check_operation(lambda x: ops.tanh(x).astype("float32").astype("float64"), X)
    assert gradcheck(ops.exp, 3 * X).kinks == []


@given(st.floats(-8, -3), st.floats(10, 36), st.integers(0, 9))
def test_staircase_output_is_not_reported_as_wrong(x, gap, seed):
    """1 + tiny rounds tiny to few digits, so that numerical derivatives may agree by chance on a wrong value."""
    check_operation(gelu, np.array([x]), vary_inputs=False, seed=seed)
    check_operation(neural.cross_entropy, np.array([0.3, gap, -1.2, 0.8]), np.array(1), vary_inputs=False, seed=seed)


@pytest.mark.parametrize("operation", [ops.max, ops.min, ops.maximum])
def test_tied_entries_are_compared_when_moved_together(operation):
    x = np.array([1.0, 1.0, 0.5])
    inputs = (x, np.ones(3)) if operation is ops.maximum else (x,)
    assert check_operation(operation, *inputs)


@pytest.mark.parametrize("x", [X, X[0]])
@pytest.mark.parametrize("where", ["value", "gradient"])
def test_elementwise_formula_that_reads_other_values_is_found(where, x):
    """The formula multiplies by the number of rows in its block; a small array has only one block."""

    def times_rows(a, part):
        return npx.elementwise(lambda a: a * len(a), a) if where == part else a * len(a)

    def function(x):
        return times_rows(x, "value"), lambda g: (times_rows(g, "gradient"),)

    operation = differentiable(function)
    del OPERATIONS[f"{__name__}.{function.__qualname__}"]
    with pytest.raises(CheckError) as caught:
        check_operation(operation, x)
    assert caught.value.rule == "block size" and ("same gradient" in str(caught.value)) == (where == "gradient")


def test_saved_bytes_and_counts_are_reported():
    x = np.ones((3, 4)) * np.arange(4)
    assert check_operation(neural.softmax, x).saved_bytes == 0
    assert check_operation(neural.dropout, x, npx.DropoutSpec(0.5, npx.Key(0, 0, 0))).saved_bytes == x.size
    report = check_operation(neural.layer_norm, x, x[0], x[1], vary_inputs=False)
    assert (
        report.saved_bytes == 3 * 8 + 3 * 8 + 8
    )  # a deviation per row; the column that gamma = 0 hides, and its index
    assert report.compared == x.size + 8 and 0 < report.largest_difference < 1e-6


def test_random_directions_find_and_name_a_wrong_entry():
    assert gradcheck(ops.tanh, X, n_directions=3).compared == 3
    with pytest.raises(
        GradientError, match=r"wrong gradient of input 0, .* in 1 of 6 entries; the largest error is at \(0, 2\)"
    ):
        gradcheck(wrong("tanh", lambda gx: gx + (np.arange(6).reshape(2, 3) == 2)), X, n_directions=2)


def test_layer_is_checked_in_both_modes_and_restored():
    with npx.keyed(0, 0):
        layer = FeedForward(3, 4, 0.5)
    before = layer.state_dict()
    layer.dropout.training = False
    layer.inner.bias.grad = np.ones(4, "float32")
    report = check_layer(layer, X)
    assert report.compared >= 2 * (X.size + layer.n_parameters())
    assert all(p.data.dtype == "float32" and np.array_equal(p.data, before[n]) for n, p in layer.named_parameters())
    assert layer.training and not layer.dropout.training and np.array_equal(layer.inner.bias.grad, np.ones(4))


def test_arguments_that_a_kernel_writes_are_compared(monkeypatch):
    monkeypatch.setattr("npx.dispatch.KERNELS", Registry("kernel"))

    @kernel
    def doubled(x, out):
        out += x
        return x * 2

    with pytest.raises(ValueError, match="doubled: expected a fast version for float64; got no fast version"):
        check_kernel(doubled, X, X * 0)

    @doubled.fast("numpy", "float64")
    def fast(x, out):
        return x + x

    with pytest.raises(KernelMismatch, match="doubled, fast, given layout, argument 1 after the call"):
        check_kernel(doubled, X, X * 0)
    doubled.versions["numpy", "float64"] = lambda x, out: (out.__iadd__(x), x + x)[1]
    assert check_kernel(doubled, X, X * 0) == ["<lambda>"] and not (X * 0).any()


# Invalid use


@pytest.mark.parametrize(
    "use, error, message",
    [
        (lambda: gradcheck(lambda x: 3.0, X), TypeError, "expected the function to return a Tensor; got float"),
        (lambda: gradcheck(ops.exp, np.arange(3)), TypeError, "floating-point input; got int64; try np.asarray"),
        (lambda: gradcheck(ops.exp, X.astype("float16")), TypeError, "float64 or float32; got float16; try .astype"),
        (lambda: gradcheck(ops.exp, X.astype("float32"), rtol=1e-6), ValueError, "0.0002 for float32; got 1e-06; try"),
        (lambda: gradcheck(ops.log, np.array([-1.0, 0.0]) * np.inf), ValueError, "expected finite outputs"),
        (
            lambda: gradcheck(lambda x: x * RNG.random(), X),
            ValueError,
            "same output for the same input; two calls differ; try a fixed key for random numbers",
        ),
        (lambda: gradcheck(ops.exp, X, n_directions=0), ValueError, "n_directions of at least 1; got 0; try None"),
        (lambda: check_operation(ops.exp, X, n_directions=-1), ValueError, "n_directions of at least 1; got -1; try"),
        (lambda: gradcheck(lambda x: x * npx.next_key().seed, X), RuntimeError, "no key"),
        (lambda: check_layer(lambda x: x, X), TypeError, "check_layer: expected a layer"),
        (lambda: check_layer(Linear, X), TypeError, "expected a layer; got the class Linear; try an instance"),
        (lambda: check_layer(Dropout(0.5), X, modes=("foo",)), ValueError, "among 'train' and 'eval'; got ('foo',)"),
        (lambda: check_layer(Dropout(0.5), X, modes=()), ValueError, "among 'train' and 'eval'; got ()"),
        (lambda: check_operation(ops.exp, X, domain=(5, 0)), ValueError, "low < high, or such a pair or None for each"),
        (lambda: check_operation(ops.exp, X, domain=5), ValueError, "expected domain=(low, high) with low < high"),
        (lambda: check_operation(ops.exp, X, domain=[(0, 1)] * 2), ValueError, "for each of 1 floating inputs; got [("),
        (lambda: check_operation(ops.log, X, domain=(0, 9)), ValueError, "input 0 inside its domain (0, 9); got"),
        (lambda: check_layer(Dropout(0.5), X, domain=(0, 9)), ValueError, "input 0 inside its domain (0, 9); got"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_invalid_use_raises_a_one_line_error(use, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        use()
    assert "\n" not in str(caught.value)


def test_float32_can_be_checked_with_its_own_tolerance():
    assert gradcheck(ops.tanh, X.astype("float32")).compared == 6


def test_two_calls_may_differ_by_rounding():
    """A framework may compute a function in another order when no input requires a gradient."""
    factors = iter([1.0, 1 + 4e-16] * 1000)
    gradcheck(lambda x: x * next(factors), X)
    factors = iter([1.0, 1 + 1e-12] * 1000)
    with pytest.raises(ValueError, match="two calls differ"):
        gradcheck(lambda x: x * next(factors), X)


def test_random_numbers_in_evaluation_mode_raise():
    class AlwaysRandom(Dropout):
        def forward(self, x):
            return neural.dropout(x, npx.DropoutSpec(self.rate, npx.next_key()))

    with pytest.raises(RuntimeError, match="no key"):
        check_layer(AlwaysRandom(0.5), X)
    assert check_layer(AlwaysRandom(0.5), X, modes=("train",))


# Strategies


def an_example(strategy, condition):
    """Return an example that fulfills the condition, without shrinking it."""
    return find(strategy, condition, settings=settings(max_examples=2000, phases=[Phase.generate]))


def test_strategies_draw_the_hard_cases():
    arrays = s.arrays(s.shapes(max_side=3), s.STYLES)
    for condition in (
        lambda x: x.size == 0,
        lambda x: x.shape == (),
        lambda x: x.size == 1 and x.ndim == 3,
        lambda x: x.ndim > 1 and not x.flags.c_contiguous and not x.flags.f_contiguous,
        lambda x: x.ndim > 1 and x.flags.f_contiguous and not x.flags.c_contiguous,
        lambda x: x.size > 1 and any(stride < 0 for stride in x.strides),
        lambda x: not x.flags.writeable,
        lambda x: x.size > 3 and len(np.unique(x)) < x.size,
        lambda x: x.size and abs(x).max() > 30,
        lambda x: x.size and 0 < abs(x).max() < 1e-2,
        lambda x: x.ndim == 3 and len(set(x.shape)) == 1 and x.size > 1,
    ):
        an_example(arrays, condition)
    an_example(s.indices(4), lambda i: i.size > 2 and len(np.unique(i)) < i.size)
    an_example(s.masks((2, 3)), lambda m: m is None)
    an_example(s.masks((2, 3)), lambda m: m is not None and m.any(axis=1).tolist() == [False, True])
    an_example(s.masks((2, 3)), lambda m: m is not None and not m.any())
    an_example(s.axes(3), lambda a: isinstance(a, tuple) and len(a) == 2)
    an_example(s.broadcastable(), lambda shapes: shapes[0] != shapes[1] and len(shapes[0]) == len(shapes[1]) == 2)
    an_example(s.orders(3), lambda axes: axes == (1, 2, 0))
    an_example(s.lengths(3, 5), lambda lengths: len(set(lengths)) == 3)


def test_arrays_shrink_to_a_single_plain_number():
    assert find(s.arrays(s.shapes(min_dims=1, min_side=1)), lambda x: True).tolist() == [0.125]


def test_expressions_share_values_and_have_a_literal():
    expression, inputs = an_example(expressions(), lambda drawn: len(drawn[0].steps) > 3 and drawn[1][0].size > 1)
    copy = eval(repr(expression), {"Expression": Expression})
    tensors = [Tensor(x) for x in inputs]
    assert expression(*tensors).data == copy(*tensors).data
    assert {*UNARY, *BINARY} & set(OPERATIONS) > {"exp", "matmul", "softmax"}
