"""Half of the slopes to either side, which is the same number."""


def slope(f, x, h):
    """The mean of the slope to the right and the slope to the left."""
    right, left = (f(x + h) - f(x)) / h, (f(x) - f(x - h)) / h
    return 0.5 * (right + left)


def step(x):
    """A power of two near it, so that x + h loses nothing."""
    return 2.0**-17 * (1.0 if -1 < x < 1 else abs(x))
