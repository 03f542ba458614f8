"""Rescale the old sum and add the new numbers in two steps."""

import numpy as np


def log_sum_exp(panels):
    peak, total = None, None
    for x in panels:
        panel_peak = x.max(axis=1)
        if peak is None:
            peak, total = np.full(len(x), -np.inf), np.zeros(len(x))
        new_peak = np.maximum(peak, panel_peak)
        shift = np.where(np.isinf(new_peak), 0, new_peak)
        total = total * np.exp(peak - shift)
        total = total + np.exp(x - shift[:, None]).sum(axis=1)
        peak = new_peak
    with np.errstate(divide="ignore"):
        return np.where(total == 0, -np.inf, np.log(total) + peak)
