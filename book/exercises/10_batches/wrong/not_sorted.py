"""The sentences are taken as they come: a long one beside short ones makes them all long."""


def batches(lengths, budget):
    found, batch = [], []
    for i in range(len(lengths)):
        if (len(batch) + 1) * max(lengths[j] for j in [*batch, i]) > budget:
            found.append(batch)
            batch = []
        batch.append(i)
    return [*found, batch] if batch else found
