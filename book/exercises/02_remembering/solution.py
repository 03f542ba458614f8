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
        to_b = -g * y / b  # the derivative with respect to b is -a / b^2, which is -y / b
        return unbroadcast(to_a, a), unbroadcast(to_b, b)  # a broadcast input gets the sum over its copies

    return y, vjp
