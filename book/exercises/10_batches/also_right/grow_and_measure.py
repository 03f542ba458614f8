"""Add each sentence, measure the rectangle, and undo the addition if it is too large."""


def batches(lengths, budget):
    """Measure each candidate batch."""
    order = [i for _, i in sorted((n, i) for i, n in enumerate(lengths))]
    result = []
    for i in order:
        grown = [*result[-1], i] if result else [i]
        if result and len(grown) * max(lengths[j] for j in grown) <= budget:
            result[-1] = grown
        else:
            result.append([i])
    return result
