"""Plain gradient tests: each operation once, on well-behaved numbers, compared with central differences.

docs/mutation-testing.md measures which bugs such tests miss. The file is not part of the suite:
`python -m autograd.testing mutate autograd.operations --tests tests/autograd/testing/plain_gradient_tests.py`.
"""

import numpy as np
import pytest

from autograd import Tensor
from autograd import neural as nn
from autograd import operations as ops
from npx import DropoutSpec, Key
from tests.user_layer import RMSNorm, rms_norm


def compare(function, *arrays, step=1e-5, tolerance=1e-3):
    """Compare the gradients of sum(function(arrays) * weights), for random weights, entry by entry."""
    tensors = [Tensor(x, requires_grad=True) for x in arrays]
    output = function(*tensors)
    weights = np.random.default_rng(1).normal(size=output.shape)
    output.backward(weights)
    for x, tensor in zip(arrays, tensors, strict=True):
        for index in np.ndindex(x.shape):
            value = x[index]
            sums = []
            for shifted in (value + step, value - step):
                x[index] = shifted
                sums.append((function(*map(Tensor, arrays)).data * weights).sum())
            x[index] = value
            assert abs((sums[0] - sums[1]) / (2 * step) - tensor.grad[index]) < tolerance


def numbers(*shape, seed=0):
    """Return positive numbers near 1."""
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape)


def signed(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


BINARY = {
    "add": ops.add,
    "subtract": ops.subtract,
    "multiply": ops.multiply,
    "divide": ops.divide,
    "maximum": ops.maximum,
    "minimum": ops.minimum,
    "where": lambda a, b: ops.where(np.arange(12).reshape(3, 4) % 2 == 0, a, b),
}
UNARY = {
    "negative": ops.negative,
    "power": lambda x: ops.power(x, 3),
    "exp": ops.exp,
    "log": ops.log,
    "sqrt": ops.sqrt,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "relu": lambda x: ops.relu(x - 1.0),
    "absolute": lambda x: ops.absolute(x - 1.0),
    "sum": lambda x: ops.sum(x, axis=1),
    "mean": lambda x: ops.mean(x, axis=1),
    "max": lambda x: ops.max(x, axis=1),
    "min": lambda x: ops.min(x, axis=1),
    "reshape": lambda x: ops.reshape(x, (4, 3)),
    "transpose": ops.transpose,
    "swapaxes": lambda x: ops.swapaxes(x, 0, 1),
    "broadcast_to": lambda x: ops.broadcast_to(x, (2, 3, 4)),
    "getitem": lambda x: ops.getitem(x, (slice(1, 3), [0, 2])),
    "astype": lambda x: ops.astype(x, "float64"),
    "softmax": nn.softmax,
    "dropout": lambda x: nn.dropout(x, DropoutSpec(0.3, Key(0, 0, 0))),
    "embedding": lambda x: nn.embedding(x, np.array([[0, 2], [1, 1]]), 2.0),
    "self_attention": lambda x: nn.self_attention(ops.reshape(x, (1, 2, 6)), 1, 2),
    "cross_entropy": lambda x: nn.cross_entropy(x, np.array([1, 0, 3])),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    compare(BINARY[name], numbers(3, 4), numbers(3, 4, seed=2))


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    compare(UNARY[name], numbers(3, 4))


def test_matmul():
    compare(ops.matmul, signed(3, 4), signed(4, 2, seed=2))


def test_concatenate():
    compare(lambda a, b: ops.concatenate(a, b, axis=1), signed(3, 4), signed(3, 2, seed=2))


def test_stack():
    compare(lambda a, b: ops.stack(a, b, axis=1), signed(3, 4), signed(3, 4, seed=2))


def test_layer_norm():
    compare(nn.layer_norm, signed(3, 4), signed(4, seed=2), signed(4, seed=3))


def test_dropout_residual_norm():
    drop = DropoutSpec(0.3, Key(0, 0, 0))
    norm = lambda x, r, gamma, beta: nn.dropout_residual_norm(x, r, gamma, beta, drop)  # noqa: E731
    compare(norm, signed(3, 4), signed(3, 4, seed=2), signed(4, seed=3), signed(4, seed=4))


def test_linear():
    compare(nn.linear, signed(3, 4), signed(4, 2, seed=2), signed(2, seed=3))


def test_attention():
    compare(nn.attention, signed(1, 3, 2, 2), signed(1, 3, 2, 2, seed=2), signed(1, 3, 2, 2, seed=3))


def test_cross_attention():
    compare(lambda q, kv: nn.cross_attention(q, kv, 2, 2), signed(1, 3, 4), signed(1, 3, 8, seed=2))


def test_linear_cross_entropy():
    compare(lambda x, w: nn.linear_cross_entropy(x, w, np.array([1, 0, 3])), signed(3, 4), signed(5, 4, seed=2))


def test_rms_norm():
    compare(rms_norm, signed(3, 4), signed(4, seed=2))


def test_rms_norm_layer():
    x = Tensor(np.ones((2, 3, 4), "float32"))
    assert RMSNorm(4)(x).shape == (2, 3, 4)
