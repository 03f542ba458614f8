"""Batches of similar length from pairs of sentences, in an order that follows from (seed, epoch) (section 5.1).

`Batches` cuts an epoch; `Stream` gives the batches of all epochs in a row and makes some of them ahead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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


class Plan(Sequence[Ints]):
    """The batches of an epoch, in order: `plan[i]` is an array of pair numbers; every pair is in exactly one batch."""

    def __init__(self, order: Ints, starts: Ints, sequence: Ints | None = None) -> None:
        """Batch i is `order[starts[j] : starts[j + 1]]` with j = sequence[i] (i itself where there is no sequence)."""
        self._order, self._starts = order, starts
        self._sequence = np.arange(len(starts) - 1) if sequence is None else sequence

    def __len__(self) -> int:
        return len(self._sequence)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return Plan(self._order, self._starts, self._sequence[i])
        j = self._sequence[i]
        return self._order[self._starts[j] : self._starts[j + 1]]


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

    def epoch(self, epoch: int) -> Plan:
        """Batches of one epoch (0, 1, ...), each pair once."""
        bits = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        order = shuffled(len(self.corpus), bits)
        pieces = []
        for start in range(0, len(order), self._pool):
            pool = order[start : start + self._pool]
            lengths = _sort_by_length(self.corpus, pool)
            pieces.append(start + _cuts(lengths, self.batch_tokens))
        starts = np.concatenate([[0], *pieces])
        return Plan(order, starts, shuffled(len(starts) - 1, bits))

    def by_length(self) -> Plan:
        """The same batches every time, from short to long: for validation and translation."""
        order = np.arange(len(self.corpus), dtype=np.uint32)
        lengths = _sort_by_length(self.corpus, order)
        return Plan(order, np.concatenate([[0], _cuts(lengths, self.batch_tokens)]))

    def batch(self, indices: Ints) -> Batch:
        """Padded arrays of the pairs `indices` (B,), in that order."""
        corpus = self.corpus
        return Batch(corpus.rows(0, indices), corpus.rows(1, indices, bos=True), corpus.special.pad_id)

    def padding(self, plan: Plan) -> float:
        """Share of padding among the source and target positions of a plan's batches, 0 to 1."""
        sides = self.corpus.src_lengths, self.corpus.tgt_lengths
        shares = [(int(side[i].sum(dtype=np.int64)), len(i) * int(side[i].max())) for i in plan for side in sides]
        real, taken = map(sum, zip(*shares, strict=True))
        return 1 - real / taken


Place = tuple[int, int]  # of a batch: its epoch, and its index within it


class Epochs(Protocol):
    """Batches of any kind, as `Batches` gives them."""

    def epoch(self, epoch: int) -> Sequence[Any]: ...
    def batch(self, indices: Any) -> Any: ...


class Stream:
    """The batches of all epochs in a row, each at its place, some of them made before they are asked for."""

    def __init__(self, batches: Epochs) -> None:
        self._batches = batches
        self._epochs: dict[int, Sequence[Any]] = {}  # the last two
        self._ready: dict[Place, Any] = {}

    def epoch(self, epoch: int) -> Sequence[Any]:
        """`Batches.epoch`, kept for this epoch and the one before."""
        if epoch not in self._epochs:
            before = {e: plan for e, plan in self._epochs.items() if e == epoch - 1}
            self._epochs = {**before, epoch: self._batches.epoch(epoch)}
        return self._epochs[epoch]

    def after(self, place: Place) -> Place:
        """The place that follows."""
        epoch, index = place
        return (epoch, index + 1) if index + 1 < len(self.epoch(epoch)) else (epoch + 1, 0)

    def batch(self, place: Place) -> Any:
        """The batch at a place."""
        epoch, index = place
        return self._ready.pop(place, None) or self._batches.batch(self.epoch(epoch)[index])

    def prepare(self, place: Place, count: int) -> None:
        """Make the `count` batches from `place` on now."""
        self._ready.clear()
        for _ in range(count):
            self._ready[place] = self.batch(place)
            place = self.after(place)


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


def _sort_by_length(corpus: Corpus, pool: Ints) -> Ints:
    """Sort the pair numbers in `pool`, in place, by longer side, then source, then as they stand; the longer sides."""
    src = corpus.src_lengths[pool].astype(np.uint64)
    longer = np.maximum(src, corpus.tgt_lengths[pool])
    keys = (longer << np.uint64(48)) | (src << np.uint64(32)) | np.arange(len(pool), dtype=np.uint64)
    keys.sort()
    pool[:] = pool[keys & np.uint64(0xFFFFFFFF)]
    return (keys >> np.uint64(48)).astype(np.int64)


def _cuts(lengths: Ints, batch_tokens: int) -> Ints:
    """Ends of the batches cut from ascending lengths: each takes n sentences while n * its longest <= batch_tokens."""
    ends, start = [], 0
    while start < len(lengths):
        window = lengths[start : start + batch_tokens // int(lengths[start])]
        start += int(np.searchsorted(window * np.arange(1, len(window) + 1), batch_tokens, side="right"))
        ends.append(start)
    return np.array(ends, np.int64)
