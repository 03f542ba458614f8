"""The two gradients are swapped. Return the gradient of a first, then the gradient of b."""

from autograd.operations import unbroadcast


def divide(a, b):
    return a / b, lambda g: (unbroadcast(-g * a / (b * b), b), unbroadcast(g / b, a))
