"""Exercise 1. A slope that a program can compute."""


def slope(f, x, h):
    """Return the slope of f at x, from the values of f at x - h and x + h."""
    return (f(x + h) - f(x - h)) / (2 * h)  # even powers of h cancel in the difference


def step(x):
    """Return the step h > 0 with which `slope` is most accurate near x: its two errors are then equal.

    eps is 2.2e-16. The step is proportional to the size of x: |x|, or 1 if |x| is smaller.
    """
    size = max(abs(x), 1.0)  # rounding errors grow with |x|, so the step does too
    return 2.2e-16 ** (1 / 3) * size  # makes the errors from the bend, h^2, and from rounding, eps / h, equal
