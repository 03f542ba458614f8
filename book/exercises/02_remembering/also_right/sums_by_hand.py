"""The sum over broadcast axes written out."""


def fit(g, shape):
    """g summed to a shape."""
    while g.ndim > len(shape):
        g = g.sum(axis=0)
    for axis, length in enumerate(shape):
        if length == 1:
            g = g.sum(axis=axis, keepdims=True)
    return g


def divide(a, b):
    """By the textbook."""

    def vjp(g):
        return fit(g / b, a.shape), fit(g * (-a / b**2), b.shape)

    return a / b, vjp
