"""Exercise 2. An operation and its vjp."""

from autograd.operations import unbroadcast


def divide(a, b):
    """Return a / b, for arrays that may be broadcast, and its vjp.

    The vjp takes g, the gradient with respect to the quotient, and returns a tuple of two arrays: the gradient with
    respect to a, in a's shape, and the gradient with respect to b, in b's shape. You may use `unbroadcast(g, like)`.
    """
    y = a / b

    def vjp(g):
        to_a = g / b  # the derivative with respect to a is 1 / b
        to_b = -g * y / b  # and with respect to b, -a / b^2; y is a / b already
        return unbroadcast(to_a, a), unbroadcast(to_b, b)  # an input that was used several times collects a sum

    return y, vjp
