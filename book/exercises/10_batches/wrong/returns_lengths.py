"""Your batches contain sentence lengths. They should contain sentence indices, counted from 0."""


def batches(lengths, budget):
    result, batch = [], []
    for length in sorted(lengths):
        if (len(batch) + 1) * length > budget:
            result.append(batch)
            batch = []
        batch.append(length)
    return [*result, batch] if batch else result
