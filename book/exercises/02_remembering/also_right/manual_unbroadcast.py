"""Write out the sum over the broadcast axes."""


def sum_to(g, shape):
    """Sum g down to a shape."""
    while g.ndim > len(shape):
        g = g.sum(axis=0)
    for axis, length in enumerate(shape):
        if length == 1:
            g = g.sum(axis=axis, keepdims=True)
    return g


def divide(a, b):
    """Use the quotient rule as in a textbook."""

    def vjp(g):
        return sum_to(g / b, a.shape), sum_to(g * (-a / b**2), b.shape)

    return a / b, vjp
