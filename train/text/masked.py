"""Masked text: the model predicts masked tokens from the tokens around them (Devlin et al., 2019)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.text.batches import ORDER_VERSION, Batches
from train.text.bpe_dropout import EpochExamples
from train.text.corpus import PairCorpus
from train.text.labeled_text import LabeledBatch, PreparedText, describe_texts

MASK_RATE = 0.15
# Of the predicted tokens, these fractions are masked or replaced; the rest is unchanged.
MASKED_FRACTION, REPLACED_FRACTION = 0.8, 0.1


class MaskedText(PreparedText):
    """Prepared texts whose tokens are masked and predicted.

    Args:
        pairs: the token arrays; both sides are the text.
        word_starts: whether each token id begins a word, shape (V,).
    """

    def __init__(self, pairs: PairCorpus, word_starts: Sequence[bool]) -> None:
        super().__init__(pairs)
        self.word_starts = np.array(word_starts)

    @property
    def n_targets(self) -> int:
        """Number of tokens that are predicted in a validation."""
        return int(self.n_masked(slice(None), MASK_RATE).sum())

    def describe(self) -> str:
        """Return the numbers of texts, tokens and skipped texts."""
        return describe_texts(self.pairs)

    def n_masked(self, indices: Any, rate: float) -> NDArray[np.int64]:
        """Return the number of predicted tokens per text: `rate` times its tokens without BOS and EOS, at least 1."""
        tokens = self.pairs.src_lengths[indices].astype(np.int64) - 2
        return np.maximum(1, (rate * tokens + 0.5).astype(np.int64))


class MaskedBatches:
    """Batches of texts with masked words, chosen at random in each epoch (Devlin et al., 2019, section 3.1).

    A fraction `rate` of the tokens of each text is predicted. Of these, 80% are replaced by `<unk>`, 10% are replaced
    by a random token, and 10% remain unchanged. `<unk>` never occurs in text encoded as byte-level subwords. The choice
    depends only on (seed, epoch, text). All tokens of a word are chosen together (BERT's whole-word masking), except
    that the last word may be cut off so that the number of predictions is known in advance.
    """

    def __init__(
        self,
        text: MaskedText,
        batch_tokens: int,
        seed: int = 1,
        rate: float = MASK_RATE,
        order_version: int = ORDER_VERSION,
    ) -> None:
        self.batches = Batches(text.pairs, batch_tokens, seed, order_version)
        self.text, self.seed, self.rate = text, seed, rate
        self._ordinary_ids = np.setdiff1d(np.arange(len(text.word_starts)), text.pairs.special_ids)

    def epoch_batches(self, epoch: int) -> list[EpochExamples]:
        """Return the texts of each batch of an epoch (from 0)."""
        return [EpochExamples(epoch, indices) for indices in self.batches.epoch_batches(epoch)]

    def token_counts(self, examples: EpochExamples) -> tuple[int, int]:
        """Return `n_targets` and `n_tokens` of a batch without building it."""
        n_targets = int(self.text.n_masked(examples.indices, self.rate).sum())
        return n_targets, int(self.text.pairs.src_lengths[examples.indices].sum(dtype=np.int64))

    def batch(self, examples: EpochExamples) -> LabeledBatch:
        """Build a batch."""
        pairs = self.text.pairs
        special_ids = pairs.special_ids
        ids = pairs.pad_rows(0, examples.indices)
        labels = np.full_like(ids, special_ids.pad_id)
        n_masked = self.text.n_masked(examples.indices, self.rate)
        lengths = pairs.src_lengths[examples.indices].astype(int) - 2
        for row, (index, length, n) in enumerate(zip(examples.indices.tolist(), lengths, n_masked, strict=True)):
            philox = np.random.Philox(np.random.SeedSequence([self.seed, examples.epoch, index]))
            word = self.text.word_starts[ids[row, 1 : 1 + length]].cumsum()  # the word of each token
            positions = 1 + np.argsort(philox.random_raw(int(length) + 1)[word], kind="stable")[:n]
            chance = philox.random_raw(int(n)) / 2.0**64
            random_ids = self._ordinary_ids[philox.random_raw(int(n)) % np.uint64(len(self._ordinary_ids))]
            labels[row, positions] = ids[row, positions]
            replaced = np.where(
                chance < MASKED_FRACTION + REPLACED_FRACTION, random_ids.astype(np.int32), ids[row, positions]
            )
            ids[row, positions] = np.where(chance < MASKED_FRACTION, special_ids.unk_id, replaced)
        return LabeledBatch(ids, labels, special_ids.pad_id)
