"""Exercise 2. An operation that remembers how to go back."""

from autograd.operations import unbroadcast


def divide(a, b):
    """a / b for arrays that may be broadcast, and its vjp.

    Returns the quotient and a function that takes g, the gradient with respect to it, and gives a tuple of two arrays:
    the gradient with respect to a, of a's shape, and with respect to b, of b's shape. `unbroadcast(g, like)` is given.
    """
    y = ...  # yours

    def vjp(g):
        return (..., ...)  # yours

    return y, vjp
