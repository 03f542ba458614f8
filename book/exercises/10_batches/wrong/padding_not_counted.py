"""You do not count padding. A batch costs its number of rows times its longest sentence, not the sum of lengths."""


def batches(lengths, budget):
    result, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if sum(lengths[j] for j in [*batch, i]) > budget:
            result.append(batch)
            batch = []
        batch.append(i)
    return [*result, batch] if batch else result
