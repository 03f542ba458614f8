"""The sign is flipped. Subtract the value at x - h from the value at x + h."""


def slope(f, x, h):
    return (f(x - h) - f(x + h)) / (2 * h)


def step(x):
    return 2.2e-16 ** (1 / 3) * max(abs(x), 1.0)
