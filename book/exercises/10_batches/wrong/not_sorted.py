"""You take the sentences in their original order, so all the short sentences in a batch with a long one are padded to
its length.
"""


def batches(lengths, budget):
    result, batch = [], []
    for i in range(len(lengths)):
        if (len(batch) + 1) * max(lengths[j] for j in [*batch, i]) > budget:
            result.append(batch)
            batch = []
        batch.append(i)
    return [*result, batch] if batch else result
