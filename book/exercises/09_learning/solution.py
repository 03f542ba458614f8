"""Exercise 9. One step of Adam, and how large it is."""

import numpy as np


def rate(step, d_model, warmup):
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5): up for `warmup` steps, then down. The first step is step 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # the two are equal at step = warmup


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    """Parameters and both moments after update number `step`, which counts from 1: a tuple (p, m, v) of new arrays.

    m is the moving mean of g, v that of g^2: beta times the old one, 1 - beta times the new. Both begin as zeros, and
    are divided by 1 - beta^step, so that a mean of few is no smaller. p moves by lr m / (sqrt(v) + eps), against g.
    """
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mhat = m / (1 - beta1**step)  # of zeros and few numbers: what the zeros took is given back
    vhat = v / (1 - beta2**step)
    return p - lr * mhat / (np.sqrt(vhat) + eps), m, v  # m and v themselves stay uncorrected
