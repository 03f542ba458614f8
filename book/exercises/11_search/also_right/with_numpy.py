"""A table of log-probabilities for each length."""

import numpy as np

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    """Sort all continuations of a length at once."""
    prefixes, totals, ended = [()], np.zeros(1), []
    for n in range(1, max_length + 1):
        grid = totals[:, None] + np.array([next_log_p(prefix) for prefix in prefixes])
        penalty = ((5 + n) / 6) ** alpha
        ended += [(total / penalty, prefix) for total, prefix in zip(grid[:, END], prefixes, strict=True)]
        grid[:, END] = -np.inf
        order = np.argsort(-grid, axis=None, kind="stable")[: min(beam, grid.size - len(prefixes))]
        rows, tokens = np.unravel_index(order, grid.shape)
        prefixes, totals = [(*prefixes[r], int(t)) for r, t in zip(rows, tokens, strict=True)], grid[rows, tokens]
    score, prefix = max(ended)
    return list(prefix), float(score)
