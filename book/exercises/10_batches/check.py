"""A batch is a rectangle: one row per sentence, and one column per token of its longest sentence."""

import numpy as np

from book.exercise import Stage
from train.text.batches import Batches


class Corpus:
    """The part of a corpus that `Batches` needs."""

    def __init__(self, lengths):
        self.src_lengths = self.tgt_lengths = np.array(lengths, np.uint32)

    def __len__(self):
        return len(self.src_lengths)


def right(lengths, budget):
    return [batch.tolist() for batch in Batches(Corpus(lengths), budget).by_length()] if lengths else []


def as_list(result):
    """Accept a generator of batches as well as a list."""
    return list(result) if hasattr(result, "__next__") else result


def by_hand(seed):
    yield [1], 1
    yield [2, 1], 2
    yield [1, 2], 3
    yield [1, 1, 2], 4
    yield [3, 1, 2], 4
    yield [1, 1, 1], 2
    yield [2, 2, 1, 1], 4
    yield [], 4
    yield [10, 9], 10


def drawn(seed):
    random = np.random.default_rng(seed)
    for n in (3, 4, 6, 10, 30):
        lengths = [int(x) for x in random.integers(1, 8, size=n)]
        yield lengths, int(max(lengths) + random.integers(0, 12))


def explain(yours, expected, lengths, budget):
    """Name the first requirement that the batches do not meet."""
    if not isinstance(yours, list) or not all(isinstance(batch, (list, tuple)) for batch in yours):
        return "Return a list of lists of indices."
    order = [i for batch in yours for i in batch]
    if not all(isinstance(i, (int, np.integer)) for i in order):
        return f"Your batches contain {order[0]!r}. They should contain indices."
    if sorted(order) != list(range(len(lengths))):
        lost = sorted(set(range(len(lengths))) - set(order))
        if (
            lost
            and max(order) < len(lengths)
            and sorted({lengths[i] for i in order}) == sorted(lengths[i] for i in order)
        ):
            return f"Sentence {lost[0]} is in no batch, and no two sentences in your batches have the same length."
        return f"Sentence {lost[0]} is in no batch." if lost else "A sentence is in two batches, or does not exist."
    if order != sorted(order, key=lambda i: (lengths[i], i)):
        return "The sentences do not go from short to long, equal ones in their original order."
    for batch, following in zip(yours, [*yours[1:], []], strict=True):
        if not batch:
            return "A batch is empty."
        if len(batch) * lengths[batch[-1]] > budget:
            return f"The batch {batch} takes {len(batch)} rows of {lengths[batch[-1]]} tokens, more than {budget}."
        if following and (len(batch) + 1) * lengths[following[0]] <= budget:
            return f"Sentence {following[0]} still fits into the batch {batch}."
    return ""


STAGES = [
    Stage("the batches are wrong", cases, lambda m, *a: as_list(m.batches(*a)), right, lambda *a: f"batches{a}",
          explain=explain)
    for cases in (by_hand, drawn)
]  # fmt: skip
NAMES = {
    "batch": "the current batch",
    "result": "the list of batches",
    "i": "the index of a sentence",
    "order": "the indices from short to long",
    "grown": "the batch with one more sentence",
    "start": "a batch's first place in the order",
    "end": "a batch's last place in the order, plus 1",
    "length": "the length of a sentence",
}
AFTER = """\
The real one (train/text/batches.py) considers both sides of a sentence pair, and finds the end of a batch by
bisection. For validation it uses your order. For training it shuffles the pairs, sorts them within pools, and shuffles
the batches."""
