"""Exercise 10. Batches of sentences of similar length."""


def batches(lengths, budget):
    """Group sentences into batches of at most `budget` tokens, padding included; return lists of sentence indices.

    `lengths` holds the number of tokens of each sentence, none of them above `budget`. Take the sentences from short to
    long, and those of equal length in their original order. Put as many sentences into each batch as fit: all rows of a
    batch are as long as its longest sentence.
    """
    result, batch = [], []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):  # sorted is stable
        if (len(batch) + 1) * lengths[i] > budget:  # sentence i is the longest so far
            result.append(batch)
            batch = []
        batch.append(i)
    return [*result, batch] if batch else result
