"""`eps ** 1/3` is `(eps ** 1) / 3`, because ** binds tighter than /. Write `eps ** (1 / 3)`."""


def slope(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h)


def step(x):
    return 2.2e-16**1 / 3 * max(abs(x), 1.0)
