"""The last batch is missing: no sentence follows that would close it. Add it after the loop."""


def batches(lengths, budget):
    result, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if (len(batch) + 1) * lengths[i] > budget:
            result.append(batch)
            batch = []
        batch.append(i)
    return result
