"""The two points are 2 h apart, but you divide by h, so the slope is twice too large. Divide by 2 * h."""


def slope(f, x, h):
    return (f(x + h) - f(x - h)) / h


def step(x):
    return 2.2e-16 ** (1 / 3) * max(abs(x), 1.0)
