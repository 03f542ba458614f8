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


def drawn(seed):
    random = np.random.default_rng(seed)
    for n in (3, 4, 6, 10, 30):
        lengths = [int(x) for x in random.integers(1, 8, size=n)]
        yield lengths, int(max(lengths) + random.integers(0, 12))


STAGES = [
    Stage("the batches are wrong", cases, lambda m, *a: as_list(m.batches(*a)), right, lambda *a: f"batches{a}")
    for cases in (by_hand, drawn)
]
AFTER = """\
The real one (train/text/batches.py) considers both sides of a sentence pair, and finds the end of a batch by
bisection. For validation it uses your order. For training it shuffles the pairs, sorts them within pools, and shuffles
the batches."""
