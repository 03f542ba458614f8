"""These are the slopes alone. What came in, g, says how much each output counts: multiply by it."""

from autograd.operations import unbroadcast


def divide(a, b):
    return a / b, lambda g: (unbroadcast(0 * g + 1 / b, a), unbroadcast(0 * g - a / (b * b), b))
