"""A broadcast input receives the sum of the gradients from all of its uses. You take their mean."""


def fitted(g, like):
    while g.ndim > like.ndim:
        g = g.mean(axis=0)
    for axis, side in enumerate(like.shape):
        if side == 1:
            g = g.mean(axis=axis, keepdims=True)
    return g


def divide(a, b):
    return a / b, lambda g: (fitted(g / b, a), fitted(-g * a / b**2, b))
