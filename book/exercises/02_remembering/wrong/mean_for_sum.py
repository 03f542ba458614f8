"""Where an input was stretched you take the mean of its gradients: every use adds its own, so they are summed."""


def fitted(g, like):
    while g.ndim > like.ndim:
        g = g.mean(axis=0)
    for axis, side in enumerate(like.shape):
        if side == 1:
            g = g.mean(axis=axis, keepdims=True)
    return g


def divide(a, b):
    return a / b, lambda g: (fitted(g / b, a), fitted(-g * a / b**2, b))
