"""Derivations 10 to 13: ties, Adam, a loss whose logits exceed the memory, and numerical derivatives."""

import numpy as np

import npx
from autograd import OPERATIONS
from autograd.testing.numerical import richardson
from tests.derivations.basics import softmax
from tests.derivations.lines import drawn, line, slopes

# 10


@drawn("ties and kinks")
def _(random):
    x = random.integers(-1, 3, size=(4, 3)).astype(float)  # with ties, and zeros
    return random.normal(size=(4, 1)), x, random.normal(size=(4, 3))


@line("ties and kinks")
def ties_1(g, x, h):
    gx = np.zeros(x.shape)
    for n, row in enumerate(x):
        winners = np.flatnonzero(row == row.max())
        for winner in winners:  # breaking the tie in favor of one entry selects it; take the mean over all ways
            gx[n, winner] += g[n, 0] / len(winners)
    return gx, np.where(x > 0, h, 0.0)  # at 0, the ReLU's derivative from the left


@line("ties and kinks")
def ties_2(g, x, h):
    top = x == x.max(axis=1, keepdims=True)
    return g * top / top.sum(axis=1, keepdims=True), h * (x > 0)


@line("ties and kinks")
def ties_3(g, x, h):
    gx = OPERATIONS["max"].__wrapped__(x, axis=1, keepdims=True)[1](g)[0]
    return gx, OPERATIONS["relu"].__wrapped__(x)[1](h)[0]


# 11


@drawn("Adam")
def _(random):
    p, g, m, v = random.normal(size=(4, 5))
    return p, 64 * g, m, v * v, int(random.integers(1, 30))


@line("Adam")
def adam_1(p, g, m, v, t, lr=0.01, b1=0.9, b2=0.98, eps=1e-3):
    g = g / 64  # the loss was multiplied by 64
    g = g * min(1, 1 / np.sqrt((g * g).sum()))  # clip the norm to 1
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return p - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps), m, v


@line("Adam")
def adam_2(p, g, m, v, t, lr=0.01, b1=0.9, b2=0.98, eps=1e-3):
    norm = np.sqrt((g * g).sum()) / 64
    g = g * (min(1, 1 / norm) / 64)  # both scalars in one factor
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return p - lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps), m, v


@line("Adam")
def adam_3(p, g, m, v, t, lr=0.01, b1=0.9, b2=0.98, eps=1e-3):
    g = g * (min(1, 64 / np.sqrt((g * g).sum())) / 64)
    m, v = m + (1 - b1) * (g - m), v + (1 - b2) * (g * g - v)
    root = np.sqrt(1 - b2**t)  # scale numerator and denominator by it: the corrections are two scalars per step
    return p - (lr * root / (1 - b1**t)) * m / (np.sqrt(v) + eps * root), m, v


@line("Adam")
def adam_4(p, g, m, v, t, lr=0.01, b1=0.9, b2=0.98, eps=1e-3):
    p, m, v = p.copy(), m.copy(), v.copy()
    scale = min(1, 64 / np.sqrt((g * g).sum())) / 64
    npx.adam(p, g, m, v, npx.adam_coefficients(t, lr, b1, b2, eps, grad_scale=scale))
    return p, m, v


# 12


@drawn("cross entropy in panels")
def _(random):
    return random.normal(size=(4, 3)), 2 * random.normal(size=(6, 3)), random.integers(1, 6, size=4)


@line("cross entropy in panels")
def panels_1(x, w, targets):
    rows = np.arange(len(x))
    return slopes(lambda x, w: -np.log(softmax(x @ w.T))[rows, targets].sum(), 1.0, x, w)


@line("cross entropy in panels")
def panels_2(x, w, targets):
    gz = softmax(x @ w.T) - (np.arange(6) == targets[:, None])  # p - q, then the two operands of the matmul
    return gz @ w, gz.T @ x


@line("cross entropy in panels")
def panels_3(x, w, targets):
    p = softmax(x @ w.T)
    gw = p.T @ x
    np.subtract.at(gw, targets, x)  # q is one-hot: subtract its terms from gw and gx, smaller than p
    return p @ w - w[targets], gw


@line("cross entropy in panels")
def panels_4(x, w, targets):
    gx, gw, peak, total = -w[targets], np.zeros(w.shape), np.full(len(x), -np.inf), np.zeros(len(x))
    panels = [slice(0, 2), slice(2, 4), slice(4, 6)]
    for part in panels:
        z = x @ w[part].T
        higher = np.maximum(peak, z.max(axis=1))
        total = total * np.exp(peak - higher) + np.exp(z - higher[:, None]).sum(axis=1)
        peak = higher
    for part in panels:
        p = np.exp(x @ w[part].T - peak[:, None]) / total[:, None]
        gx += p @ w[part]
        gw[part] = p.T @ x
    np.subtract.at(gw, targets, x)
    return gx, gw


@line("cross entropy in panels")
def panels_5(x, w, targets):
    return npx.linear_cross_entropy_grad(np.asarray(1.0), npx.linear_cross_entropy(x, w, targets)[1])


# 13


@drawn("the error of a central difference")
def _(random):
    return random.normal(size=5), float(random.uniform(0.5, 1.0))


def polynomial(c, x):
    """c_0 + c_1 x + ... + c_4 x^4."""
    return sum(c_k * x**k for k, c_k in enumerate(c))


@line("the error of a central difference")
def central_1(c, h):
    def central(h):
        return (polynomial(c, h) - polynomial(c, -h)) / (2 * h)

    return central(h / 2) + (central(h / 2) - central(h)) / 3


@line("the error of a central difference")
def central_2(c, h):
    def central(h):
        return c[1] + c[3] * h**2  # even powers are gone; c_3 = f'''/6

    return central(h / 2) + (central(h / 2) - central(h)) / 3


@line("the error of a central difference")
def central_3(c, h):
    return c[1] + c[3] * h**2 * (1 / 4 + (1 / 4 - 1) / 3)  # the bracket is 0


@line("the error of a central difference")
def central_4(c, h):
    return slopes(lambda x: polynomial(c, x), 1.0, np.zeros(1))[0]


@line("the error of a central difference")
def central_5(c, h):
    class Quiet:
        y0, noise = np.array([polynomial(c, 0.0)]), np.zeros(1)

    return richardson(lambda t: np.array([polynomial(c, t)]), Quiet, h, np.zeros(1, bool)).central[0]
