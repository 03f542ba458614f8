"""All rows share one maximum. Each row needs its own: a row far below the shared one underflows to 0."""

import numpy as np


def log_sum_exp(panels):
    peak, total = -np.inf, 0.0
    for x in panels:
        new_peak = max(peak, x.max())
        shift = 0.0 if new_peak == -np.inf else new_peak
        total = total * np.exp(peak - shift) + np.exp(x - shift).sum(axis=1)
        peak = new_peak
    return np.log(total) + (0.0 if peak == -np.inf else peak)
