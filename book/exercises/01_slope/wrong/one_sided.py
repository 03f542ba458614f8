"""This is the slope to the right alone: f(x) stands where f(x - h) belongs. It is off by half a bend times h."""


def slope(f, x, h):
    return (f(x + h) - f(x)) / h


def step(x):
    return 2.2e-16 ** (1 / 3) * max(abs(x), 1.0)
