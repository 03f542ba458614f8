"""Your batches hold the sentences' lengths: they are to hold their numbers, counted from 0."""


def batches(lengths, budget):
    found, batch = [], []
    for length in sorted(lengths):
        if (len(batch) + 1) * length > budget:
            found.append(batch)
            batch = []
        batch.append(length)
    return [*found, batch] if batch else found
