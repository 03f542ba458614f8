"""The two points lie 2 h apart, and the difference is divided by h: the slope is twice too large."""


def slope(f, x, h):
    return (f(x + h) - f(x - h)) / h


def step(x):
    return 2.2e-16 ** (1 / 3) * max(abs(x), 1.0)
