"""The variations of a call: arrays by name and in containers, float options, shapes, magnitudes and dtypes."""

import itertools
import re
from functools import partial

import numpy as np
import pytest

from autograd import adds_in_place, differentiable
from autograd import operations as ops
from autograd.testing import CheckError, GradientError, check_layer, check_operation, gradcheck, undeclared
from autograd.testing.arguments import vary
from autograd.testing.problem import Problem
from models import Module, Parameter

X = np.random.default_rng(0).normal(size=(3, 4))
SEEDS = range(3)

pytestmark = pytest.mark.usefixtures("registry")


@differentiable
def scaled(x, gain):
    """x * gain, gain (D,)."""
    return x * gain, lambda g: (g * gain, (g * x).sum(axis=0))


@differentiable
def scaled_wrongly(x, gain):
    """x * gain; the gradient of gain lacks the factor x."""
    return x * gain, lambda g: (g * gain, g.sum(axis=0))


@differentiable
def weighted(x, weights=None):
    """x * weights, which are constants."""
    return x * weights, lambda g: (g * weights,)


class Scale(Module):
    """Calls a function of x and a gain that is passed by name or in containers."""

    def __init__(self, function):
        self.function = function

    def forward(self, x, gain):
        return self.function(x, gain["of"][0] if isinstance(gain, dict) else gain)


CALLS = {
    "by name": lambda f, **o: check_operation(f, X, gain=X[0], **o),
    "by name in gradcheck": lambda f, **o: gradcheck(f, X, gain=X[0], **o),
    "in a list": lambda f, **o: check_operation(lambda pair: f(*pair), [X, X[0]], **o),
    "in a dict": lambda f, **o: check_layer(Scale(f), X, {"of": (X[0],)}, modes=("eval",), **o),
    "to a layer by name": lambda f, **o: check_layer(Scale(f), X, gain=X[0], modes=("eval",), **o),
}


@pytest.mark.parametrize("call", CALLS)
def test_arrays_by_name_and_in_containers_are_checked(call):
    assert CALLS[call](scaled, **{} if "gradcheck" in call else {"vary_inputs": False}).notes == []
    for seed in SEEDS:
        with pytest.raises(GradientError, match=r"wrong gradient of (option gain|input .\['of'\]\[0\]|input 0\[1\])"):
            CALLS[call](scaled_wrongly, seed=seed)


def test_constant_arrays_by_name_are_noted_and_cast():
    report = check_operation(weighted, X, weights=X[0])
    assert report.notes == ["not checked: the gradient of option weights, which the function treats as a constant"]
    with pytest.raises(GradientError, match=r"weights=array\("):
        check_operation(
            differentiable(lambda x, weights: (x * weights, lambda g: (g,))), X, weights=X[0], vary_inputs=False
        )


# Options that are floats

COUNTER = itertools.count()


@differentiable
def tempered(x, temperature=1.0):
    """tanh(x / temperature); the gradient lacks the factor 1 / temperature."""
    y = np.tanh(x / temperature)
    return y, lambda g: (g * (1 - y * y),)


@differentiable
def tempered_right(x, temperature=1.0):
    y = np.tanh(x / temperature)
    return y, lambda g: (g * (1 - y * y) / temperature,)


@pytest.mark.parametrize("arguments, options", [((), {}), ((1.0,), {}), ((), {"temperature": 1.0})])
def test_float_options_are_moved_away_from_their_defaults(arguments, options):
    check_operation(tempered_right, X, *arguments, **options)
    with pytest.raises(GradientError, match="derived: (temperature=0.83|0.83 as input 1)") as caught:
        check_operation(tempered, X, *arguments, **options)
    assert "(1, 1) float64, in 1 of 1 entries" in str(caught.value), "shrunk"


@pytest.mark.parametrize(
    "random, note",
    [
        (np.random.random, "random numbers without a key: held fixed"),
        (lambda shape: next(COUNTER), "not checked, because repeated calls give different outputs"),
    ],
)
def test_an_option_that_makes_the_output_random_is_noted(random, note):
    @differentiable
    def noisy(x, noise=0.0):
        scale = (1 + noise * random(x.shape) if noise else np.ones_like(x)) * np.ones_like(x)
        return (x * scale).astype(x.dtype), lambda g: ((g * scale).astype(x.dtype),)

    assert check_operation(noisy, X).notes == [f"noise=0.13: {note}"]


