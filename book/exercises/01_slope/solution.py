"""Exercise 1. A slope that a program can compute."""


def slope(f, x, h):
    """The slope of f at x, from two values of f that lie h to either side of x (the central difference)."""
    return (f(x + h) - f(x - h)) / (2 * h)  # 2 h apart: what even powers of h add to both sides cancels


def step(x):
    """The h, greater than 0, that makes `slope` best near x: about eps^(1/3), eps = 2.2e-16, times the size of x.

    Where x is smaller than 1, take 1 for its size.
    """
    size = max(abs(x), 1.0)  # rounding is a share of x: a step that is fine at 1 is lost at a million
    return 2.2e-16 ** (1 / 3) * size  # where the bend, h^2, and the rounding, eps / h, cost the same
