"""The mean of the two one-sided slopes equals the central difference."""


def slope(f, x, h):
    """Return the mean of the slopes to the right and to the left."""
    right, left = (f(x + h) - f(x)) / h, (f(x) - f(x - h)) / h
    return 0.5 * (right + left)


def step(x):
    """Return |x| times a power of two: close to the best step, and computed without rounding."""
    return 2.0**-17 * (1.0 if -1 < x < 1 else abs(x))
