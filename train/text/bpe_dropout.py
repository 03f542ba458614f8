"""BPE dropout (Provilkov et al., 2020): in each epoch the training text is segmented into different subwords.

A word is segmented by byte-pair encoding, but at each step every possible merge is skipped with a probability p. Of the
remaining merges, the one that was learned first is applied; the word is finished when none remain. The option
`dropout` of Hugging Face `tokenizers` works in the same way but cannot be seeded. Here the random numbers are a
function of the seed, the epoch, the side and the position in the text.

`SegmentedBatches` yields the batches of each epoch from the text as it is segmented in that epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.errors import UserError
from train.text.batches import Batches, PairBatch
from train.text.corpus import IntArray, PairCorpus
from train.text.prepared import token_dtype
from train.text.tokenizer import Tokenizer

CHUNK = 8192  # number of sentences segmented together
RANDOM_RANGE = 1 << 16  # random numbers have 16 bits; a merge is skipped if its number is below p * RANDOM_RANGE
NO_MERGE = np.iinfo(np.int64).max  # rank of a pair of symbols that is not merged


class Merges:
    """The merges of a byte-pair tokenizer as arrays. Raises UserError for any other kind of tokenizer.

    The rank of a merge is its index in the tokenizer's list, in the order in which the merges were learned.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = tokenizer.spec["model"]
        affixes = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
        if model["type"] != "BPE" or any(model.get(name) for name in affixes):
            got = model["type"] if model["type"] != "BPE" else "byte-pair encoding with other rules"
            raise UserError(
                f"train.bpe_dropout: expected a bpe tokenizer trained by this program; got {got}; "
                'try data.tokenizer = "bpe", or train.bpe_dropout = 0'
            )
        vocabulary: dict[str, int] = model["vocab"]
        pairs = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        self.tokenizer = tokenizer
        self.n_ids = tokenizer.vocab_size
        keys = np.array([vocabulary[a] * self.n_ids + vocabulary[b] for a, b in pairs], np.int64)
        self._rank_of = np.argsort(keys)  # ranks of the sorted keys
        self._keys = keys[self._rank_of]
        self.merged = np.array([vocabulary[a + b] for a, b in pairs], np.int64)  # by rank
        spelled = [[vocabulary.get(c) for c in token] for token in sorted(vocabulary, key=vocabulary.__getitem__)]
        spelling_of = dict(zip(sorted(vocabulary.values()), spelled, strict=True))
        symbols = [spelling_of.get(i) or [i] for i in range(self.n_ids)]
        symbols = [[i] if None in s else s for i, s in enumerate(symbols)]
        self.spelling_lengths = np.array([len(s) for s in symbols])
        self._spelling_starts = np.cumsum(self.spelling_lengths) - self.spelling_lengths
        self._symbols = np.array([i for s in symbols for i in s], np.int64)

    def ranks(self, left: IntArray, right: IntArray) -> NDArray[np.int64]:
        """Return the rank of the merge of each pair of symbols, or NO_MERGE if the pair is not merged."""
        if not len(self._keys):
            return np.full(left.shape, NO_MERGE)
        keys = left * self.n_ids + right
        positions = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[positions] == keys, self._rank_of[positions], NO_MERGE)

    def spell(self, tokens: IntArray) -> NDArray[np.int64]:
        """Return one array of all symbols from which the tokens (n,) were merged."""
        lengths = self.spelling_lengths[tokens]
        ends = np.cumsum(lengths)
        positions = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
        return self._symbols[np.repeat(self._spelling_starts[tokens], lengths) + positions]

    def segment(self, words: NDArray[np.int64], threshold: int, philox: "np.random.Philox") -> list[IntArray]:
        """Segment n words of L symbols each, shape (n, L), with dropout; return the tokens of each word.

        Args:
            threshold: the probability of skipping a merge, in units of 1 / RANDOM_RANGE.
        """
        results: list[Any] = [None] * len(words)
        rows = np.arange(len(words))
        ranks = self.ranks(words[:, :-1], words[:, 1:])
        while len(rows):  # each iteration makes one merge in every remaining word, so all words have equal lengths
            n = ranks.size
            skipped = philox.random_raw(-(-n // 4)).view(np.uint16)[:n].reshape(ranks.shape) < threshold
            candidates = np.where(skipped, NO_MERGE, ranks)
            # The best merge of each word: its rank, and the position of its left symbol.
            position = candidates.argmin(axis=1) if ranks.shape[1] else np.zeros(len(rows), np.int64)
            best = candidates[np.arange(len(rows)), position] if ranks.shape[1] else np.full(len(rows), NO_MERGE)
            is_finished = best == NO_MERGE
            for row, tokens in zip(rows[is_finished], words[is_finished], strict=True):
                results[row] = tokens
            rows, words, ranks, position, best = (x[~is_finished] for x in (rows, words, ranks, position, best))
            if not len(rows):
                break
            words[np.arange(len(rows)), position] = self.merged[best]
            words = remove_columns(words, position + 1)
            ranks = remove_columns(ranks, position)
            for left in (position - 1, position):  # ranks of the two pairs that contain the new token
                exists = (left >= 0) & (left < ranks.shape[1])
                i = np.flatnonzero(exists)
                j = left[exists]
                ranks[i, j] = self.ranks(words[i, j], words[i, j + 1])
        return results


def remove_columns(matrix: NDArray[np.int64], columns: IntArray) -> NDArray[np.int64]:
    """Remove the element `columns[i]` from each row i of a matrix (n, L); return (n, L - 1)."""
    positions = np.arange(matrix.shape[1] - 1)
    return np.take_along_axis(matrix, positions + (positions >= columns[:, None]), axis=1)


def word_starts(tokenizer: Tokenizer, sentences: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Return, for each token of the sentences, whether it begins a word; tokens are never merged across words."""
    starts: list[bool] = []
    for ids, (encoded, words) in zip(sentences, tokenizer.encode_words(tokenizer.decode_batch(sentences)), strict=True):
        if encoded != list(ids):  # decoding did not restore the text: treat each token as a word
            starts += [True] * len(ids)
        else:
            starts += [i == 0 or words[i] != words[i - 1] for i in range(len(ids))]
    return np.array(starts, bool)


class Segmenter:
    """Segments a corpus with dropout, differently in each epoch.

    Args:
        corpus: the corpus, segmented without dropout.
        tokenizers: the tokenizer of each side, or None for a side without dropout.
        rate: probability of skipping a merge.
        seed: seed of the random numbers.
        max_length: maximum length, end token included; a sentence that would exceed it is segmented without dropout.
    """

    def __init__(
        self, corpus: PairCorpus, tokenizers: Sequence[Tokenizer | None], rate: float, seed: int, max_length: int
    ) -> None:
        self.corpus, self.seed, self.max_length = corpus, seed, max_length
        self.threshold = round(rate * RANDOM_RANGE)
        self.merges = [None if tokenizer is None else Merges(tokenizer) for tokenizer in tokenizers]
        self._starts = [
            []
            if merges is None
            else [word_starts(merges.tokenizer, self._sentences(side, first)) for first in self._chunks()]
            for side, merges in enumerate(self.merges)
        ]

    def _chunks(self) -> range:
        return range(0, len(self.corpus), CHUNK)

    def _sentences(self, side: int, first: int) -> list[list[int]]:
        tokens, offsets = self.corpus.flat_tokens(side, first, first + CHUNK)
        return [tokens[i:j].tolist() for i, j in zip(offsets[:-1], offsets[1:], strict=True)]

    def epoch_corpus(self, epoch: int) -> PairCorpus:
        """Return the corpus as it is segmented in this epoch."""
        tokens, offsets = [], []
        for side, merges in enumerate(self.merges):
            parts = [self._segment(side, merges, number, epoch) for number in range(len(self._chunks()))]
            tokens.append(np.concatenate([ids for ids, _ in parts]))
            lengths = np.concatenate([lengths for _, lengths in parts])
            offsets.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
        return self.corpus.with_tokens(tokens, offsets)

    def _segment(self, side: int, merges: Merges | None, number: int, epoch: int) -> tuple[IntArray, IntArray]:
        """Return the tokens of chunk `number` of a side in this epoch, and the number of tokens of each sentence."""
        plain_tokens, offsets = self.corpus.flat_tokens(side, number * CHUNK, (number + 1) * CHUNK)
        plain_lengths = np.diff(offsets)
        if merges is None:
            return plain_tokens, plain_lengths
        philox = np.random.Philox(np.random.SeedSequence([self.seed, epoch, 1 + side, number]))
        first = np.flatnonzero(self._starts[side][number])  # the first token of each word
        symbols = merges.spell(plain_tokens)
        symbol_ends = np.concatenate([[0], np.cumsum(merges.spelling_lengths[plain_tokens])])
        word_begins = symbol_ends[first]
        word_lengths = np.diff(np.append(word_begins, len(symbols)))
        words: list[Any] = [None] * len(first)
        for length in np.unique(word_lengths):
            same = np.flatnonzero(word_lengths == length)
            matrix = symbols[word_begins[same][:, None] + np.arange(length)]
            for word, ids in zip(same, merges.segment(matrix, self.threshold, philox), strict=True):
                words[word] = ids
        counts = np.array([len(ids) for ids in words])
        sentence_of = np.searchsorted(offsets, first, side="right") - 1  # the sentence of each word
        lengths = np.bincount(sentence_of, counts, len(plain_lengths)).astype(np.int64)
        is_long = lengths >= self.max_length
        flat = np.concatenate(words) if words else plain_tokens
        if is_long.any():
            ends = np.cumsum(lengths)
            flat = np.concatenate([
                plain_tokens[offsets[i] : offsets[i + 1]] if is_long[i] else flat[ends[i] - lengths[i] : ends[i]]
                for i in range(len(lengths))
            ])  # fmt: skip
        return flat.astype(token_dtype(merges.n_ids)), np.where(is_long, plain_lengths, lengths)


@dataclass(frozen=True)
class EpochExamples:
    """The pairs of a batch, or of a part of a batch, in one epoch."""

    epoch: int
    indices: IntArray

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, part: slice) -> "EpochExamples":
        return EpochExamples(self.epoch, self.indices[part])


class SegmentedBatches:
    """The batches of every epoch, made by `make_batches` from the corpus as it is segmented in that epoch."""

    def __init__(self, segmenter: Segmenter, make_batches: Callable[[PairCorpus], Batches]) -> None:
        self._batches = lru_cache(maxsize=2)(lambda epoch: make_batches(segmenter.epoch_corpus(epoch)))

    def epoch_batches(self, epoch: int) -> list[EpochExamples]:
        """Return the pairs of each batch of an epoch (from 0)."""
        return [EpochExamples(epoch, indices) for indices in self._batches(epoch).epoch_batches(epoch)]

    def token_counts(self, examples: EpochExamples) -> tuple[int, int]:
        """Return `n_targets` and `n_tokens` of a batch without building it."""
        return self._batches(examples.epoch).token_counts(examples.indices)

    def batch(self, examples: EpochExamples) -> PairBatch:
        """Build a batch."""
        return self._batches(examples.epoch).batch(examples.indices)
