"""The gradient checker on arrays of a GPU, on the strict fake of CuPy."""

import numpy as np
import pytest

import npx
from autograd import differentiable
from autograd import operations as ops
from autograd.testing import CheckError, GradientError, check_gradient, check_operation, gradcheck
from tests.cases.base import check_edges
from tests.fakes.strict_cupy import device

X = np.random.default_rng(0).normal(size=(6, 7))  # more entries than are perturbed one by one


@pytest.fixture(autouse=True)
def cupy(registry):
    with device(cuda=True) as module:
        yield module


@pytest.mark.parametrize(
    "entry", ["layer AlibiBias", "operation unfold", "operation add_constant", "layer TokenTypeEmbedding"]
)
def test_registry_entries_are_right(entry):
    check_edges(entry)


@pytest.mark.parametrize("function", [ops.tanh, ops.add, ops.maximum])
def test_inputs_may_come_from_the_host(function):
    inputs = [X] * (1 if function is ops.tanh else 2)
    assert gradcheck(function, *inputs).compared
    assert check_operation(function, *inputs).variants


def test_integers_follow_the_floats_to_the_device():
    assert check_operation(lambda x, rows: x[rows], X, np.array([0, 2, -1]))


def test_a_pair_of_functions_computes_on_the_device(cupy):
    def forward(x):
        assert isinstance(x, cupy.ndarray)
        return np.exp(x)

    assert check_gradient(forward, lambda g, x: g * np.exp(x), X, vary_inputs=False)


@pytest.mark.parametrize("position", [0, 33])
def test_a_wrong_entry_is_found_on_the_device(position):
    def wrong(x):
        return 2 * x, lambda g: (2.0 * g + 0.1 * g * (npx.arange(x.size).reshape(x.shape) == position),)

    with pytest.raises(GradientError, match="wrong gradient of input 0"):
        gradcheck(differentiable(wrong), X)


def test_incoming_gradients_keep_their_layout_on_the_device():
    strides = set()

    def double(x):
        def vjp(g):
            strides.add(g.strides)
            return (2 * g,)

        return 2 * x, vjp

    check_operation(differentiable(double), X, vary_inputs=False)
    assert strides >= {(56, 8), (56, -8), (112, 16), (8, 48), (0, 0)}


def test_a_function_that_writes_to_its_input_changes_only_a_copy():
    x = npx.asarray(X)

    def wrong(x):
        x.data[...] += 0.1
        return ops.tanh(x)

    with pytest.raises(CheckError, match="no mutation"):
        check_operation(wrong, x)
    assert np.array_equal(npx.to_host(x), X)
