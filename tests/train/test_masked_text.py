"""The words that masked language models predict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    SentencePieceBPETokenizer,
    SentencePieceUnigramTokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from tokenizers import Tokenizer as HuggingFaceTokenizer

from tests.helpers.sentences import SENTENCES
from train.errors import UserError
from train.tasks import TASKS
from train.text import sentencepiece_tokenizer
from train.text.affixes import WordTokenizer
from train.text.corpus import PairCorpus
from train.text.masked import MaskedBatches, MaskedText
from train.text.pair_tokenizer import PairTokenizer
from train.text.tokenizer import SPECIALS, SpecialIds


def test_a_masked_model_refuses_a_tokenizer_that_does_not_show_where_words_begin(monkeypatch):
    monkeypatch.setattr(sentencepiece_tokenizer, "load_engine", lambda *arguments: None)
    vocabulary = {token: i for i, token in enumerate((*SPECIALS, "a"))}
    pieces = sentencepiece_tokenizer.SentencePieceTokenizer(b"", vocabulary, SpecialIds())
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    words = WordTokenizer({"model": model, "pre_tokenizer": {"type": "Whitespace"}})  # encodes no spaces
    for tokenizer, found in ((PairTokenizer(pieces, pieces, shared=True), "a SentencePiece"), (words, "one whose")):
        with pytest.raises(UserError, match=f"expected a Hugging Face .*; got {found} .*; try bpe or"):
            TASKS["masking"].adapt_tokenizer(tokenizer, None, ())


def byte_level_bpe(first_tokens):
    engine = HuggingFaceTokenizer(models.BPE(unk_token="<unk>"))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=first_tokens, show_progress=False)
    engine.train_from_iterator(SENTENCES, trainer)
    engine.add_special_tokens(list(SPECIALS))  # appends those that are not in the vocabulary
    return engine


def sentencepiece_like(kind, **options):
    engine = kind()
    engine.train_from_iterator(SENTENCES, vocab_size=60, special_tokens=list(SPECIALS), show_progress=False, **options)
    return engine


@pytest.mark.parametrize(
    "make",
    [
        lambda: sentencepiece_like(SentencePieceBPETokenizer),
        lambda: sentencepiece_like(SentencePieceUnigramTokenizer, unk_token="<unk>"),
        lambda: byte_level_bpe(["one", "two", "three", *SPECIALS]),
        lambda: byte_level_bpe([]),
    ],
    ids=["bpe", "unigram", "special ids 3 to 6", "special ids last"],
)
def test_complete_words_are_masked_with_other_tokenizers(make, tmp_path):
    make().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("".join(f"{s}\n" for s in SENTENCES))
    task = TASKS["masking"]
    tokenizer = task.adapt_tokenizer(task.load_tokenizer(tmp_path / "tokenizer.json"), None, ())
    text = task.prepare([tmp_path / "text"], tokenizer, tmp_path / "prepared", 100)
    batches = MaskedBatches(text, 400, seed=1)
    pad, bos, eos, unknown = tokenizer.special_ids
    starts, replacements = [], []
    for epoch in range(20):
        for examples in batches.epoch_batches(epoch):
            batch = batches.batch(examples)
            original = text.pairs.pad_rows(0, examples.indices)
            predicted = batch.labels != pad
            replacements += batch.ids[predicted & (batch.ids != original)].tolist()
            for row, ids in zip(predicted, original.tolist(), strict=True):
                first = int(row.argmax())
                assert tokenizer.subwords(ids[first : first + 1])[0].startswith("▁"), "a word is masked from its start"
                starts.append(first)
    assert unknown in replacements and not {pad, bos, eos}.intersection(replacements)
    assert len({*replacements}) > 10 and len({*starts}) >= 5


def test_masks_are_the_same_in_every_version():
    """A resumed run must continue with the same masks."""
    batches = MaskedBatches(masked_text([8, 5, 12] * 40), 200, seed=3)
    ids = batches.batch(batches.epoch_batches(0)[0]).ids[:3].tolist()
    assert ids == [[1, 32, 14, 32, 25, 3, 2], [1, 29, 3, 29, 38, 27, 2], [1, 15, 29, 25, 3, 16, 2]]


def masked_text(lengths, vocab_size=40):
    rng = np.random.default_rng(0)
    rows = [[1, *rng.integers(4, vocab_size, n).tolist()] for n in lengths]
    return MaskedText(PairCorpus.from_pairs([(row, row) for row in rows]), [i % 2 == 0 for i in range(vocab_size)])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 99), st.sampled_from([0.15, 0.5, 0.99]))
def test_masked_batches_predict_the_announced_tokens(lengths, seed, rate):
    text = masked_text(lengths)
    batches = MaskedBatches(text, 64, seed, rate)
    for epoch in (0, 1):
        seen = []
        for examples in batches.epoch_batches(epoch):
            batch = batches.batch(examples)
            assert batches.token_counts(examples) == (batch.n_targets, batch.n_tokens)
            original = text.pairs.pad_rows(0, examples.indices)
            predicted = batch.labels != 0
            assert (batch.labels[predicted] == original[predicted]).all()
            assert (batch.ids[~predicted] == original[~predicted]).all()
            assert not (predicted & (original <= 2)).any(), "BOS, EOS and padding are not predicted"
            tokens = (original > 2).sum(axis=1)
            assert (predicted.sum(axis=1) == np.maximum(1, (rate * tokens + 0.5).astype(int))).all()
            again = MaskedBatches(text, 64, seed, rate).batch(examples)
            assert (again.ids == batch.ids).all() and (again.labels == batch.labels).all()
            seen += examples.indices.tolist()
        assert sorted(seen) == list(range(len(lengths)))


def test_masks_are_80_10_10_of_complete_words_and_change_with_the_epoch():
    text = masked_text([200] * 100)
    batches = MaskedBatches(text, 202 * 100, seed=1)
    first, second = (batches.batch(batches.epoch_batches(epoch)[0][:100]) for epoch in (0, 1))
    predicted = first.labels != 0
    share = [np.mean(x) for x in (first.ids[predicted] == 3, first.ids[predicted] == first.labels[predicted])]
    assert abs(share[0] - 0.8) < 0.03 and abs(share[1] - 0.1 - 0.1 / 36) < 0.02
    assert set(first.ids[predicted]) == {3, *range(4, 40)}
    assert (first.labels != second.labels).any()
    for row, examples in zip(predicted, batches.epoch_batches(0)[0].indices, strict=True):
        words = np.array(text.word_starts)[text.pairs.pad_rows(0, np.array([examples]))[0, 1:-1]].cumsum()
        partial = [w for w in set(words[row[1:-1]]) if not row[1:-1][words == w].all()]
        assert len(partial) <= 1, "only the last word may be cut off"
