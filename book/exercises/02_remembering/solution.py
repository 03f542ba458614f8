"""Exercise 2. An operation that remembers how to go back."""

from autograd.operations import unbroadcast


def divide(a, b):
    """a / b for arrays that may be broadcast, and its vjp.

    Returns the quotient and a function that takes g, the gradient with respect to it, and gives a tuple of two arrays:
    the gradient with respect to a, of a's shape, and with respect to b, of b's shape. `unbroadcast(g, like)` is given.
    """
    y = a / b

    def vjp(g):
        to_a = g / b  # the slope by a is 1 / b
        to_b = -g * y / b  # the slope by b is -a / b^2, and a / b is there already
        return unbroadcast(to_a, a), unbroadcast(to_b, b)  # what was used several times collects a sum

    return y, vjp
