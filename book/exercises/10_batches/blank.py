"""Exercise 10. Sentences of like length share a batch."""


def batches(lengths, budget):
    """Cut sentences into batches of at most `budget` tokens, padding counted: a list of lists of sentence numbers.

    lengths: how many tokens each sentence has; none has more than `budget`. Sentences go from short to long, of equal
    ones the earlier first. Each batch takes as many as fit: all its rows are as long as its longest sentence.
    """
    ...  # yours