@pytest.mark.parametrize("name, value, other", [("rtol", 0.3, 0.6), ("eps", 0.3, 0.6), ("x", 1e-5, 2e-5)])
def test_tolerances_and_small_floats_become_only_twice_as_large(name, value, other):
    assert vary(value, name) == pytest.approx(other)


# Shapes


@differentiable
def squeezed(x):
    """exp; the gradient of a single row loses its first axis."""
    y = np.exp(x)
    return y, lambda g: (g[0] * y[0] if len(x) == 1 else g * y,)


@differentiable
def biased(x, b):
    """x + b; the gradient of b is not summed over a single row."""
    return x + b, lambda g: (g, g.sum(axis=0) if len(g) > 1 else g)


class Bias(Module):
    def __init__(self, n):
        self.bias = Parameter(np.ones(n))

    def forward(self, x):
        return biased(x, self.bias)


SQUARE = X[:, :3]  # a square, in which a row's length may be mistaken for a column's


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_operation(squeezed, X),
        lambda: check_operation(biased, X, X[0]),
        lambda: check_layer(Bias(4), X, modes=("eval",)),
        lambda: check_layer(Bias(3), SQUARE, modes=("eval",)),
    ],
)
def test_wrong_shapes_at_derived_inputs_are_reported(check):
    with pytest.raises(GradientError, match="derived: 1 row: backward raised RuntimeError: .* to return") as caught:
        check()
    assert caught.value.rule == "valid gradient"


def test_shapes_that_may_be_a_coincidence_are_not_reported():
    check_operation(biased, SQUARE, SQUARE[0], compare_float32=False)


# Magnitudes


@pytest.mark.parametrize("bound", [-80, -30, -12, 12, 30, 80])
def test_one_sided_magnitudes_are_tried(bound):
    @differentiable
    def saturated(x):
        """softplus; the gradient is NaN where all of x is beyond the bound."""
        is_beyond = (x / bound > 1).all()
        return np.logaddexp(0, x).astype(x.dtype), lambda g: (g / (1 + np.exp(-x)) * (np.nan if is_beyond else 1),)

    with pytest.raises(GradientError, match="finite gradient"):
        check_operation(saturated, np.array([0.5, -0.25]), compare_float32=False)


# Accumulation and 16-bit floats


def doubling(update):
    @differentiable
    def double(x):
        def vjp(g, accumulate_into=()):
            if accumulate_into and accumulate_into[0] is not None:
                update(accumulate_into[0], 2 * g)
                return (accumulate_into[0],)
            return (2 * g,)

        return 2 * x, adds_in_place(vjp)

    return double


def overwrite(total, g):
    total[...] = g


def add_twice(total, g):
    total += 2 * g


@pytest.mark.parametrize("update", [overwrite, add_twice])
def test_vjps_that_accumulate_wrongly_are_found(update):
    for seed in SEEDS:
        with pytest.raises(CheckError, match="rule: accumulation"):
            check_operation(doubling(update), X, vary_inputs=False, seed=seed)
    check_operation(doubling(lambda total, g: np.add(total, g, out=total)), X, vary_inputs=False)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_float16_is_tried():
    @differentiable
    def sine(x):
        return np.sin(x), lambda g: (g * np.cos(x) * (x.dtype.type(3e4) * 4 / 12e4 if x.dtype == "float16" else 1),)

    for seed in SEEDS:
        with pytest.raises(AssertionError, match="rule: float16 accuracy"):
            check_operation(sine, X, vary_inputs=False, seed=seed)


def test_float16_inside_float32_is_found_in_small_gradients():
    @differentiable
    def huber(x):
        def vjp(g):
            rounded = g.astype("float16").astype(g.dtype) if g.dtype == "float32" else g
            return (rounded * np.clip(x, -1, 1),)

        return np.where(abs(x) < 1, x * x / 2, abs(x) - 0.5).astype(x.dtype), vjp

    for seed in SEEDS:
        with pytest.raises(AssertionError, match="(?s), inputs cast to float32: .*rule: float32 accuracy"):
            check_operation(huber, X, vary_inputs=False, seed=seed)


