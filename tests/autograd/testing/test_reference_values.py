"""The kit, value first: a reference given by the user, numbers that overflow exp, and a blank."""

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


def test_a_right_operation_passes():
    assert check_operation(right, X, reference=reference).variants > 10
    assert check_operation(right, X, reference=lambda x: Tensor(x) * 0.0 + right(Tensor(x)), derive=False)


@pytest.mark.parametrize("operation", [overflowing, other_axis], ids=["without the maximum", "another axis"])
def test_a_wrong_value_is_found_where_the_gradient_belongs_to_it(operation):
    check_operation(operation, X)  # nothing is wrong with its slopes
    with pytest.raises(CheckError, match="expected the reference's value; got .* where the reference gives") as caught:
        check_operation(operation, X, reference=reference)
    assert caught.value.rule == "value" and "input 0 = array([[" in str(caught.value)


def test_the_line_reproduces_it():
    with pytest.raises(CheckError) as caught:
        check_operation(overflowing, X, reference=reference)
    line = str(caught.value).split("reproduce: ")[1]
    assert "array([[" in line and "reference=reference" in line
    with pytest.raises(CheckError, match="derived|reference's value"):
        exec(line, {"softmax": overflowing, "reference": reference})


def test_what_the_reference_refuses_is_not_asked():
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
        (lambda x: reference(x) * np.nan, ValueError, "finite numbers of the reference at the given inputs; got nan"),
        (lambda x: reference(x).reshape(-1), CheckError, r"got shape \(2, 3\) where the reference gives \(6,\)"),
        (lambda x: reference(x)[0], CheckError, r"got shape \(2, 3\) where the reference gives \(3,\)"),
    ],
    ids=["another arity", "None", "not a number", "flat", "a row"],
)
def test_a_reference_that_does_not_take_the_given_inputs_is_told(wrong, error, message):
    with pytest.raises(error, match=message):
        check_operation(right, X, reference=wrong)


def test_an_operation_that_refuses_what_the_reference_takes_is_found():
    @differentiable
    def picky(x):
        if x.size and x.max() > 100:
            raise ValueError("too large")
        return x * x, lambda g: (2 * g * x,)

    check_operation(picky, np.array([0.5, 2.0]))
    with pytest.raises(CheckError, match="got ValueError: too large"):
        check_operation(picky, np.array([0.5, 2.0]), reference=lambda x: x * x)


@given(s.arrays((2, 3), styles=("overflow",)))
def test_the_style_overflows_exp(x):
    with np.errstate(over="ignore"):
        assert not np.isfinite(np.exp(abs(x).max())) or abs(x).max() < 709
    assert np.isfinite(right(Tensor(x)).data).all()


def blank_body(x):
    pass


BLANKS = {
    "it returns None": blank_body,
    "it returns ...": lambda x: ...,
    "its output is None or `...`": lambda x: (..., lambda g: (g,)),
    "its vjp is None or `...`": lambda x: (x, ...),
    "its vjp returns `...` in the place of a gradient": lambda x: (x, lambda g: (...,)),
    "its vjp returns None": lambda x: (x, lambda g: None),
}


@pytest.mark.parametrize("said", BLANKS)
def test_a_blank_is_recognised(said):
    with pytest.raises(CheckError, match="not written yet: ") as caught:
        check_operation(differentiable(BLANKS[said]), np.array([1.0, 2.0]))
    assert said in str(caught.value) and caught.value.rule == "blank"


def test_another_mistake_is_no_blank():
    with pytest.raises(TypeError, match="ufunc .add. did not contain|unsupported operand"):
        check_operation(differentiable(lambda x: (x + "1", lambda g: (g,))), np.array([1.0]))
