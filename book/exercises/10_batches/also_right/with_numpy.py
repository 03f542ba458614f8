"""A stable argsort, and slices."""

import numpy as np


def batches(lengths, budget):
    """Slices of the order."""
    order = np.argsort(np.array(lengths, int), kind="stable")
    found, start = [], 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * lengths[order[end]] <= budget:
            end += 1
        found.append(order[start:end].tolist())
        start = end
    return found
