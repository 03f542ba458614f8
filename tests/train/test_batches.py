"""Reading of lines, preparation of token arrays, and batches: their invariants and error messages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.padding import measure
from tests import ROOT
from train.errors import UserError
from train.text import batches as batching
from train.text.batches import Batches, BatchLoader
from train.text.corpus import MAX_LENGTH, PairCorpus, prepare
from train.text.lines import read_lines, read_parallel
from train.text.tokenizer import DEFAULT_IDS, SpecialIds, Tokenizer

PAD, BOS, EOS, _ = DEFAULT_IDS
REAL = Path(os.environ.get("NPX_DATA", ROOT.parent / "shared" / "data"))
LINE = st.text(st.characters(exclude_characters="\n\r\ufeff", codec="utf-8"), max_size=12) | st.sampled_from(
    ["a\x85b", "\u2028", "x\ry", ""]
)


class LetterTokenizer:
    """A fake tokenizer: one id per letter, spaces dropped."""

    digest = "letters"
    vocab_size = 65_536
    src_vocab_size = None
    special_ids = DEFAULT_IDS

    def encode_batch(self, texts):
        return [[4 + ord(c) % 60_000 for c in text if c != " "] for text in texts]


def write(folder: Path, src: list[str], tgt: list[str]) -> tuple[Path, Path]:
    for name, lines in (("src.txt", src), ("tgt.txt", tgt)):
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    return folder / "src.txt", folder / "tgt.txt"


# ---- reading


@given(
    lines=st.lists(LINE, min_size=1, max_size=9),
    chunk=st.integers(1, 4),
    end=st.sampled_from(["\n", "\r\n"]),
    bom=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_only_line_feeds_end_a_line(tmp_path_factory, lines, chunk, end, bom):
    path = tmp_path_factory.mktemp("lines") / "text"
    text = end.join(lines)
    for last in ["", end] if lines[-1] else [end]:
        path.write_bytes(("\ufeff" * bom + text + last).encode())
        blocks: list[bytes] = []
        chunks = list(read_lines(path, chunk_lines=chunk, on_bytes=blocks.append))
        assert [line for lines in chunks for line in lines] == lines
        assert all(len(part) == chunk for part in chunks[:-1])
        assert b"".join(blocks) == path.read_bytes()


@given(
    before=st.integers(0, 9),
    chunk=st.integers(1, 4),
    bad=st.sampled_from([b"\xff", b"\xe9t\xe9", b"ab\xc3", b"\xed\xa0\x80"]),
)
@settings(max_examples=40, deadline=None)
def test_invalid_utf8_is_reported_with_file_and_line(tmp_path_factory, before, chunk, bad):
    path = tmp_path_factory.mktemp("bad") / "text"
    path.write_bytes("Zeile ü\n".encode() * before + b"12" + bad + b"\nlast\n")
    column = 3 + (bad.index(b"\xc3") if b"\xc3" in bad else 0)
    with pytest.raises(
        UserError, match=f"{path}, line {before + 1}: expected UTF-8 .* as byte {column} of .*; try "
    ) as error:
        list(read_lines(path, chunk_lines=chunk))
    assert "\n" not in str(error.value)


@given(n=st.integers(1, 9), m=st.integers(1, 9), chunk=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_unequal_numbers_of_lines_are_reported_with_files_and_counts(tmp_path_factory, n, m, chunk):
    src, tgt = write(tmp_path_factory.mktemp("unequal"), ["a"] * n, ["b"] * m)
    if n == m:
        assert sum(len(s) for s, _ in read_parallel(src, tgt, chunk_lines=chunk)) == n
        return
    message = re.escape(f"{src}, {tgt}: expected equal numbers of lines") + f".* got {n} and {m}; try "
    with pytest.raises(UserError, match=message):
        list(read_parallel(src, tgt, chunk_lines=chunk))


def test_unreadable_files_raise_user_errors(tmp_path):
    (tmp_path / "empty").touch()
    wrong = {"none": "that does not exist", "": "got a folder", "empty": "got an empty file", "empty/x": "Not a dir"}
    wrong |= {"pipe": "got a pipe"}
    os.mkfifo(tmp_path / "pipe")
    for name, reason in wrong.items():
        with pytest.raises(UserError, match=f"{tmp_path / name}: .*{reason}.*; try "):
            list(read_lines(tmp_path / name))


# ---- preparing


@given(st.lists(st.tuples(LINE, LINE), min_size=1, max_size=12), st.integers(2, 9))
@settings(max_examples=50, deadline=None)
def test_prepared_arrays_equal_encoding_in_memory(tmp_path_factory, pairs, max_length):
    folder = tmp_path_factory.mktemp("prepare")
    src, tgt = write(folder, *map(list, zip(*pairs, strict=True)))
    encoded = list(zip(*(LetterTokenizer().encode_batch(side) for side in zip(*pairs, strict=True)), strict=True))
    valid_pairs = [pair for pair in encoded if all(0 < len(ids) < max_length for ids in pair)]
    if not valid_pairs:
        with pytest.raises(UserError, match="expected at least one pair"):
            prepare(src, tgt, LetterTokenizer(), folder / "out", max_length)
        assert not any((folder / "out").iterdir())
        return
    corpus = prepare(src, tgt, LetterTokenizer(), folder / "out", max_length)
    assert [corpus.pair(i) for i in range(len(corpus))] == valid_pairs
    assert [*zip(corpus.src_lengths, corpus.tgt_lengths, strict=True)] == [
        (len(s) + 1, len(t) + 1) for s, t in valid_pairs
    ]
    empty = sum(not s or not t for s, t in encoded)
    assert corpus.meta["pairs"] == {
        "read": len(pairs),
        "kept": len(valid_pairs),
        "empty": empty,
        "too_long": len(pairs) - len(valid_pairs) - empty,
    }
    assert corpus.meta["tokens"] == {
        "src": sum(len(s) for s, _ in valid_pairs),
        "tgt": sum(len(t) for _, t in valid_pairs),
    }
    arrays = [f"{side}.{kind}" for side in ("src", "tgt") for kind in ("offsets", "tokens")]
    assert sorted(os.listdir(folder / "out")) == ["left-out", "meta.json", *arrays]


def test_prepare_in_chunks_with_a_trained_tokenizer(tmp_path):
    src, tgt = write(tmp_path, [f"line {i} of text" for i in range(9000)], [f"Zeile {i * 7}!" for i in range(9000)])
    tokenizer = Tokenizer.train([src, tgt], vocab_size=400)
    progress: list[int] = []
    corpus = prepare(src, tgt, tokenizer, tmp_path / "out", on_progress=progress.append)
    assert progress == [8192, 9000]
    for i in (0, 8191, 8192, 8999):
        assert corpus.pair(i) == (tokenizer.encode(f"line {i} of text"), tokenizer.encode(f"Zeile {i * 7}!"))
    assert corpus.meta["dtype"] == "uint16"


def test_ids_above_16_bits(tmp_path):
    class Large(LetterTokenizer):
        vocab_size = 65_537

        def encode_batch(self, texts):
            return [[65_536, 4] for _ in texts]

    corpus = prepare(*write(tmp_path, ["a"], ["b"]), Large(), tmp_path / "out")
    assert corpus.pair(0) == ([65_536, 4], [65_536, 4])
    assert Batches(corpus, 10).batch(np.array([0])).src.tolist() == [[65_536, 4, EOS]]


class CountingTokenizer(LetterTokenizer):
    """A tokenizer that counts its calls."""

    calls = 0

    def encode_batch(self, texts):
        self.calls += 1
        return super().encode_batch(texts)


def test_only_changed_input_is_prepared_again(tmp_path):
    src, tgt = write(tmp_path, ["ab", "c"], ["d", "ef"])
    tokenizer = CountingTokenizer()

    def count_calls(max_length: int = 256) -> int:
        before = tokenizer.calls
        corpus = prepare(src, tgt, tokenizer, tmp_path / "out", max_length)
        assert corpus.pair(0)[0] == tokenizer.encode_batch([src.read_text().split("\n")[0]])[0]
        return tokenizer.calls - before - 1

    assert [count_calls(), count_calls()] == [2, 0]
    os.utime(src)
    assert count_calls() == 0
    assert [count_calls(9), count_calls(9)] == [2, 0]
    src.write_text("xy\nc\n")  # the same size
    assert [count_calls(9), count_calls(9)] == [2, 0]
    tokenizer.digest = "other"
    assert [count_calls(9), count_calls(9)] == [2, 0]
    for name, size in [("tgt.tokens", 3), ("src.offsets", 8), ("meta.json", 20)]:
        os.truncate(tmp_path / "out" / name, size)
        with pytest.raises(UserError, match="expected prepared data"):
            PairCorpus.open(tmp_path / "out")
        assert [count_calls(9), count_calls(9)] == [2, 0]
    (tmp_path / "out" / "src.tokens").unlink()
    assert [count_calls(9), count_calls(9)] == [2, 0]
    tgt.unlink()
    with pytest.raises(UserError, match="tgt.txt: expected a text file; got a path that does not exist"):
        count_calls(9)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_preparation_changes_no_files(tmp_path, error):
    class Interrupted(CountingTokenizer):
        def encode_batch(self, texts):
            if self.calls == 3:
                raise error
            return super().encode_batch(texts)

    src, tgt = write(tmp_path, ["ab"] * 9000, ["d"] * 9000)
    with pytest.raises(error):
        prepare(src, tgt, Interrupted(), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []
    prepare(src, tgt, LetterTokenizer(), tmp_path / "out")
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(error):
        prepare(src, tgt, Interrupted(), tmp_path / "out", 99)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files
    assert len(prepare(src, tgt, LetterTokenizer(), tmp_path / "out")) == 9000


@pytest.mark.parametrize("renames", range(5))  # renames of four arrays and meta.json
def test_a_preparation_killed_between_renames_is_incomplete(tmp_path, monkeypatch, renames):
    src, tgt = write(tmp_path, ["ab", "c"], ["d", "ef"])
    prepare(src, tgt, LetterTokenizer(), tmp_path / "out")
    src, tgt = write(tmp_path, ["xyz", "c"], ["d", "e"])
    done: list[Path] = []

    class Killed(BaseException):
        pass

    rename = os.replace

    def replace(part: Path, target: Path) -> None:
        if len(done) == renames:
            raise Killed
        done.append(target)
        rename(part, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        with pytest.raises(Killed):
            prepare(src, tgt, LetterTokenizer(), tmp_path / "out")
    if renames > 1:  # the first rename is of `left-out`, which is the same for both texts
        with pytest.raises(UserError, match="expected prepared data"):
            PairCorpus.open(tmp_path / "out")
    else:  # all files are unchanged
        assert PairCorpus.open(tmp_path / "out").pair(0) == tuple(LetterTokenizer().encode_batch(["ab", "d"]))
    assert prepare(src, tgt, LetterTokenizer(), tmp_path / "out").pair(0) == tuple(
        LetterTokenizer().encode_batch(["xyz", "d"])
    )


def test_unwritable_folders_and_invalid_lengths_raise_user_errors(tmp_path):
    src, tgt = write(tmp_path, ["a"], ["b"])
    with pytest.raises(UserError, match="src.txt: expected a readable and writable path; got 'File exists'; .* try "):
        prepare(src, tgt, LetterTokenizer(), src)
    for length in (1, MAX_LENGTH + 1):
        with pytest.raises(UserError, match=f"max_length: expected 2 to {MAX_LENGTH} .* got {length}; try"):
            prepare(src, tgt, LetterTokenizer(), tmp_path / "out", length)
    with pytest.raises(UserError, match="pair 0 \\(numbered from 0\\): expected at most 65,535 tokens"):
        PairCorpus.from_pairs([([5] * MAX_LENGTH, [5])])


# ---- batching


def corpus_of(lengths: list[tuple[int, int]]) -> PairCorpus:
    """Return a corpus with pairs of these lengths, whose tokens encode the pair and the side."""
    return PairCorpus.from_pairs([([4 + 2 * i] * s, [5 + 2 * i] * t) for i, (s, t) in enumerate(lengths)])


def as_lists(plan) -> list[list[int]]:
    return [indices.tolist() for indices in plan]


def realistic_lengths(n: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return lengths of n pairs, distributed like those of image captions."""
    rng = np.random.default_rng(seed)
    src = np.maximum(3, rng.gamma(9, 1.4, n)).astype(int)
    return [(int(s), max(2, int(s * r))) for s, r in zip(src, rng.normal(1, 0.2, n), strict=True)]


