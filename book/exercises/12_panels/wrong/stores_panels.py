"""You store panels that the next ones overwrite. Two numbers per row are enough: the maximum and the sum."""

import numpy as np


def log_sum_exp(panels):
    x = np.concatenate(list(panels), axis=1)
    peak = x.max(axis=1)
    return peak + np.log(np.exp(x - peak[:, None]).sum(axis=1))
