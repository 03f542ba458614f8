"""A batch may fill the budget exactly: it holds at most `budget` tokens, not fewer."""


def batches(lengths, budget):
    result, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if (len(batch) + 1) * lengths[i] >= budget and batch:
            result.append(batch)
            batch = []
        batch.append(i)
    return [*result, batch] if batch else result
