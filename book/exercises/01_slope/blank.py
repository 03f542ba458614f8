"""Exercise 1. A slope that a program can compute."""


def slope(f, x, h):
    """Return the slope of f at x, from the values of f at x - h and x + h."""
    ...  # yours


def step(x):
    """Return the step h > 0 with which `slope` is most accurate near x: its two errors are then equal.

    eps is 2.2e-16. The step is proportional to the size of x: |x|, or 1 if |x| is smaller.
    """
    ...  # yours
