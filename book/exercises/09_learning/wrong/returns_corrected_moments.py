"""You return the corrected moments, so the next step corrects them again.

Return m and v uncorrected.
"""

import numpy as np


def rate(step, d_model, warmup):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    mhat, vhat = m / (1 - beta1**step), v / (1 - beta2**step)
    return p - lr * mhat / (np.sqrt(vhat) + eps), mhat, vhat
