"""Batches of similar length from pairs of sentences, in an order that follows from (seed, epoch) (section 5.1).

`Batches` cuts an epoch; `Stream` gives the batches of all epochs in a row and makes some of them ahead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError
from train.text.corpus import Corpus, Ints

POOL_BATCHES = 32  # to 256, see `Batches`


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded ids of some pairs: `tokens + [EOS]` and `[BOS] + tokens + [EOS]`, filled up with `pad_id`."""

    src: NDArray[np.int32]  # (B, S)
    tgt: NDArray[np.int32]  # (B, T + 1): the decoder reads [:, :-1] and predicts [:, 1:]
    pad_id: int

    @property
    def n_target_tokens(self) -> int:
        """Predicted tokens, end marks included, padding excluded."""
        return int((self.tgt[:, 1:] != self.pad_id).sum())

    @property
    def n_tokens(self) -> int:
        """Source and predicted tokens, end marks included, padding excluded."""
        return int((self.src != self.pad_id).sum()) + self.n_target_tokens

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, S, T)."""
        return (*self.src.shape, self.tgt.shape[1] - 1)

    def describe(self) -> str:
        """Its shape in words."""
        return "{} pairs of {} + {} tokens".format(*self.shape)

    def halves(self) -> list["Batch"]:
        """The first and the second half of the pairs; the batch itself where it has only one."""
        middle = len(self.src) // 2
        rows = (slice(None, middle), slice(middle, None))
        return [Batch(self.src[half], self.tgt[half], self.pad_id) for half in rows] if middle else [self]


class Batches:
    """Cuts a corpus into batches of similar length, each within a budget of tokens on either side.

    A batch of n pairs whose longest sentence, of either side, has length L keeps n L <= batch_tokens.

    The pairs of an epoch are shuffled and dealt into pools; a pool is sorted by length and cut; the batches of all
    pools are shuffled.  All of it follows from (seed, epoch) and from nothing else.  The pool's size is a bargain: a
    larger one leaves less padding, a smaller one makes it more random which pairs share a batch.  One of 32 batches
    leaves 7 to 8 % of padding at 4,096 tokens (Multi30k, Tatoeba), one of 256 leaves 5 to 6 % at 25,000 (news).
    """

    def __init__(self, corpus: Corpus, batch_tokens: int, seed: int = 1) -> None:
        """Raise `UserError` for a corpus with no pair, or with a sentence longer than `batch_tokens`."""
        if not len(corpus):
            raise UserError("data: expected at least one pair; got none; try other training files")
        if seed < 0:
            raise UserError(f"train.seed: expected 0 or more; got {seed}; try 1")
        longest = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        if longest > batch_tokens:
            raise UserError(
                f"batch_tokens: expected at least {longest}, the longest sentence's tokens with its end mark; "
                f"got {batch_tokens}; try a larger batch_tokens or a smaller data.max_length"
            )
        self.corpus, self.batch_tokens, self.seed = corpus, int(batch_tokens), int(seed)
        tokens = np.maximum(corpus.src_lengths, corpus.tgt_lengths).sum(dtype=np.int64)
        batches = int(tokens) / batch_tokens
        pool_batches = min(max(POOL_BATCHES, batches / 16), 8 * POOL_BATCHES)
        pools = max(1, round(batches / pool_batches), min(2, int(batches / 8)))
        self._pool = -(-len(corpus) // pools)  # pairs in a pool

    def epoch(self, epoch: int) -> list[Ints]:
        """Batches of one epoch (0, 1, ...), in order: arrays of pair numbers, each pair in one of them."""
        bits = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        order = shuffled(len(self.corpus), bits)
        pools = (order[start : start + self._pool] for start in range(0, len(order), self._pool))
        batches = [batch for pool in pools for batch in self._cut(pool)]
        return [batches[i] for i in shuffled(len(batches), bits)]

    def by_length(self) -> list[Ints]:
        """The same batches every time, from short to long: for validation."""
        return list(self._cut(np.arange(len(self.corpus), dtype=np.uint32)))

    def _cut(self, pool: Ints) -> Iterator[Ints]:
        """The batches of a pool, which is sorted by longer side, then source, then as it stands."""
        src = self.corpus.src_lengths[pool].astype(np.uint64)
        longer = np.maximum(src, self.corpus.tgt_lengths[pool])
        keys = (longer << np.uint64(48)) | (src << np.uint64(32)) | np.arange(len(pool), dtype=np.uint64)
        keys.sort()
        pool, lengths = pool[keys & np.uint64(0xFFFFFFFF)], (keys >> np.uint64(48)).astype(np.int64)
        start = 0
        while start < len(pool):  # each takes n sentences while n * its longest <= batch_tokens
            window = lengths[start : start + self.batch_tokens // int(lengths[start])]
            taken = window * np.arange(1, len(window) + 1)
            end = start + int(np.searchsorted(taken, self.batch_tokens, side="right"))
            yield pool[start:end]
            start = end

    def sizes(self, indices: Ints) -> tuple[int, int]:
        """`n_target_tokens` and `n_tokens` of the batch of the pairs `indices`, without making it."""
        targets = int(self.corpus.tgt_lengths[indices].sum(dtype=np.int64))
        return targets, targets + int(self.corpus.src_lengths[indices].sum(dtype=np.int64))

    def batch(self, indices: Ints) -> Batch:
        """Padded arrays of the pairs `indices` (B,), in that order."""
        corpus = self.corpus
        return Batch(corpus.rows(0, indices), corpus.rows(1, indices, bos=True), corpus.special.pad_id)


Place = tuple[int, int]  # of a batch: its epoch, and its index within it


class Stream:
    """The batches of all epochs in a row, each at its place, some of them made before they are asked for."""

    def __init__(self, batches: Any) -> None:
        """`batches`: a `Batches`, or what has its methods `epoch`, `sizes` and `batch`."""
        self.epoch = lru_cache(maxsize=2)(batches.epoch)  # this one and the next
        self._batch, self._sizes = batches.batch, batches.sizes
        self._ready: dict[Place, Any] = {}

    def after(self, place: Place) -> Place:
        """The place that follows."""
        epoch, index = place
        return (epoch, index + 1) if index + 1 < len(self.epoch(epoch)) else (epoch + 1, 0)

    def places(self, place: Place, count: int) -> list[Place]:
        """`count` places in a row, `place` the first of them."""
        found = [place]
        while len(found) < count:
            found.append(self.after(found[-1]))
        return found[:count]

    def sizes(self, place: Place) -> tuple[int, int]:
        """`n_target_tokens` and `n_tokens` of the batch at a place, without making it."""
        found: tuple[int, int] = self._sizes(self.examples(place))
        return found

    def batch(self, place: Place) -> Any:
        """The batch at a place."""
        return self._ready.pop(place, None) or self._batch(self.examples(place))

    def examples(self, place: Place) -> Any:
        """What stands for the batch at a place: the numbers of its examples."""
        return self.epoch(place[0])[place[1]]

    def prepare(self, places: Iterable[Place]) -> None:
        """Make the batches at these places now."""
        self._ready = {place: self.batch(place) for place in places}


def shuffled(n: int, bits: np.random.Philox) -> Ints:
    """A permutation of 0..n-1 (uint32): the order of n random numbers, each carrying its index in its low bits.

    NumPy promises that a bit generator's raw stream never changes; of `Generator.permutation` it does not.
    """
    width = max(1, (n - 1).bit_length())
    keys = bits.random_raw(n)
    keys <<= np.uint64(width)
    keys |= np.arange(n, dtype=np.uint64)
    keys.sort()  # no two are equal, so that every sorting algorithm gives this order
    keys &= np.uint64((1 << width) - 1)
    return keys.astype(np.uint32)
