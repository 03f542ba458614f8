"""Comparison with a reference, inputs for which exp overflows, and operations that are not written yet."""

import numpy as np
import pytest
from hypothesis import given

import npx
from autograd import Tensor, differentiable
from autograd.testing import CheckError, check_operation
from autograd.testing import strategies as s

pytestmark = pytest.mark.usefixtures("registry")


def softmax_with(peak, axis=-1):
    @differentiable
    def softmax(x):
        with np.errstate(all="ignore"):
            e = np.exp(x - peak(x))
            y = e / e.sum(axis=axis, keepdims=True)
        return y, lambda g: (y * (g - (g * y).sum(axis=axis, keepdims=True)),)

    return softmax


def reference(x):
    return npx.softmax.reference(x)[0]


right = softmax_with(lambda x: x.max(axis=-1, keepdims=True))
overflowing = softmax_with(lambda x: 0)
other_axis = softmax_with(lambda x: x.max(axis=0, keepdims=True), axis=0)
X = np.array([[0.5, -1.0, 2.0], [0.0, 1.5, -0.5]])


def test_correct_operation_passes():
    assert check_operation(right, X, reference=reference).variants > 10
    assert check_operation(right, X, reference=lambda x: Tensor(x) * 0.0 + right(Tensor(x)), vary_inputs=False)


@pytest.mark.parametrize("operation", [overflowing, other_axis], ids=["without the maximum", "another axis"])
def test_wrong_value_with_matching_gradient_is_found(operation):
    check_operation(operation, X)  # its gradient is correct
    with pytest.raises(CheckError, match="expected the reference's value; got .* where the reference has") as caught:
        check_operation(operation, X, reference=reference)
    assert caught.value.rule == "reference" and "input 0 = array([[" in str(caught.value)


def test_line_reproduces_the_failure():
    with pytest.raises(CheckError) as caught:
        check_operation(overflowing, X, reference=reference)
    line = str(caught.value).split("reproduce: ")[1]
    assert "array([[" in line and "reference=reference" in line
    with pytest.raises(CheckError, match="derived|reference's value"):
        exec(line, {"softmax": overflowing, "reference": reference})


def test_inputs_that_the_reference_rejects_are_skipped():
    @differentiable
    def logarithm(x):
        return np.log(np.abs(x)), lambda g: (g / x,)

    def only_positive(x):
        if (x <= 0).any():
            raise ValueError("positive numbers only")
        return np.log(x)

    check_operation(logarithm, np.array([0.5, 2.0]), reference=only_positive)


@pytest.mark.parametrize(
    "wrong, error, message",
    [
        (lambda x, y: x, TypeError, "missing 1 required positional argument: 'y'"),
        (lambda x: None, TypeError, "an array of numbers; got NoneType"),
        (lambda x: reference(x) * np.nan, ValueError, "the reference to be finite at the given inputs; got nan"),
        (lambda x: reference(x).reshape(-1), CheckError, r"got shape \(2, 3\) where the reference has \(6,\)"),
        (lambda x: reference(x)[0], CheckError, r"got shape \(2, 3\) where the reference has \(3,\)"),
    ],
    ids=["another arity", "None", "not a number", "flat", "a row"],
)
def test_reference_that_rejects_the_given_inputs_raises(wrong, error, message):
    with pytest.raises(error, match=message):
        check_operation(right, X, reference=wrong)


def test_operation_that_rejects_what_the_reference_accepts_is_found():
    @differentiable
    def picky(x):
        if x.size and x.max() > 100:
            raise ValueError("too large")
        return x * x, lambda g: (2 * g * x,)

    check_operation(picky, np.array([0.5, 2.0]))
    with pytest.raises(CheckError, match="got ValueError: too large"):
        check_operation(picky, np.array([0.5, 2.0]), reference=lambda x: x * x)


@given(s.arrays((2, 3), styles=("overflow",)))
def test_style_overflow_overflows_exp(x):
    with np.errstate(over="ignore"):
        assert not np.isfinite(np.exp(abs(x).max())) or abs(x).max() < 709
    assert np.isfinite(right(Tensor(x)).data).all()


def blank_body(x):
    pass


BLANKS = {
    "output and a vjp; got None": blank_body,
    "output and a vjp; got `...`": lambda x: ...,
    "got `...` as its output": lambda x: (..., lambda g: (g,)),
    "got `...` as its vjp": lambda x: (x, ...),
    "got `...` in place of one": lambda x: (x, lambda g: (...,)),
    "gradient for each input; got None": lambda x: (x, lambda g: None),
}


@pytest.mark.parametrize("message", BLANKS)
def test_unwritten_operation_is_recognised(message):
    with pytest.raises(CheckError, match="expected the (operation|vjp) to return") as caught:
        check_operation(differentiable(BLANKS[message]), np.array([1.0, 2.0]))
    assert message in str(caught.value) and caught.value.rule == "not implemented"


def test_other_errors_are_raised_unchanged():
    with pytest.raises(TypeError, match="ufunc .add. did not contain|unsupported operand"):
        check_operation(differentiable(lambda x: (x + "1", lambda g: (g,))), np.array([1.0]))
