"""A stable argsort and slices."""

import numpy as np


def batches(lengths, budget):
    """Cut the sorted order into slices."""
    order = np.argsort(np.array(lengths, int), kind="stable")
    result, start = [], 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * lengths[order[end]] <= budget:
            end += 1
        result.append(order[start:end].tolist())
        start = end
    return result
