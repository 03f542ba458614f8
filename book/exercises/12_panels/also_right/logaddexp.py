"""Apply NumPy's logaddexp column by column."""

import numpy as np


def log_sum_exp(panels):
    """Add one column at a time."""
    total = None
    for x in panels:
        for column in x.T:
            total = column.copy() if total is None else np.logaddexp(total, column)
    return total
