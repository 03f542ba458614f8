"""Padding is not counted: the tokens of a batch are its rows times its longest sentence, not their sum."""


def batches(lengths, budget):
    found, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if sum(lengths[j] for j in [*batch, i]) > budget:
            found.append(batch)
            batch = []
        batch.append(i)
    return [*found, batch] if batch else found
