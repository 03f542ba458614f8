"""Layers of users: bugs in one mode, frozen parameters, constants in containers, and layers without a base class."""

import numpy as np
import pytest

from autograd import Tensor, differentiable
from autograd.testing import CheckError, GradientError, check_layer, check_operation
from models import Module, Parameter

X = np.random.default_rng(0).normal(size=(4, 6))

pytestmark = pytest.mark.usefixtures("registry")


class Scaled(Module):
    """x times a parameter; in one mode, `function` is applied to both."""

    def __init__(self, function, training=False):
        self.scale = Parameter(np.ones(6, "float32"))
        self.function, self.mode = function, training

    def forward(self, x):
        return self.function(x, self.scale) if self.training == self.mode else x * self.scale


@differentiable
def clipped(x, scale):
    """The gradient ignores the clipping, which the given values do not reach."""
    return np.clip(x * scale, -3, 3), lambda g: (g * scale, (g * x).sum(axis=0))


@differentiable
def wrong_for_one_row(x, scale):
    return x * scale, lambda g: (g * scale, (g * x).sum(axis=0) * (2 if len(x) == 1 else 1))


@pytest.mark.parametrize("function", [clipped, wrong_for_one_row])
@pytest.mark.parametrize("training", [False, True])
def test_a_bug_in_one_mode_that_the_given_input_does_not_show_is_found(function, training):
    for modes in (("train", "eval"), ("eval", "train")):
        with pytest.raises(GradientError, match=f"{'train' if training else 'eval'} mode, derived: "):
            check_layer(Scaled(function, training), X, modes=modes)


def test_equal_modes_are_checked_once():
    layer = Scaled(lambda x, scale: x * scale)
    assert check_layer(layer, X).variants == check_layer(layer, X, modes=("train",)).variants


@pytest.mark.parametrize("modes", [("train", "eval"), ("eval",)])
def test_random_numbers_without_a_key_in_evaluation_mode_are_reported(modes):
    class Noisy(Module):
        def forward(self, x):
            return x * (np.random.random(x.shape) > 0.5).astype(x.dtype)

    with pytest.raises(CheckError, match="likely cause: random numbers are drawn although the layer is not in tr") as e:
        check_layer(Noisy(), X, modes=modes)
    assert e.value.rule == "determinism"
    assert check_layer(Noisy(), X, modes=("train",)).compared


def test_frozen_parameters_are_constants():
    @differentiable
    def linear(x, w):
        return x @ w, lambda g: (g @ w.T, None)

    class Frozen(Module):
        def __init__(self):
            self.w = Parameter(np.ones((6, 5), "float32"))
            self.w.requires_grad = False

        def forward(self, x):
            return linear(x, self.w)

    layer = Frozen()
    note = "not checked: the gradient of parameter w, which requires no gradient"
    assert check_layer(layer, X).notes == [note]
    assert layer.w.dtype == "float32" and not layer.w.requires_grad


def test_the_line_that_reproduces_a_failure_sets_frozen_parameters():
    @differentiable
    def scale(x, w):
        return x * w, lambda g: (g, None)

    layer = Scaled(scale)
    layer.scale.requires_grad = False
    layer.scale.data[:] = 3
    with pytest.raises(GradientError) as caught:
        check_layer(layer, X, vary_inputs=False)
    line = str(caught.value).split("reproduce: ")[1]
    layer.scale.data[:] = 1  # with this value, the gradient is right
    with pytest.raises(GradientError):
        exec(line, {"layer": layer})


TABLE = np.linspace(0, 1, 6, dtype="float32")


class WithTables(Module):
    def __init__(self, tables, key):
        self.tables, self.key = tables, key
        self.scale = Parameter(np.ones(6, "float32"))

    def forward(self, x):
        return x * self.scale + self.tables[self.key]


@pytest.mark.parametrize(("tables", "key"), [([TABLE], 0), ((TABLE,), 0), ({"a": TABLE}, "a")])
def test_float32_constants_in_containers_are_cast_and_restored(tables, key):
    layer = WithTables(tables, key)
    check_layer(layer, X)
    assert layer.tables is tables and tables[key] is TABLE


def test_another_float32_constant_is_explained():
    class WithGlobal(Module):
        def forward(self, x):
            return x + TABLE

    with pytest.raises(TypeError, match=r"attributes to float64: try .astype\(x.dtype\) on every other array"):
        check_layer(WithGlobal(), X)


class Plain:
    """A layer without a base class, with a buffer."""

    def __init__(self):
        self.scale = Tensor(np.ones(6), requires_grad=True)
        self.mean = np.zeros(6)
        self.training = True

    def named_parameters(self):
        return [("scale", self.scale)]

    def train(self):
        self.training = True

    def eval(self):
        self.training = False

    def __call__(self, x):
        y = (x - self.mean.astype(x.dtype)) * self.scale
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.data.mean(axis=0)
        return y


def test_the_buffers_of_a_layer_without_modules_are_held_fixed():
    layer = Plain()
    assert check_layer(layer, X).notes == ["train mode: buffers that each call changes: held fixed (mean)"]
    assert not layer.mean.any() and layer.training


def test_a_layer_without_floats_has_nothing_to_check():
    class Ones(Module):
        def forward(self, ids):
            return Tensor(np.ones(len(ids)))

    with pytest.raises(TypeError, match="check_layer: Ones: expected a floating-point input; got int64"):
        check_layer(Ones(), np.array([1, 2]))


class Table(Module):
    """A layer with arrays in a dictionary, such as running statistics; all of them are exact in float16."""

    def __init__(self, containers):
        self.gain = Parameter(np.ones(3, "float32"))
        self.statistics = containers({"mean": np.zeros(3, "float32"), "scale": np.full(3, 2, "float32")})

    def forward(self, x):
        values = [*self.statistics.values()] if type(self.statistics) is dict else self.statistics
        return (x - values[0]) * self.gain * values[1]


@pytest.mark.parametrize("containers", [dict, lambda d: [*d.values()], lambda d: tuple(d.values())])
def test_arrays_in_containers_may_be_exact_in_16_bits(containers):
    check_layer(Table(containers), np.random.default_rng(0).normal(size=(4, 3)))


def test_a_vjp_that_computes_with_an_option_as_an_array_is_right():
    def scaled(x, scale):
        array = scale.data if isinstance(scale, Tensor) else scale

        @differentiable
        def divide(x):
            return x / array, lambda g: (g / scale,)  # fails for a Tensor

        return divide(x)

    notes = check_operation(scaled, X, scale=np.abs(X) + 1).notes
    assert any("the gradient of option scale, which the function treats as a constant" in note for note in notes)


def test_an_input_that_only_the_vjp_rejects_is_noted():
    @differentiable
    def doubled(x):
        def vjp(g):
            assert g.shape[0] > 1, "expected several rows"
            return (2 * g,)

        return 2 * x, vjp

    assert any(note.endswith("which only the vjp rejects") for note in check_operation(doubled, X).notes)


def test_a_layer_with_frozen_parameters_and_ids_has_nothing_to_check():
    layer = Table(dict)
    layer.gain.requires_grad = False
    with pytest.raises(TypeError, match="expected a parameter that requires a gradient; got only frozen ones"):
        check_layer(layer, np.array([[0, 1, 2]]))
