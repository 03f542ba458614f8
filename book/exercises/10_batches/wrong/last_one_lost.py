"""The last batch is lost: nothing comes after it that would make it be handed over."""


def batches(lengths, budget):
    found, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if (len(batch) + 1) * lengths[i] > budget:
            found.append(batch)
            batch = []
        batch.append(i)
    return found
