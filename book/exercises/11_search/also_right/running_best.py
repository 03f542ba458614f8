"""Track only the best finished sentence, and select prefixes with a heap."""

import heapq

END = 0


def beam_search(next_log_p, beam, max_length, alpha):
    """Update the best sentence whenever a better one ends."""
    best, live = ([], float("-inf")), [(0.0, ())]
    for length in range(max_length):
        penalty = ((6 + length) / 6) ** alpha
        candidates = []
        for log_p, prefix in live:
            row = next_log_p(prefix)
            score = (log_p + row[END]) / penalty
            if score > best[1]:
                best = (list(prefix), score)
            candidates += [(log_p + p, (*prefix, t)) for t, p in enumerate(row) if t != END]
        live = heapq.nlargest(beam, candidates)
    return best
