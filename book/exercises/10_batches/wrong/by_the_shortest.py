"""The padding is measured by the shortest sentence of the batch. Rows are as long as the longest."""


def batches(lengths, budget):
    found, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if (len(batch) + 1) * lengths[(batch or [i])[0]] > budget:
            found.append(batch)
            batch = []
        batch.append(i)
    return [*found, batch] if batch else found
