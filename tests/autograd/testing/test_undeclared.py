"""Reports on stray Tensors, undeclared masks and integers, and functions that the checker cannot judge."""

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
    """x * gain times a parameter that `store` hides."""

    def __init__(self, store):
        self.container = store(Parameter(np.ones(4)))
        self.gain = Parameter(np.ones(4))

    def forward(self, x):
        return x * self.gain * self.hidden()

    def hidden(self):
        return self.container.hidden


def test_parameter_that_the_module_does_not_find_is_reported():
    with pytest.raises(CheckError, match=r"to be an input or one of the layer's .*; got a Tensor \(4,\)") as caught:
        check_layer(Hidden(lambda p: types.SimpleNamespace(hidden=p)), X)
    assert caught.value.rule == "registered parameters"


def test_buffers_whose_equality_is_ambiguous_are_restored():
    class InNamespace(Hidden):
        def hidden(self):
            return self.container.hidden.astype(self.gain.dtype)

    assert check_layer(InNamespace(lambda p: types.SimpleNamespace(hidden=Tensor(p.data))), X)
    assert check_layer(InNamespace(lambda p: types.SimpleNamespace(all=p.data, hidden=Tensor(p.data))), X)


def test_stray_tensor_is_named_by_its_attribute():
    class InDict(Hidden):
        def hidden(self):
            return self.container["a"][1].astype(self.gain.dtype)

    with pytest.raises(CheckError, match=r"got InDict.container\['a'\]\[1\] \(4,\)"):
        check_layer(InDict(lambda p: {"a": [None, Tensor(p.data, requires_grad=True)]}), X)


def test_tensor_in_the_closure_of_an_operation_is_noted():
    w = Tensor(np.ones(4), requires_grad=True)
    assert check_operation(lambda x: x * w.astype(x.dtype), X).notes == [
        "not compared: the gradient of a Tensor (4,) that is not an input; try passing it as an input"
    ]
    assert check_operation(lambda x: x * w.detach().astype(x.dtype), X).notes == []


def test_tensor_passed_as_an_option_is_noted():
    class Scaled(Module):
        def forward(self, x, scale, more=()):
            return x * scale.astype(x.dtype) * sum((t.astype(x.dtype) for t in more), 1.0)

    one, other = (Tensor(np.ones(n), requires_grad=True) for n in (1, 4))
    notes = check_layer(Scaled(), X, scale=one, more=[other]).notes
    assert len(notes) == 2 and all("not compared: the gradient of a Tensor" in note for note in notes)


def test_modes_may_come_in_any_order():
    """Training may update running means, which is not an error of the mode that is checked next."""

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


def test_domain_and_reference_do_not_cover_empty_masks_and_negative_indices():
    """A reference may return 0 where the function gives NaN, and accept inputs that the function rejects."""

    @differentiable
    def mean_where(x, mask):
        with np.errstate(all="ignore"):
            n = mask.sum(axis=-1).astype(x.dtype)
            return (x * mask).sum(axis=-1) / n, lambda g: (g[..., None] * mask / n[..., None], None)

    @differentiable
    def rows(x, index):
        if index.size and index.min() < 0:
            raise ValueError("indices from 0 on")
        return x[index], lambda g: (np.eye(len(x), dtype=x.dtype)[index].T @ g, None)

    def reference(x, mask):
        return (x * mask).sum(axis=-1) / np.maximum(1, mask.sum(axis=-1))

    everywhere = (-np.inf, np.inf)
    mask = (X > 0) | (np.arange(4) == 0)
    assert check_operation(mean_where, X, mask, domain=everywhere, reference=reference).variants > 10
    assert check_operation(rows, X, np.array([2, 0]), reference=lambda x, index: x[index]).variants > 10


def test_stairs_shorter_than_the_steps_are_inconclusive():
    @differentiable
    def floor(x):
        return np.floor(x), lambda g: (np.zeros_like(g),)

    assert any("is a staircase" in reason for reason in check_operation(floor, X).inconclusive)


def test_zero_gradient_at_large_inputs_is_wrong():
    @differentiable
    def cut_off(x):
        return 2 * x, lambda g: (2 * g * (abs(x) < 9e4),)

    with pytest.raises(GradientError, match="derived: very large numbers"):
        check_operation(cut_off, X)


def test_nearly_singular_matrix_is_inconclusive():
    @differentiable
    def solve(a, b):
        x = np.linalg.solve(a, b)
        gradient = lambda g: np.linalg.solve(np.swapaxes(a, -1, -2), g)  # noqa: E731
        return x, lambda g: (-gradient(g) @ np.swapaxes(x, -1, -2), gradient(g))

    a = np.linspace(-5.03, 5.01, 9).reshape(3, 3)
    b = np.linspace(-5.03, 5.01, 6).reshape(3, 2)
    assert "rounding the inputs changes" in str(check_operation(solve, a, b, vary_inputs=False).inconclusive)


@pytest.mark.parametrize("operation", [ops.multiply, ops.add, ops.matmul, ops.maximum])
def test_one_array_may_be_passed_twice(operation):
    assert check_operation(operation, X[:, :3], X[:, :3].copy())
