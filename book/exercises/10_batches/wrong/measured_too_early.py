"""The batch is measured before the new sentence is in it, so it grows beyond the budget by one."""


def batches(lengths, budget):
    found, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and len(batch) * lengths[i] > budget:
            found.append(batch)
            batch = []
        batch.append(i)
    return [*found, batch] if batch else found
