"""The derivative of 1 / b is -1 / b^2. Your gradient of b lacks the square."""

from autograd.operations import unbroadcast


def divide(a, b):
    return a / b, lambda g: (unbroadcast(g / b, a), unbroadcast(-g * a / b, b))