def test_bfloat16_is_tried():
    pytest.importorskip("ml_dtypes", reason="NumPy needs ml_dtypes for bfloat16")

    @differentiable
    def double(x):
        """2 x; for bfloat16, the digits of the gradient cancel."""
        offset = 1000 if x.dtype == "bfloat16" else 0
        return x + x, lambda g: (((g + g) + g.dtype.type(offset)) - g.dtype.type(offset),)

    for seed in SEEDS:
        with pytest.raises(AssertionError, match="rule: bfloat16 accuracy"):
            check_operation(double, X, vary_inputs=False, seed=seed)


def test_float16_is_not_required():
    """A vjp that computes with float64 constants is not written for float16."""

    @differentiable
    def sine(x):
        return np.sin(x), lambda g: (g * np.cos(x).astype("float64" if x.dtype == "float16" else x.dtype),)

    check_operation(sine, X, vary_inputs=False)


# Broadcast inputs


@pytest.mark.parametrize(("function", "number"), [(lambda x, y: x * y, 4), (lambda x, y: (x * x).sum(1) * y[:, 0], 3)])
def test_an_axis_of_length_1_is_tried_where_it_is_broadcast(function, number):
    """One column's sum of squares differs from that of the repeated column, so x is not tried with one column."""
    problem = Problem("f", lambda values: function(*values), [X, X + 1])
    names = [variant.name for variant in undeclared.shapes(problem)]
    assert sum("length 1" in name for name in names) == number


# Reports


def test_long_arrays_are_saved_and_lambdas_have_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    x = np.linspace(0, 1, 600).reshape(30, 20)
    with pytest.raises(CheckError) as caught:
        check_operation(lambda x: ops.exp(x), x, reference=lambda x: 2 * np.exp(x))
    line = str(caught.value).split("reproduce: ")[1]
    assert line.startswith("from numpy import load; ") and line.endswith("npy'), reference=reference)")
    with pytest.raises(CheckError) as second:
        exec(line, {"my_function": ops.exp, "reference": lambda x: 2 * np.exp(x)})
    assert second.value.rule == "reference"


def test_wide_gradients_are_listed_by_entry():
    with pytest.raises(GradientError) as caught:
        gradcheck(scaled_wrongly, np.linspace(1, 2, 40).reshape(2, 20), np.ones(20))
    lines = str(caught.value).splitlines()
    table = lines[lines.index("gradient of input 1, analytic | numerical:") + 1 :]
    assert re.fullmatch(r" {4}\(\d+,\) +\S+  \|  +\S+", table[0]) and "    ... and 8 more entries" in table


def shifted(x, seed):
    return x + seed


def test_an_option_with_the_name_of_a_setting_is_passed_by_position():
    x = np.array([[1.0, -2.0, 3.0]])
    with pytest.raises(TypeError, match="shifted needs the option 'seed', which is also an option of check_operation"):
        check_operation(shifted, x, seed=1)
    assert check_operation(shifted, x, 1).compared
    assert check_operation(partial(shifted, seed=1), x).compared
    assert check_operation(ops.astype, x, dtype="float32", output_dtype="float32").compared
    bound = partial(ops.astype, dtype="float32")
    assert check_operation(bound, x, output_dtype="float32").compared
    with pytest.raises(CheckError, match="expected an output of dtype float64") as caught:
        check_operation(bound, x)
    line = str(caught.value).split("reproduce: ")[1]
    assert "partial(astype, dtype='float32')" in line
    with pytest.raises(CheckError, match="expected an output of dtype float64"):
        exec(line, {})


def test_a_layer_whose_option_has_the_name_of_a_setting_names_it():
    class Scaled(Module):
        def forward(self, x, seed):
            return x * seed

    with pytest.raises(TypeError, match="needs the option 'seed', which is also an option of check_layer"):
        check_layer(Scaled(), np.ones((2, 3)), seed=1)
