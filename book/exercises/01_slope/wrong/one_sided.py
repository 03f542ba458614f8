"""This is a one-sided slope, whose error is proportional to h. Use f(x - h) in place of f(x), and divide by 2 * h."""


def slope(f, x, h):
    return (f(x + h) - f(x)) / h


def step(x):
    return 2.2e-16 ** (1 / 3) * max(abs(x), 1.0)
