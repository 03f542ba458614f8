"""BPE dropout: its distribution, its determinism, and the batches of an epoch."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from tests.helpers.trainings import crash_after, outcome, tables
from train import RunConfig, train
from train.errors import UserError
from train.tasks import TASKS
from train.text.batches import ORDER_VERSION, Batches, BatchLoader
from train.text.bpe_dropout import RANDOM_RANGE, Merges, SegmentedBatches, Segmenter
from train.text.corpus import PairCorpus
from train.text.tokenizer import SPECIALS, Tokenizer

TEXT = ["seventy-seven teens sat between trees", "Bäume, 1977: seeende Seen!", "  a  ", "€ea 't́ 12345 <s>"] * 3


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text("".join(f"{line}\n" for line in TEXT), encoding="utf-8")
    return Tokenizer.train(path, vocab_size=400)


def corpus_of(tokenizer, lines):
    ids = tokenizer.encode_batch(lines)
    return PairCorpus.from_pairs(zip(ids, reversed(ids), strict=True))


def segmenter_of(tokenizer, corpus, rate, seed=1, max_length=256):
    return Segmenter(corpus, [tokenizer, tokenizer], rate, seed, max_length)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_segmentations_are_distributed_as_those_of_the_tokenizers_library(tokenizer, rate):
    word, n = " seventeens", 4000
    spec = {**tokenizer.spec, "model": {**tokenizer.spec["model"], "dropout": rate}}
    library = HuggingFaceTokenizer.from_str(json.dumps(spec))
    theirs = Counter(tuple(library.encode(word.strip()).ids) for _ in range(n))
    merges = Merges(tokenizer)
    symbols = merges.spell(np.array(tokenizer.encode(word)))
    ours = Counter(
        tuple(ids.tolist())
        for ids in merges.segment(np.tile(symbols, (n, 1)), round(rate * RANDOM_RANGE), np.random.Philox(1))
    )
    assert len(ours) > 5
    for ids in ours | theirs:
        p = (ours[ids] + theirs[ids]) / (2 * n)
        assert abs(ours[ids] - theirs[ids]) < 5 * (2 * n * p * (1 - p)) ** 0.5 + 1, tokenizer.decode(ids)


@given(st.lists(st.text(max_size=15), min_size=1, max_size=8), st.sampled_from([0.0, 0.1, 0.7]), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_segmentation_spells_the_same_text(tokenizer, lines, rate, epoch):
    corpus = corpus_of(tokenizer, [*lines, "seventy-seven"])
    changed = segmenter_of(tokenizer, corpus, rate).epoch_corpus(epoch)
    for i in range(len(corpus)):
        for before, after in zip(corpus.pair(i), changed.pair(i), strict=True):
            assert tokenizer.decode(after) == tokenizer.decode(before)
            assert len(after) >= len(before) and not set(after) & set(range(len(SPECIALS)))
            if not rate:
                assert after == before


def test_segmentations_depend_only_on_seed_epoch_and_side(tokenizer):
    corpus = corpus_of(tokenizer, TEXT)
    texts = {}
    for seed in (1, 2):
        for epoch in (3, 0, 1, 3):
            changed = segmenter_of(tokenizer, corpus, 0.5, seed).epoch_corpus(epoch)
            pairs = [changed.pair(i) for i in range(len(corpus))]
            assert texts.setdefault((seed, epoch), pairs) == pairs
            assert [src for src, _ in pairs] != [tgt for _, tgt in reversed(pairs)]  # the same sentences
    assert len({str(pairs) for pairs in texts.values()}) == len(texts)


def test_segmentations_are_stable_across_numpy_versions(tokenizer):
    corpus = corpus_of(tokenizer, ["seventy trees"])
    src, tgt = segmenter_of(tokenizer, corpus, 0.5).epoch_corpus(0).pair(0)
    assert [tokenizer.decode([i]) for i in src] == ["s", "ev", "en", "ty", "", "t", "r", "ee", "s"]
    assert [tokenizer.decode([i]) for i in tgt] == ["s", "ev", "e", "n", "ty", "", "t", "r", "e", "e", "s"]


def test_a_sentence_that_would_become_too_long_is_segmented_as_usual(tokenizer):
    corpus = corpus_of(tokenizer, [*TEXT, "trees"])
    limit = int(max(corpus.src_lengths))
    changed = segmenter_of(tokenizer, corpus, 0.9, max_length=limit).epoch_corpus(0)
    lengths = np.concatenate([changed.src_lengths, changed.tgt_lengths])
    assert lengths.max() <= limit and changed.src_lengths[-1] > corpus.src_lengths[-1]
    Batches(changed, limit).epoch_batches(0)
    longest = int(corpus.src_lengths.argmax())
    assert changed.pair(longest)[0] == corpus.pair(longest)[0]


def test_each_epoch_has_batches_of_its_own_segmentation(tokenizer):
    corpus = corpus_of(tokenizer, TEXT)
    batches = SegmentedBatches(segmenter_of(tokenizer, corpus, 0.5), lambda c: Batches(c, 60, 1))
    loader = BatchLoader(batches)
    position = (0, 0)
    while position[0] < 3:
        batch = loader.batch(position)
        sizes = loader.token_counts(position)
        assert sizes == (batch.n_targets, batch.n_tokens)
        assert batch.src.size <= 60 and len(loader.examples(position)) == len(batch.src)
        for i, row in zip(loader.examples(position).indices, batch.src, strict=True):
            ids = [int(token) for token in row if token > 3]
            assert tokenizer.decode(ids) == tokenizer.decode(corpus.pair(int(i))[0])
        if len(batch.src) > 1:  # a batch that is split for several ranks
            parts = [loader.batch((*position, part, 2)).src for part in range(2)]
            assert [len(part) for part in parts] == [len(batch.src) // 2, -(-len(batch.src) // 2)]
        position = loader.next_position(position)


def test_no_segmentation_is_longer_than_a_batch(tokenizer):
    corpus = corpus_of(tokenizer, TEXT)
    limit = int(max(corpus.src_lengths.max(), corpus.tgt_lengths.max()))
    values = {"data": {"max_length": 4 * limit}, "train": {"bpe_dropout": 0.9, "batch_tokens": limit}}
    batches = TASKS["translation"].training_batches(corpus, RunConfig.from_dict(values), tokenizer, ORDER_VERSION)
    assert all(batches.batch(batches.epoch_batches(epoch)[0]).src.size <= limit for epoch in range(3))


def test_resuming_with_every_regularization_is_exact(text, tmp_path):
    values = tables(text, bpe_dropout=0.3, rdrop_weight=1.0, max_steps=6, batch_tokens=200, validate_score=False)
    values["model"]["word_dropout"] = 0.2
    config = RunConfig.from_dict(values)
    train(config, tmp_path / "whole", progress=False)
    with crash_after(5):
        train(config, tmp_path / "parts", progress=False)
    train(config, tmp_path / "parts", resume=True, progress=False)
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "parts")
    assert outcome(tmp_path / "whole")[1]["epoch"] > 1
    assert ", seed 1, BPE dropout 0.3, steps 1 to 6" in (tmp_path / "whole" / "log.txt").read_text(encoding="utf-8")


def test_other_tokenizers_and_tasks_raise_one_line(text, tmp_path):
    values = tables(text, bpe_dropout=0.1)
    values["data"]["tokenizer"] = "wordpiece"
    with pytest.raises(UserError, match="train.bpe_dropout: expected data.tokenizer bpe; got wordpiece; try "):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    Tokenizer.train(text / "train.en", "wordpiece", 290).save(tmp_path / "tokenizer.json")
    values["data"]["tokenizer"] = str(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="train.bpe_dropout: expected a bpe tokenizer .*; got WordPiece; try "):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    values["data"] = {"task": "language", "train_text": str(text / "train.en"), "tokenizer": "bpe", "max_length": 20}
    values["model"]["architecture"] = "decoder"
    with pytest.raises(UserError, match="train.bpe_dropout: expected a task on pairs; got language; try "):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    values["model"]["dropout"] = 0.0
    values["train"] |= {"bpe_dropout": 0.0, "rdrop_weight": 1.0}
    with pytest.raises(
        UserError,
        match="train.rdrop_weight: expected a model with dropout.*; got a model in which every dropout rate is 0; try",
    ):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
