"""An engine in 60 lines: arrays that remember how they were made, four operations, a backward pass, a small network."""

from itertools import count

import numpy as np

numbers = count()


class Tensor:
    """An array, the tensors it was computed from, and the vjp of the operation that made it."""

    def __init__(self, data, parents=(), vjp=lambda g: ()):
        self.data, self.parents, self.vjp = np.asarray(data, float), parents, vjp
        self.number, self.grad = next(numbers), np.zeros(self.data.shape)

    def __add__(self, other):
        return Tensor(self.data + other.data, (self, other), lambda g: (fitted(g, self), fitted(g, other)))

    def __mul__(self, other):
        a, b = self.data, other.data
        return Tensor(a * b, (self, other), lambda g: (fitted(g * b, self), fitted(g * a, other)))

    def __matmul__(self, other):
        return Tensor(self.data @ other.data, (self, other), lambda g: (g @ other.data.T, self.data.T @ g))

    def tanh(self):
        y = np.tanh(self.data)
        return Tensor(y, (self,), lambda g: (g * (1 - y * y),))

    def backward(self):
        """Set the `grad` of every tensor that this one was computed from."""
        found, stack = {self}, [self]
        while stack:
            new = set(stack.pop().parents) - found
            found |= new
            stack += new
        self.grad = np.ones(self.data.shape)
        for tensor in sorted(found, key=lambda tensor: tensor.number, reverse=True):
            for parent, part in zip(tensor.parents, tensor.vjp(tensor.grad), strict=True):
                parent.grad = parent.grad + part


def fitted(g, like):
    """Sum g over the axes along which the array of `like` was stretched: `unbroadcast` of chapter 2."""
    g = g.sum(axis=tuple(range(g.ndim - like.data.ndim)))
    return g.sum(axis=tuple(i for i, n in enumerate(like.data.shape) if n == 1), keepdims=True)


def train(x, target, hidden=8, steps=300, rate=0.05):
    """Fit a network with one hidden layer to target values; return its squared error at each step, and its output."""
    random, losses, (n_in, n_out) = np.random.default_rng(0), [], (x.shape[1], target.shape[1])
    weights = [random.normal(size=shape) for shape in ((n_in, hidden), (hidden,), (hidden, n_out), (n_out,))]
    for _ in range(steps):
        w1, b1, w2, b2 = leaves = [Tensor(w) for w in weights]
        error = (Tensor(x) @ w1 + b1).tanh() @ w2 + b2 + Tensor(-target)
        (error * error).backward()  # g is 1 for every entry: the gradient of the sum of squares
        losses.append(float((error.data**2).sum()))
        weights = [w - rate * leaf.grad for w, leaf in zip(weights, leaves, strict=True)]
    return losses, error.data + target
