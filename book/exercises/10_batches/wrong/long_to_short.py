"""You go from long sentences to short ones. Start with the shortest."""


def batches(lengths, budget):
    result, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if (len(batch) + 1) * lengths[(batch or [i])[0]] > budget:
            result.append(batch)
            batch = []
        batch.append(i)
    return [*result, batch] if batch else result
