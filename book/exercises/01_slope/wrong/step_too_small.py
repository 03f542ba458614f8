"""1 + 1e-16 rounds to 1, so a step this small is lost. The best step is not the smallest one."""


def slope(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h)


def step(x):
    return 1e-16
