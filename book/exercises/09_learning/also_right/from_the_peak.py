"""Write the rate in terms of its peak, and the averages as steps toward the new value."""

import numpy as np


def rate(step, d_model, warmup):
    """Rise to the peak, and fall from it."""
    peak = (d_model * warmup) ** -0.5
    if step <= warmup:
        return peak * step / warmup
    return peak * np.sqrt(warmup / step)


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    """Name the new moments."""
    new_m = m + (1 - beta1) * (g - m)
    new_v = v + (1 - beta2) * (g**2 - v)
    denominator = np.sqrt(new_v / (1 - beta2**step)) + eps
    return p - lr / (1 - beta1**step) * new_m / denominator, new_m, new_v