ORDERS = st.integers(1, batching.ORDER_VERSION)
LENGTHS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=60)


@given(LENGTHS, st.integers(13, 60), st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 2, 32]), ORDERS)
@settings(max_examples=160, deadline=None)
def test_an_epoch_has_each_pair_once_within_the_token_budget(lengths, budget, seed, epoch, pool, order):
    corpus = corpus_of(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "POOL_BATCHES", pool)
        patch.setattr(batching, "TWO_POOL_BATCHES", range(pool, 160))
        batches = Batches(corpus, budget, seed, order)
    for plan in (batches.epoch_batches(epoch), batches.by_length()):
        assert sorted(i for indices in as_lists(plan) for i in indices) == list(range(len(lengths)))
        for indices in plan:
            batch = batches.batch(indices)
            assert len(indices) * max(batch.src.shape[1], batch.tgt.shape[1] - 1) <= budget
    assert all(len(indices) for indices in batches.epoch_batches(epoch))
    default_pools = Batches(corpus, budget, seed)
    assert as_lists(default_pools.by_length()) == as_lists(batches.by_length())
    longest = [max(max(lengths[i]) for i in indices) for indices in batches.by_length()]
    assert longest == sorted(longest)


@pytest.mark.parametrize("order", range(1, batching.ORDER_VERSION + 1))
@pytest.mark.parametrize("budget", [MAX_LENGTH, 2 * MAX_LENGTH])
def test_the_longest_sentences_are_within_the_token_budget(order, budget):
    lengths = [(n - 1, 5) for n in (MAX_LENGTH, 40_000, 32_768, 32_767, 30_000, 9)] * 4
    corpus = PairCorpus.from_pairs([([4] * s, [5] * t) for s, t in lengths])
    for epoch in range(3):
        plan = Batches(corpus, budget, order_version=order).epoch_batches(epoch)
        assert sorted(i for indices in as_lists(plan) for i in indices) == list(range(len(lengths)))
        assert all(len(indices) * int(corpus.src_lengths[indices].max()) <= budget for indices in plan)


