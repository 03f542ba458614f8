"""Batches of sentence pairs of similar length, in an order determined by (seed, epoch) (section 5.1).

`Batches` divides one epoch into batches; `BatchLoader` returns the batches of successive epochs and can prefetch them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError, plural
from train.text.corpus import IntArray, PairCorpus

ORDER_VERSION = 2  # version of the batch order (see `Batches`); a resumed run keeps the one that it started with
TWO_POOL_BATCHES = range(80, 160)  # an epoch is split at random into two pools if it has this many batches
POOL_BATCHES = 32  # version 1: size of the smallest pool in batches; the largest is 8 times as large


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Token ids of pairs, padded with `pad_id`: sources `tokens + [EOS]`, targets `[BOS] + tokens + [EOS]`."""

    src: NDArray[np.int32]  # (B, S)
    tgt: NDArray[np.int32]  # (B, T + 1): the decoder reads [:, :-1] and predicts [:, 1:]
    pad_id: int

    @property
    def n_targets(self) -> int:
        """Number of predicted tokens, end tokens included, padding excluded."""
        return int((self.tgt[:, 1:] != self.pad_id).sum())

    @property
    def n_tokens(self) -> int:
        """Number of source and predicted tokens, end tokens included, padding excluded."""
        return int((self.src != self.pad_id).sum()) + self.n_targets

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, S, T)."""
        return (*self.src.shape, self.tgt.shape[1] - 1)

    def describe(self) -> str:
        """Return the shape as text."""
        n_pairs, src_length, tgt_length = self.shape
        return f"{plural(n_pairs, 'pair')} of {src_length} + {tgt_length} tokens"

    def halves(self) -> list["PairBatch"]:
        """Return the two halves of the batch, or the batch itself if it has only one pair."""
        middle = len(self.src) // 2
        rows = (slice(None, middle), slice(middle, None))
        return [PairBatch(self.src[half], self.tgt[half], self.pad_id) for half in rows] if middle else [self]


class Batches:
    """Batches of pairs of similar length, each with at most `batch_tokens` tokens per side, padding included.

    A batch of n pairs whose longest sentence, on either side, has length L satisfies n L <= batch_tokens.

    The pairs of an epoch are shuffled and divided into pools; each pool is sorted by length and cut into batches; the
    batches of all pools are shuffled. The result depends only on (seed, epoch). The versions of the batch order
    differ in the pools and in the sorting:

        2   One pool, or two if TWO_POOL_BATCHES contains the number of batches. At these sizes, few pairs have equal
            lengths, so two pools make the batches vary more, at the cost of little padding. Pairs are sorted by the
            length L of the longer side, which limits the batch. Pairs of equal L are sorted by |source| - |target|,
            ascending for even L and descending for odd L, so that both lengths change little from each pair to the
            next. If the text fills at least two batches, the first batch of a pool has a random fraction of the token
            budget, so that all later boundaries shift.
        1   Many small pools, sorted by the length of the longer side, then by that of the source.

    benchmarks/padding.py measures the padding, and how often two pairs share a batch in two successive epochs.
    """

    def __init__(
        self, corpus: PairCorpus, batch_tokens: int, seed: int = 1, order_version: int = ORDER_VERSION
    ) -> None:
        """Raise UserError for an empty corpus and for a sentence longer than `batch_tokens`."""
        if not len(corpus):
            raise UserError(
                "corpus: expected at least one pair with tokens on both sides and within data.max_length; got 0 pairs; "
                "try other training files or a larger data.max_length"
            )
        if seed < 0:
            raise UserError(f"train.seed: expected 0 or more; got {seed}; try 1")
        longest = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
        if longest > batch_tokens:
            raise UserError(
                f"train.batch_tokens: expected at least {longest}, the longest sentence with its end token; "
                f"got {batch_tokens}; try {longest} or a smaller data.max_length"
            )
        self.corpus = corpus
        self.batch_tokens = int(batch_tokens)
        self.seed = int(seed)
        self.order_version = order_version
        tokens = np.maximum(corpus.src_lengths, corpus.tgt_lengths).sum(dtype=np.int64)
        n_batches = int(tokens) / batch_tokens
        if order_version == 1:
            pool_batches = min(max(POOL_BATCHES, n_batches / 16), 8 * POOL_BATCHES)
            n_pools = max(1, round(n_batches / pool_batches), min(2, int(n_batches / 8)))
        else:
            n_pools = 2 if int(n_batches) in TWO_POOL_BATCHES else 1
        self._pool_size = -(-len(corpus) // n_pools)  # pairs
        self._varies_first_batch = n_batches >= 2  # a text that fits in one batch is not divided

    def epoch_batches(self, epoch: int) -> list[IntArray]:
        """Return the batches of an epoch (from 0) as arrays of pair indices; each pair is in exactly one batch."""
        philox = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        order = shuffled(len(self.corpus), philox)
        batches: list[IntArray] = []
        for start in range(0, len(order), self._pool_size):
            pool = order[start : start + self._pool_size]
            if self.order_version == 1:
                batches += self._cut(*self._by_source(pool))
            else:
                first_tokens = 1 + int(philox.random_raw()) % self.batch_tokens if self._varies_first_batch else 0
                batches += self._cut(*self._by_difference(pool), first_tokens)
        return [batches[i] for i in shuffled(len(batches), philox)]

    def by_length(self) -> list[IntArray]:
        """Return the batches for validation: always the same, sorted by length."""
        return list(self._cut(*self._by_source(np.arange(len(self.corpus), dtype=np.uint32))))

    def _by_source(self, pool: IntArray) -> tuple[IntArray, IntArray]:
        """Sort a pool by the longer side, then by the source; return the pool and the lengths of the longer sides."""
        src = self.corpus.src_lengths[pool].astype(np.uint64)
        longer = np.maximum(src, self.corpus.tgt_lengths[pool])
        keys = (longer << np.uint64(48)) | (src << np.uint64(32)) | np.arange(len(pool), dtype=np.uint64)
        keys.sort()
        return pool[keys & np.uint64(0xFFFFFFFF)], (keys >> np.uint64(48)).astype(np.int64)

    def _by_difference(self, pool: IntArray) -> tuple[IntArray, IntArray]:
        """Sort a pool as in version 2 of the batch order (see `Batches`); return the same values as `_by_source`."""
        src = self.corpus.src_lengths[pool].astype(np.int64)
        tgt = self.corpus.tgt_lengths[pool].astype(np.int64)
        longer = np.maximum(src, tgt)
        difference = longer + np.where(longer % 2, tgt - src, src - tgt)  # 1 to 2 * longer - 1, at most 17 bits
        keys = ((longer << 48) | (difference << 31) | np.arange(len(pool))).view(np.uint64)  # `longer` needs 16 bits
        keys.sort()
        return pool[keys & np.uint64(0x7FFFFFFF)], (keys >> np.uint64(48)).astype(np.int64)

    def _cut(self, pool: IntArray, lengths: IntArray, first_tokens: int = 0) -> Iterator[IntArray]:
        """Yield the batches of a pool that is sorted by `lengths`, the length of each pair's longer side.

        Args:
            first_tokens: maximum number of tokens of the first batch, unless it has one pair; 0 means `batch_tokens`.
        """
        start = 0
        budget = first_tokens or self.batch_tokens
        while start < len(pool):  # the largest n with n * (length of the longest sentence) <= budget
            window = lengths[start : start + self.batch_tokens // int(lengths[start])]
            tokens = window * np.arange(1, len(window) + 1)
            end = start + max(1, int(np.searchsorted(tokens, budget, side="right")))
            yield pool[start:end]
            start = end
            budget = self.batch_tokens

    def token_counts(self, indices: IntArray) -> tuple[int, int]:
        """Return `n_targets` and `n_tokens` of the batch of these pairs without building it."""
        n_targets = int(self.corpus.tgt_lengths[indices].sum(dtype=np.int64))
        return n_targets, n_targets + int(self.corpus.src_lengths[indices].sum(dtype=np.int64))

    def batch(self, indices: IntArray) -> PairBatch:
        """Build the batch of the pairs `indices` (B,), in that order."""
        corpus = self.corpus
        return PairBatch(corpus.pad_rows(0, indices), corpus.pad_rows(1, indices, bos=True), corpus.special_ids.pad_id)


# The epoch of a batch and its index within the epoch; for one of n parts of a batch, also the index of the part and n.
Position = tuple[int, int] | tuple[int, int, int, int]


class BatchLoader:
    """The batches of successive epochs, addressed by position; batches can be built before they are needed."""

    def __init__(self, batches: Any) -> None:
        """`batches` is a `Batches` or another object with its methods `epoch_batches`, `token_counts` and `batch`."""
        self.epoch_batches = lru_cache(maxsize=2)(batches.epoch_batches)  # the current epoch and the next
        self._build, self._token_counts = batches.batch, batches.token_counts
        self._prefetched: dict[Position, Any] = {}

    def next_position(self, position: Position) -> tuple[int, int]:
        """Return the position of the batch after the one at `position`."""
        epoch, index = position[:2]
        return (epoch, index + 1) if index + 1 < len(self.epoch_batches(epoch)) else (epoch + 1, 0)

    def positions(self, first: Position, count: int) -> list[Position]:
        """Return `count` successive positions, starting with `first`."""
        positions = [first]
        while len(positions) < count:
            positions.append(self.next_position(positions[-1]))
        return positions[:count]

    def token_counts(self, position: Position) -> tuple[int, int]:
        """Return `n_targets` and `n_tokens` of a batch without building it."""
        counts: tuple[int, int] = self._token_counts(self.examples(position))
        return counts

    def batch(self, position: Position) -> Any:
        """Return the batch at a position."""
        return self._prefetched.pop(position, None) or self._build(self.examples(position))

    def examples(self, position: Position) -> Any:
        """Return the indices of the examples in a batch, or in a part of it."""
        epoch, index, *split = position
        examples = self.epoch_batches(epoch)[index]
        if not split:
            return examples
        part, parts = split
        return examples[len(examples) * part // parts : len(examples) * (part + 1) // parts]

    def prefetch(self, positions: Iterable[Position]) -> None:
        """Build the batches at these positions now; batches prefetched earlier are dropped."""
        self._prefetched = {position: self.batch(position) for position in positions}


def shuffled(n: int, philox: "np.random.Philox") -> IntArray:  # numpy.random is imported on first use
    """Return a random permutation of 0..n-1 (uint32): n random numbers are sorted, each with its index in the low bits.

    Unlike `Generator.permutation`, the result is the same in all versions of NumPy, because only raw bits are drawn.
    """
    width = max(1, (n - 1).bit_length())
    keys = philox.random_raw(n)
    keys <<= np.uint64(width)
    keys |= np.arange(n, dtype=np.uint64)
    keys.sort()  # all keys differ, so the order does not depend on the sorting algorithm
    keys &= np.uint64((1 << width) - 1)
    return keys.astype(np.uint32)
