"""The slope of 1 / b by b is -1 / b^2, with a square."""

from autograd.operations import unbroadcast


def divide(a, b):
    return a / b, lambda g: (unbroadcast(g / b, a), unbroadcast(-g * a / b, b))