@given(LENGTHS, st.data())
@settings(max_examples=60, deadline=None)
def test_a_batch_has_special_tokens_and_padding(lengths, draw):
    corpus = corpus_of(lengths)
    chosen = draw.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=6))
    batch = Batches(corpus, 100).batch(np.array(chosen))
    assert batch.src.dtype == batch.tgt.dtype == np.int32
    assert batch.n_targets == (batch.tgt[:, 1:] != PAD).sum() == sum(lengths[i][1] + 1 for i in chosen)
    for row, side, start in ((batch.src, 0, []), (batch.tgt, 1, [BOS])):
        expected = [[*start, *corpus.pair(i)[side], EOS] for i in chosen]
        width = max(map(len, expected))
        assert row.tolist() == [ids + [PAD] * (width - len(ids)) for ids in expected]


def test_a_batch_uses_the_special_ids_of_the_tokenizer(tmp_path):
    class Other(LetterTokenizer):
        special_ids = SpecialIds(pad_id=9, bos_id=8, eos_id=7)

    corpus = prepare(*write(tmp_path, ["ab", "a"], ["c", "cd"]), Other(), tmp_path / "out")
    a, b, c, d = Other().encode_batch(["abcd"])[0]
    batch = Batches(corpus, 10).batch(np.arange(2))
    assert batch.src.tolist() == [[a, b, 7], [a, 7, 9]] and batch.tgt.tolist() == [[8, c, 7, 9], [8, c, d, 7]]
    assert (batch.n_targets, batch.n_tokens, batch.shape) == (5, 10, (2, 3, 3))


