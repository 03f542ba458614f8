"""Exercise 12. A sum over a matrix that does not fit in memory."""

import numpy as np


def log_sum_exp(panels):
    """Return log(sum(exp(x))) of each row, as an array (rows,), for a matrix that is never completely in memory.

    `panels` is an iterator over panels of columns (rows, width), from left to right. There is at least one panel.
    The iterator overwrites each panel with the next. Remember only two numbers per row. A row of only -inf gives -inf.
    """
    peak, total = -np.inf, 0.0  # the maximum so far, and the sum of exp(x - peak)
    for x in panels:
        new_peak = np.maximum(peak, x.max(axis=1))
        shift = np.where(new_peak == -np.inf, 0, new_peak)  # -inf - -inf would be nan
        total = total * np.exp(peak - shift) + np.exp(x - shift[:, None]).sum(axis=1)  # rescale the old sum
        peak = new_peak
    with np.errstate(divide="ignore"):
        return np.log(total) + np.where(peak == -np.inf, 0, peak)
