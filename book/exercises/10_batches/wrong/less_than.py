"""A batch that fills the budget exactly is allowed: at most, not less than."""


def batches(lengths, budget):
    found, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if (len(batch) + 1) * lengths[i] >= budget and batch:
            found.append(batch)
            batch = []
        batch.append(i)
    return [*found, batch] if batch else found