def test_the_order_depends_only_on_seed_and_epoch():
    lengths = realistic_lengths(3000)
    first, other = Batches(corpus_of(lengths), 500, seed=7), Batches(corpus_of(lengths), 500, seed=7)
    other.epoch_batches(0), np.random.seed(3)
    assert as_lists(first.epoch_batches(2)) == as_lists(other.epoch_batches(2)) == as_lists(first.epoch_batches(2))
    orders = {
        str(as_lists(batches.epoch_batches(e)))
        for batches in (first, Batches(corpus_of(lengths), 500, 8))
        for e in range(3)
    }
    assert len(orders) == 6


def test_the_order_is_stable_across_numpy_versions():
    """A run that is resumed with another NumPy version must continue with the same batches."""
    batches = Batches(corpus_of([(3, 3)] * 11), 20, seed=1, order_version=1)
    assert as_lists(batches.epoch_batches(0)) == [[0, 2, 1, 9, 7], [4], [10, 6, 5, 8, 3]]
    assert as_lists(batches.epoch_batches(1)) == [[1, 9, 8, 4, 3], [10, 2, 7, 5, 6], [0]]
    batches = Batches(corpus_of([(3, 3), (3, 1), (1, 3), (5, 4)] * 3), 20, seed=1)
    assert as_lists(batches.epoch_batches(0)) == [[10, 6, 0, 8, 4], [11, 7, 3], [1, 9, 5], [2]]
    assert as_lists(batches.epoch_batches(1)) == [[7, 3], [10, 2], [6, 8, 4, 0, 5], [1, 9, 11]]


