"""Exercise 1. A slope that a program can compute."""


def slope(f, x, h):
    """The slope of f at x, from two values of f that lie h to either side of x (the central difference)."""
    ...  # yours


def step(x):
    """The h, greater than 0, that makes `slope` best near x: about eps^(1/3), eps = 2.2e-16, times the size of x.

    Where x is smaller than 1, take 1 for its size.
    """
    ...  # yours
