"""Gradients that are intentionally wrong, declared with expected_gradient=."""

import numpy as np
import pytest

from autograd.testing import CheckError, GradientError, check_operation, from_pair

X = np.random.default_rng(0).normal(size=(3, 4))


def straight(x):
    return np.round(x), x


QUANTIZER = from_pair(straight, lambda g, x: g)
REVERSAL = from_pair(lambda x: (x, None), lambda g, x: -g)
CLIPPED = from_pair(lambda x: (2 * x, None), lambda g, x: np.clip(2 * g, -1, 1))
DETACHED = from_pair(lambda x: (np.sign(x), x), lambda g, x: g * (abs(x) < 1))


@pytest.mark.parametrize(
    ("operation", "expect"),
    [
        (QUANTIZER, "straight-through"),
        (QUANTIZER, "rounds to integers, with a straight-through gradient"),
        (REVERSAL, "reversed"),
        (CLIPPED, lambda g, x: np.clip(2 * g, -1, 1)),
        (DETACHED, lambda g, x: g * (abs(x) < 1)),
    ],
)
def test_a_declared_gradient_is_accepted_and_described(operation, expect):
    report = check_operation(operation, X, expected_gradient=expect, vary_inputs=expect == "straight-through")
    (note,) = report.notes
    assert note.startswith("intentionally wrong (") and "analytic" in note and "numerical" in note
    with pytest.raises((GradientError, CheckError)):
        check_operation(operation, X, vary_inputs=False)


@pytest.mark.parametrize(
    ("operation", "hint"),
    [
        (QUANTIZER, 'if it is intended: expected_gradient="straight-through"'),
        (REVERSAL, 'if it is intended: expected_gradient="reversed"'),
        (DETACHED, 'if it is intended: expected_gradient="straight-through where it is not 0"'),
    ],
)
def test_the_report_says_how_to_declare_it(operation, hint):
    with pytest.raises(GradientError) as caught:
        check_operation(operation, X, vary_inputs=False)
    assert hint in str(caught.value).splitlines()
    name, declaration = hint.removeprefix("if it is intended: ").split("=")
    check_operation(operation, X, vary_inputs=False, **{name: declaration.strip('"')})


def test_a_constant_input_is_not_taken_for_an_intended_gradient():
    def forward(x, mask):
        return x * mask, mask

    masked = from_pair(forward, lambda g, mask: (g * mask, 0 * g))
    mask = (X > 0) * 1.0
    with pytest.raises(GradientError, match="if input 1 is a constant, such as a mask, pass it by name") as caught:
        check_operation(masked, X, mask, vary_inputs=False)
    assert "if it is intended" not in str(caught.value)
    check_operation(from_pair(forward, lambda g, mask: g * mask), X, mask=mask, vary_inputs=False)


@pytest.mark.parametrize("expect", ["reversed", lambda g, x: 1.01 * g, lambda g, x: np.clip(g, -1, 1)])
def test_another_gradient_than_the_declared_one_is_wrong(expect):
    with pytest.raises(GradientError) as caught:
        check_operation(QUANTIZER, X, expected_gradient=expect, vary_inputs=False)
    assert caught.value.rule == "expected gradient"


SCALED = from_pair(lambda x, s: (np.round(x) * s, (x, s)), lambda g, c: (g, (g * np.round(c[0])).sum()))
SCALED_WRONGLY = from_pair(lambda x, s: (np.round(x) * s, x), lambda g, x: (g, 7 * (g * np.round(x)).sum()))


@pytest.mark.parametrize("expect", ["straight-through", lambda g, x, s: g, lambda g, x, s: (g, None)])
def test_inputs_without_a_declared_gradient_are_compared_with_the_derivative(expect):
    scale = np.array(2.0)
    assert check_operation(SCALED, X, scale, expected_gradient=expect).compared
    with pytest.raises(GradientError, match="wrong gradient of input 1, .*\n") as caught:
        check_operation(SCALED_WRONGLY, X, scale, expected_gradient=expect)
    assert caught.value.rule == "gradient"


CUT = from_pair(
    lambda x, lo=-1.0, hi=1.0: (np.round(np.clip(x, lo, hi)), (x, lo, hi)),
    lambda g, c: g * ((c[0] >= c[1]) & (c[0] <= c[2])),
)


@pytest.mark.parametrize(
    ("operation", "arguments", "options", "expect"),
    [
        (SCALED, (X,), {"s": np.array(2.0)}, lambda g, x: g),
        (SCALED, (X,), {"s": np.array(2.0)}, lambda g, x, s: (g, (g * np.round(x)).sum())),
        (SCALED, (X,), {"s": np.array(2.0)}, lambda g, *inputs, **options: g * len(options)),
        (
            from_pair(lambda d: (np.round(d["x"]), d), lambda g, d: (g, 0 * g)),
            ({"x": X, "y": X},),
            {},
            lambda g, d: (g, 0 * d["y"]),
        ),
        (CUT, (X,), {"lo": -1.0}, lambda g, x: g * (abs(x) <= 1)),
        (CUT, (X,), {"lo": -0.5}, lambda g, x, lo: g * ((x >= lo) & (x <= 1))),
        (CUT, (X, -0.5), {}, lambda g, x, lo: g * ((x >= lo) & (x <= 1))),
    ],
)
def test_a_declared_function_is_called_like_the_operation(operation, arguments, options, expect):
    check_operation(operation, *arguments, expected_gradient=expect, **options)


def test_other_rules_still_apply():
    def forgetful(g, x):
        g *= 1
        return g

    with pytest.raises(CheckError) as caught:
        check_operation(from_pair(straight, forgetful), X, expected_gradient="straight-through", vary_inputs=False)
    assert caught.value.rule == "no mutation"


def test_an_unknown_or_unneeded_declaration():
    with pytest.raises(ValueError, match="'straight-through', 'reversed', a function of g"):
        check_operation(QUANTIZER, X, expected_gradient="stright-through")
    square = from_pair(lambda x: (x * x, x), lambda g, x: 2 * x * g)
    (note,) = check_operation(square, X, expected_gradient="a reason in words", vary_inputs=False).notes
    assert "is not needed" in note
