"""You measure the batch before adding the new sentence, so it can exceed the budget by one sentence."""


def batches(lengths, budget):
    result, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and len(batch) * lengths[i] > budget:
            result.append(batch)
            batch = []
        batch.append(i)
    return [*result, batch] if batch else result
