"""Exercise 12. A sum over more than memory holds."""

import numpy as np


def log_sum_exp(panels):
    """log(sum(exp(x))) of each row of a matrix that never exists as a whole.

    panels: an iterator that gives the matrix in panels of columns (rows, width), from left to right, one at a time; the
    next one is written over the last. Returns an array (rows,). What is remembered is two numbers a row. A row of only
    -inf gives -inf; there is at least one panel.
    """
    peak, total = -np.inf, 0.0  # the largest so far, and the sum of exp(x - peak)
    for x in panels:
        higher = np.maximum(peak, x.max(axis=1))
        safe = np.where(higher == -np.inf, 0, higher)  # -inf - -inf would be nan
        total = total * np.exp(peak - safe) + np.exp(x - safe[:, None]).sum(axis=1)  # the old sum under the new peak
        peak = higher
    with np.errstate(divide="ignore"):
        return np.log(total) + np.where(peak == -np.inf, 0, peak)
