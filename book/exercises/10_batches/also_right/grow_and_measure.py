"""Adds a sentence, measures the rectangle, takes it back if that is too large."""


def batches(lengths, budget):
    """Measured, not reasoned."""
    order = [i for _, i in sorted((n, i) for i, n in enumerate(lengths))]
    found = []
    for i in order:
        grown = [*found[-1], i] if found else [i]
        if found and len(grown) * max(lengths[j] for j in grown) <= budget:
            found[-1] = grown
        else:
            found.append([i])
    return found
