"""Exercise 9. One step of Adam, and how large it is."""

import numpy as np


def rate(step, d_model, warmup):
    """Return the learning rate of the paper at a step, counted from 1.

    It rises in a straight line from 0 to its peak, (d_model warmup)^-0.5, at step `warmup`. From there on it falls in
    proportion to 1 / sqrt(step).
    """
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # the two are equal at step = warmup


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    """Return the parameters and both moments after update number `step` (from 1): a tuple (p, m, v) of new arrays.

    m is the moving average of g with decay beta1, and v is that of g^2 with decay beta2. Both start at zero, and are
    returned without the bias correction. p decreases by lr times the corrected m, divided by the typical size of a
    gradient: the square root of the corrected v, plus eps.
    """
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mhat = m / (1 - beta1**step)  # corrects the bias of the start at zero
    vhat = v / (1 - beta2**step)
    return p - lr * mhat / (np.sqrt(vhat) + eps), m, v  # return m and v uncorrected
