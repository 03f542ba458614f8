"""Move the moments towards g, and fold the corrections into the step size."""

import numpy as np


def rate(step, d_model, warmup):
    """Choose the smaller term by comparing the step with `warmup`."""
    return (step * warmup**-1.5 if step < warmup else step**-0.5) / np.sqrt(d_model)


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    """Use the reordering at the end of section 2 of Kingma and Ba."""
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (g**2 - v)
    root = (1 - beta2**step) ** 0.5
    return p - lr * root / (1 - beta1**step) * m / (np.sqrt(v) + eps * root), m, v
