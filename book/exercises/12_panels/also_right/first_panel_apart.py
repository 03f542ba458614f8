"""Start from the first panel."""

import numpy as np


def log_sum_exp(panels):
    """Start with the maximum and the sum of the first panel."""
    first = next(panels)
    peak = first.max(axis=1)
    shift = np.where(np.isinf(peak), 0, peak)
    total = np.exp(first - shift[:, None]).sum(axis=1)
    for x in panels:
        new_peak = np.maximum(peak, x.max(axis=1))
        shift = np.where(np.isinf(new_peak), 0, new_peak)
        total = total * np.exp(peak - shift) + np.exp(x - shift[:, None]).sum(axis=1)
        peak = new_peak
    with np.errstate(divide="ignore"):
        return np.log(total) + np.where(np.isinf(peak), 0, peak)
