"""Python floats in two dicts."""

import math

import numpy as np


def log_sum_exp(panels):
    """Add one number at a time."""
    peaks, sums = {}, {}
    for x in panels:
        for row, numbers in enumerate(x.tolist()):
            for number in numbers:
                peak, total = peaks.get(row, -math.inf), sums.get(row, 0.0)
                if number == -math.inf:
                    peaks[row], sums[row] = peak, total
                elif number > peak:
                    peaks[row], sums[row] = number, total * math.exp(peak - number) + 1
                else:
                    sums[row] = total + math.exp(number - peak)
    return np.array([peaks[row] + math.log(sums[row]) if sums[row] else -math.inf for row in sorted(peaks)])
