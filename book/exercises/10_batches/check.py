"""A batch is a rectangle: as many rows as sentences, as many columns as its longest one has tokens."""

import numpy as np

from book.exercise import Stage
from train.text.batches import Batches


class Corpus:
    """What the real one asks of a corpus."""

    def __init__(self, lengths):
        self.src_lengths = self.tgt_lengths = np.array(lengths, np.uint32)

    def __len__(self):
        return len(self.src_lengths)


def right(lengths, budget):
    return [batch.tolist() for batch in Batches(Corpus(lengths), budget).by_length()] if lengths else []


def listed(found):
    """A generator of batches will do as well."""
    return list(found) if hasattr(found, "__next__") else found


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
    Stage("the batches are others", cases, lambda m, *a: listed(m.batches(*a)), right, lambda *a: f"batches{a}")
    for cases in (by_hand, drawn)
]
AFTER = """\
The real one (train/text/batches.py, `_cut`) looks at both sides of a pair, and finds a batch's end by bisection. Yours
is its order for validation; for training it first shuffles and deals the pairs into pools, and shuffles the batches."""
