"""The derivatives of a / b are 1 / b and -a / b^2. Multiply each by g, and sum it to the shape of its input."""

import numpy as np

from autograd import OPERATIONS
from book.exercise import draw, gradient_check, operation


def right(a, b):
    return OPERATIONS["divide"].__wrapped__(a, b)


def edges(seed):
    yield np.array([6.0]), np.array([2.0])
    yield np.array([1.0, 2.0]), np.array([4.0, 5.0])
    yield np.array([1.0, 2.0]), np.array([4.0])


def drawn(seed):
    for first, second in (((3,), (1,)), ((1,), (3,)), ((2, 1), (2,)), ((2,), (2, 2)), ((), (2,)), ((2, 1), (1, 3))):
        b = draw(seed, *second)
        yield draw(seed + 1, *first), np.where(b < 0, b - 0.5, b + 0.5)


STAGES = operation("divide", right, edges, drawn, differentiated=2)
GRADIENT_CHECK = gradient_check("divide", draw(1, 2, 3), abs(draw(2, 3)) + 0.5)
NAMES = {
    "y": "a / b",
    "to_a": "the gradient of a before its sum",
    "to_b": "the gradient of b before its sum",
    "r": "1 / b",
}
AFTER = """\
The real one (autograd/operations.py, `divide`) also handles an input that is a plain Python number: it needs no
gradient, so none is computed. The decorator @differentiable turns the function into an operation on Tensors."""
