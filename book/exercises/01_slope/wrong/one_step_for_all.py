"""The step has to grow with |x|, on both sides of 0: at a million, rounding is a million times what it is at 1."""


def slope(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h)


def step(x):
    return 2.2e-16 ** (1 / 3)