@pytest.mark.parametrize("version", range(1, batching.ORDER_VERSION + 1))
def test_epochs_differ_in_the_composition_and_order_of_batches(version):
    lengths = realistic_lengths(6000)
    batches = Batches(corpus_of(lengths), 1000, order_version=version)
    first_batch = {i: b for b, indices in enumerate(as_lists(batches.epoch_batches(0))) for i in indices}
    second = as_lists(batches.epoch_batches(1))
    overlaps = [
        max(np.bincount([first_batch[i] for i in indices])) / len(indices) for indices in second if len(indices) > 5
    ]
    assert np.mean(overlaps) < {1: 0.4, 2: 0.45}[version]  # two halves share at most half
    longest = np.array([max(max(lengths[i]) for i in indices) for indices in second])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def padding(corpus, plan):
    """Return the fraction of padding among the source and target positions of the batches."""
    sides = corpus.src_lengths, corpus.tgt_lengths
    counts = [(int(side[i].sum()), len(i) * int(side[i].max())) for i in plan for side in sides]
    tokens, positions = map(sum, zip(*counts, strict=True))
    return 1 - tokens / positions


def test_padding_is_small():
    batches = Batches(corpus_of(realistic_lengths(8_000)), 2048)
    plan = batches.epoch_batches(0)
    fraction = padding(batches.corpus, plan)
    assert 0.02 < fraction < 0.07
    shapes = [batches.batch(indices) for indices in plan]
    positions = sum(b.src.size + b.tgt.size - len(b.tgt) for b in shapes)
    tokens = sum(int((b.src != PAD).sum()) + b.n_targets for b in shapes)
    assert fraction == pytest.approx(1 - tokens / positions)


@pytest.mark.parametrize("batch_tokens", [64, 256, 1024, 4096, 16384])
def test_padding_is_at_most_that_of_the_other_schemes(batch_tokens):
    corpus = corpus_of(realistic_lengths(6_000))
    row = measure(corpus, batch_tokens, epochs=2)
    present = row.pop(f"version {batching.ORDER_VERSION}")
    others = row.values()
    assert present["padding"] <= min(other["padding"] for other in others)
    assert present["batches"] <= min(other["batches"] for other in others) + 1
    assert present["repeats"] <= row["fairseq"]["repeats"]


@pytest.mark.parametrize("name", ["multi30k", "tatoeba"])
def test_padding_is_small_on_real_text(name, tmp_path):
    files = [REAL / name / f"train.{side}" for side in ("en", "de")]
    if not all(file.exists() for file in files):
        pytest.skip(f"no {name} under {REAL}; set NPX_DATA")
    lines = [next(read_lines(file, chunk_lines=4_000)) for file in files]
    tokenizer = Tokenizer.train(src_tgt := write(tmp_path, *lines), vocab_size=3000)
    batches = Batches(prepare(*src_tgt, tokenizer, tmp_path / "out"), 512)
    assert padding(batches.corpus, batches.epoch_batches(0)) < 0.10


def test_invalid_budgets_and_seeds_raise_user_errors():
    corpus = corpus_of([(3, 4), (9, 2)])
    assert len(Batches(corpus, 10).epoch_batches(0)) == 2
    for arguments, message in [
        ((corpus, 9), "batch_tokens: expected at least 10, .*; got 9; try"),
        ((corpus, 100, -1), "train.seed: expected 0 or more; got -1; try"),
        ((PairCorpus.from_pairs([]), 100), "corpus: expected at least one pair with tokens .*; got 0 pairs; try other"),
    ]:
        with pytest.raises(UserError, match=message):
            Batches(*arguments)
    with pytest.raises(IndexError):
        corpus.pair(2)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_stream_builds_each_batch_of_each_epoch_once(ahead, monkeypatch):
    corpus = PairCorpus.from_pairs([(tuple(range(4, 5 + i % 7)), (4, 5 + i)) for i in range(30)])
    batches = Batches(corpus, 20, seed=3)
    expected = [indices.tolist() for epoch in range(3) for indices in batches.epoch_batches(epoch)]
    built = []
    batch = Batches.batch
    monkeypatch.setattr(Batches, "batch", lambda self, i: (built.append(i.tolist()), batch(self, i))[1])
    loader = BatchLoader(batches)
    position = (0, 0)
    for number, indices in enumerate(expected):
        assert np.array_equal(loader.batch(position).tgt, batch(batches, np.array(indices)).tgt)
        position = loader.next_position(position)
        if ahead and number % ahead == 0:
            loader.prefetch(loader.positions(position, ahead))
    assert position == (3, 0) and built[: len(expected)] == expected
