"""The kit, for what nobody asks about: Tensors beside inputs and parameters, other masks and integers, stairs."""

import types

import numpy as np
import pytest

from autograd import Tensor, differentiable
from autograd import operations as ops
from autograd.testing import CheckError, GradientError, check_layer, check_operation
from models import Module, Parameter

X = np.random.default_rng(0).normal(size=(3, 4))


pytestmark = pytest.mark.usefixtures("registry")


class Hidden(Module):
    """x times what `hold` has put somewhere."""

    def __init__(self, hold):
        self.place = hold(Parameter(np.ones(4)))
        self.gain = Parameter(np.ones(4))

    def forward(self, x):
        return x * self.gain * self.found()

    def found(self):
        return self.place.hidden


def test_a_parameter_where_the_module_does_not_look_is_named():
    with pytest.raises(CheckError, match=r"to be an input or one of the layer's .*; got a Tensor \(4,\)") as caught:
        check_layer(Hidden(lambda p: types.SimpleNamespace(hidden=p)), X)
    assert caught.value.rule == "leaf"


def test_arrays_in_what_has_an_equality_of_its_own_are_no_obstacle():
    class InNamespace(Hidden):
        def found(self):
            return self.place.hidden.astype(self.gain.dtype)

    assert check_layer(InNamespace(lambda p: types.SimpleNamespace(hidden=Tensor(p.data))), X)
    assert check_layer(InNamespace(lambda p: types.SimpleNamespace(all=p.data, hidden=Tensor(p.data))), X)


def test_a_tensor_that_wants_a_gradient_is_named_by_its_place():
    class InDict(Hidden):
        def found(self):
            return self.place["a"][1].astype(self.gain.dtype)

    with pytest.raises(CheckError, match=r"got InDict.place\['a'\]\[1\] \(4,\)"):
        check_layer(InDict(lambda p: {"a": [None, Tensor(p.data, requires_grad=True)]}), X)


def test_a_tensor_in_the_closure_of_an_operation_is_noted():
    w = Tensor(np.ones(4), requires_grad=True)
    assert check_operation(lambda x: x * w.astype(x.dtype), X).notes == [
        "not compared: the gradient of a Tensor (4,) that is no input; try handing it over as one"
    ]
    assert check_operation(lambda x: x * w.detach().astype(x.dtype), X).notes == []


def test_a_tensor_that_a_layer_is_given_as_an_option_is_noted():
    class Scaled(Module):
        def forward(self, x, scale, more=()):
            return x * scale.astype(x.dtype) * sum((t.astype(x.dtype) for t in more), 1.0)

    one, other = (Tensor(np.ones(n), requires_grad=True) for n in (1, 4))
    notes = check_layer(Scaled(), X, scale=one, more=[other]).notes
    assert len(notes) == 2 and all("not compared: the gradient of a Tensor" in note for note in notes)


def test_modes_one_of_which_trains_may_come_in_any_order():
    """Running means that a call in training moves are no mistake of the mode after it."""

    class Running(Module):
        def __init__(self):
            self.mean = np.zeros(4)

        def forward(self, x):
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.data.mean(axis=0)
                return x - x.mean(axis=0)
            return x - self.mean.astype(x.dtype)

    for modes in (("train", "eval"), ("eval", "train"), ("eval",), ["train"]):
        check_layer(Running(), X, modes=modes)


def test_neither_domain_nor_reference_speak_for_other_masks_and_for_places_from_the_end():
    """The mean of nothing is none, though a reference may say 0; and a function may refuse what its reference takes."""

    @differentiable
    def mean_where(x, mask):
        with np.errstate(all="ignore"):
            n = mask.sum(axis=-1).astype(x.dtype)
            return (x * mask).sum(axis=-1) / n, lambda g: (g[..., None] * mask / n[..., None], None)

    @differentiable
    def rows(x, index):
        if index.size and index.min() < 0:
            raise ValueError("places from 0 on")
        return x[index], lambda g: (np.eye(len(x), dtype=x.dtype)[index].T @ g, None)

    def reference(x, mask):
        return (x * mask).sum(axis=-1) / np.maximum(1, mask.sum(axis=-1))

    everywhere, mask = (-np.inf, np.inf), (X > 0) | (np.arange(4) == 0)
    assert check_operation(mean_where, X, mask, domain=everywhere, reference=reference).variants > 10
    assert check_operation(rows, X, np.array([2, 0]), reference=lambda x, index: x[index]).variants > 10


def test_stairs_that_large_steps_pass_over_are_not_judged():
    @differentiable
    def floor(x):
        return np.floor(x), lambda g: (np.zeros_like(g),)

    assert any("moves in stairs" in reason for reason in check_operation(floor, X).unjudged)


def test_a_gradient_of_0_where_a_function_moves_is_wrong_however_large_the_numbers():
    @differentiable
    def cut_off(x):
        return 2 * x, lambda g: (2 * g * (abs(x) < 9e4),)

    with pytest.raises(GradientError, match="derived: very large numbers"):
        check_operation(cut_off, X)


def test_a_nearly_singular_matrix_is_not_judged():
    @differentiable
    def solve(a, b):
        x = np.linalg.solve(a, b)
        gradient = lambda g: np.linalg.solve(np.swapaxes(a, -1, -2), g)  # noqa: E731
        return x, lambda g: (-gradient(g) @ np.swapaxes(x, -1, -2), gradient(g))

    a, b = np.linspace(-5.03, 5.01, 9).reshape(3, 3), np.linspace(-5.03, 5.01, 6).reshape(3, 2)
    assert "the gradient itself is known to fewer digits" in str(check_operation(solve, a, b, derive=False).unjudged)


@pytest.mark.parametrize("operation", [ops.multiply, ops.add, ops.matmul, ops.maximum])
def test_right_operations_take_one_array_twice(operation):
    assert check_operation(operation, X[:, :3], X[:, :3].copy())
