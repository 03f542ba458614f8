"""The rows share one largest number. Each row needs its own, or a row far below it is rounded to 0."""

import numpy as np


def log_sum_exp(panels):
    peak, total = -np.inf, 0.0
    for x in panels:
        higher = max(peak, x.max())
        safe = 0.0 if higher == -np.inf else higher
        total = total * np.exp(peak - safe) + np.exp(x - safe).sum(axis=1)
        peak = higher
    return np.log(total) + (0.0 if peak == -np.inf else peak)
