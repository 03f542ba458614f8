"""Exercise 2. An operation and its vjp."""

from autograd.operations import unbroadcast


def divide(a, b):
    """Return a / b, for arrays that may be broadcast, and its vjp.

    The vjp takes g, the gradient with respect to the quotient, and returns a tuple of two arrays: the gradient with
    respect to a, in a's shape, and the gradient with respect to b, in b's shape. You may use `unbroadcast(g, like)`.
    """
    y = ...  # yours

    def vjp(g):
        return (..., ...)  # yours

    return y, vjp
