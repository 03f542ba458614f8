"""Exercise 9. One step of Adam, and how large it is."""

import numpy as np


def rate(step, d_model, warmup):
    """Return d_model^-0.5 min(step^-0.5, step warmup^-1.5). The first step is 1; the rate rises until step `warmup`."""
    ...  # yours


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    """Return the parameters and both moments after update number `step` (from 1): a tuple (p, m, v) of new arrays.

    m is the moving average of g, and v that of g^2: beta times the old value plus 1 - beta times the new one. Both
    start at zero. To correct for that, the update divides them by 1 - beta^step, without changing the m and v that it
    returns. p moves by lr m / (sqrt(v) + eps), against the gradient.
    """
    ...  # yours
