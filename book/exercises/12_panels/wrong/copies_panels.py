"""You store a copy of every panel, which uses the memory you wanted to save. Two numbers per row are enough."""

import numpy as np


def log_sum_exp(panels):
    x = np.concatenate([panel.copy() for panel in panels], axis=1)
    peak = x.max(axis=1)
    shift = np.where(peak == -np.inf, 0, peak)
    return peak + np.log(np.exp(x - shift[:, None]).sum(axis=1)) - (peak - shift if np.isfinite(peak).all() else 0)
