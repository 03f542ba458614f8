"""Loop over the parameters with Python floats."""

import math

import numpy as np


def rate(step, d_model, warmup):
    """Take a single square root, at the end."""
    return math.sqrt(min(1 / step, step**2 / warmup**3) / d_model)


def adam(p, g, m, v, step, lr, beta1, beta2, eps):
    """Update one number at a time."""
    new = []
    for p_i, g_i, m_i, v_i in zip(p, g, m, v, strict=True):
        m_i, v_i = beta1 * m_i + (1 - beta1) * g_i, beta2 * v_i + (1 - beta2) * g_i * g_i
        move = lr * (m_i / (1 - beta1**step)) / (math.sqrt(v_i / (1 - beta2**step)) + eps)
        new.append((p_i - move, m_i, v_i))
    p, m, v = (np.array(x) for x in zip(*new, strict=True))
    return p, m, v
