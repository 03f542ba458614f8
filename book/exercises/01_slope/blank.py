"""Exercise 1. A slope that a program can compute."""


def slope(f, x, h):
    """Return the slope of f at x as a central difference: the values of f at x - h and x + h, over their distance."""
    ...  # yours


def step(x):
    """Return the step h > 0 that makes `slope` most accurate near x: about eps^(1/3) times the size of x.

    eps is 2.2e-16. The size of x is |x|, but at least 1.
    """
    ...  # yours
