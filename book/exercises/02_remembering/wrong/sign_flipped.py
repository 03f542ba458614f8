"""A larger b makes the quotient smaller, so the derivative with respect to b must be negative."""

from autograd.operations import unbroadcast


def divide(a, b):
    return a / b, lambda g: (unbroadcast(g / b, a), unbroadcast(g * a / (b * b), b))
