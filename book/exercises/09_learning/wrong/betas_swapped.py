"""beta1 and beta2 are swapped: beta1 belongs to the average of g, beta2 to the average of g squared."""

import numpy as np


def rate(step, d_model, warmup):
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    m = beta2 * m + (1 - beta2) * g
    v = beta1 * v + (1 - beta1) * g * g
    return p - lr * (m / (1 - beta2**step)) / (np.sqrt(v / (1 - beta1**step)) + eps), m, v
