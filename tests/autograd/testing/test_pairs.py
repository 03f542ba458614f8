"""Which gradients the backward function of a pair may leave out, and which hints its reports give."""

import numpy as np
import pytest

from autograd.testing import GradientError, check_operation, from_pair, gradcheck

X = np.random.default_rng(0).normal(size=(4, 6))
Y = np.random.default_rng(1).normal(size=(4, 6))


def mse_forward(p, y):
    return ((p - y) ** 2).mean(), (p, y)


def mse_backward(g, cache):
    p, y = cache
    return 2 * g * (p - y) / p.size


CONSTANT = "not checked: the gradient of {}, which the function treats as a constant"


@pytest.mark.parametrize(
    ("backward", "arguments", "options", "name"),
    [
        (mse_backward, (), {"y": Y}, "option y"),
        (lambda g, cache: {"dp": mse_backward(g, cache)}, (), {"y": Y}, "option y"),
        (lambda g, cache: (mse_backward(g, cache), None), (), {"y": Y}, "option y"),
        (lambda g, cache: (mse_backward(g, cache), None), (Y,), {}, "input 1"),
        (lambda g, cache: {"dp": mse_backward(g, cache), "dy": None}, (Y,), {}, "input 1"),
    ],
)
def test_a_constant_of_a_pair_needs_no_gradient(backward, arguments, options, name):
    for check in (check_operation, gradcheck):
        assert check(from_pair(mse_forward, backward), X, *arguments, **options).notes == [CONSTANT.format(name)]
    with pytest.raises(GradientError):
        check_operation(from_pair(mse_forward, lambda g, cache: 1.1 * mse_backward(g, cache)), X, y=Y)


def test_a_missing_gradient_of_a_positional_array_is_reported():
    with pytest.raises(GradientError, match="of p, y; got 1; try None as the gradient of a constant, or passing"):
        check_operation(from_pair(mse_forward, mse_backward), X, Y)


def test_running_means_in_a_dict_and_numpy_numbers_are_constants():
    def forward(x, gamma, state, scale):
        centered = (x - state["mean"]) * scale
        return centered * gamma, (centered, gamma, scale)

    def backward(g, cache):
        centered, gamma, scale = cache
        return g * gamma * scale, (g * centered).sum(axis=0)

    report = check_operation(from_pair(forward, backward), X, X[0], {"mean": X[1]}, scale=np.float64(0.5))
    assert len(report.notes) == 2 and all("constant" in note for note in report.notes)


def test_a_second_output_that_is_passed_as_a_saved_value_is_named():
    def step_forward(x, state):
        c = np.tanh(x + state)
        return c * c, c, (c,)

    def step_backward(dh, dc, cache):
        gradient = (dc + 2 * cache[0] * dh) * (1 - cache[0] ** 2)
        return gradient, gradient

    cause = "step_backward gets the second value that step_forward returns as its argument dc"
    with pytest.raises(GradientError, match=f"likely cause: {cause}; if the value is an output, return"):
        check_operation(from_pair(step_forward, step_backward), X, Y)
