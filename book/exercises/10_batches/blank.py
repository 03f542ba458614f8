"""Exercise 10. Batches of sentences of similar length."""


def batches(lengths, budget):
    """Group sentences into batches of at most `budget` tokens, padding included; return lists of sentence indices.

    `lengths` holds the number of tokens of each sentence, none of them above `budget`. Take the sentences from short to
    long, and those of equal length in their original order. Put as many sentences into each batch as fit: all rows of a
    batch are as long as its longest sentence.
    """
    ...  # yours
