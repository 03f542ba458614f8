"""Laws of the tokenizer: lossless encoding, deterministic training, and rejection of damaged files."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from tests import ROOT
from train.errors import UserError
from train.text.pair_tokenizer import load_tokenizer
from train.text.tokenizer import ALPHABET, KINDS, MIN_VOCAB_SIZE, PRETOKENIZERS, SPECIALS, Tokenizer, normalize

BOTH = [(kind, pretokenizer) for kind in KINDS for pretokenizer in PRETOKENIZERS]
SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")  # Unicode's White_Space
HOSTILE = st.sampled_from(
    ["</s>", "<s>", "<pad>", " <unk>", "Ġ", "▁", "##", "ü", "日本", "👩\u200d👧", "e\u0301", "\u2028", "\x1c", "<"]
)
TEXT = st.lists(st.text() | HOSTILE | st.text("ab <>/s", max_size=8), max_size=8).map("".join)


def single_spaced(text: str) -> str:
    return SPACE.sub(" ", text).strip(" ")


def corpus(lines: int = 300, seed: int = 0) -> str:
    """Return words of syllables, with numbers, punctuation and umlauts, so that many pairs have equal counts."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(["ba", "lo", "ti", "ün", "s", "sch", "er"], k=rng.randint(1, 4))) for _ in range(150)]
    words += ["12", "1990", ",", ".", "...", "</s>", "can't", "x2y"]
    return "".join(
        " ".join(rng.choices(words, k=rng.randint(1, 9))) + rng.choice([".", "!", ""]) + "\n" for _ in range(lines)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "a.txt").write_text(corpus(seed=1), encoding="utf-8")
    (folder / "b.txt").write_text(corpus(seed=2), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizers(folder):
    paths = [folder / "a.txt", folder / "b.txt"]
    return {key: Tokenizer.train(paths, key[0], 600, key[1]) for key in BOTH}


@pytest.mark.parametrize("key", BOTH)
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXT, max_size=5))
def test_decode_inverts_encode_up_to_white_space(tokenizers, key, texts):
    tokenizer = tokenizers[key]
    ids = tokenizer.encode_batch(texts)
    assert tokenizer.decode_batch(ids) == [single_spaced(text) for text in texts] == [normalize(text) for text in texts]
    assert all(len(SPECIALS) <= i < tokenizer.vocab_size for row in ids for i in row)
    assert ids == [tokenizer.encode(text) for text in texts]  # independent of the other texts in the batch
    assert ids == tokenizer.encode_batch([single_spaced(text) for text in texts])  # all whitespace is equal


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, MIN_VOCAB_SIZE + 20), max_size=12))
def test_any_ids_decode_to_one_line_without_special_tokens(tokenizers, ids):
    tokenizer = tokenizers["bpe", "words"]
    text = tokenizer.decode(ids)
    assert text == tokenizer.decode([1, *ids, 2, 0]) == single_spaced(text) and "\n" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic_across_processes(folder, tokenizers, kind):
    tokenizers[kind, "words"].save(folder / "here.json")
    expected = (folder / "here.json").read_bytes()
    program = (
        "import sys; from train.text.tokenizer import Tokenizer\n"
        "Tokenizer.train(sys.argv[1:3], sys.argv[3], 600, 'words').save(sys.argv[4])"
    )
    for i, change in enumerate(
        [{"RAYON_NUM_THREADS": "1"}, {"RAYON_NUM_THREADS": "3"}, {"TOKENIZERS_PARALLELISM": "false"}]
    ):
        output = folder / f"output-{i}.json"
        command = [sys.executable, "-c", program, str(folder / "a.txt"), str(folder / "b.txt"), kind, str(output)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **change, "PYTHONHASHSEED": str(i)})
        assert output.read_bytes() == expected


def train_plain_loop(words: Counter[str], size: int) -> list[list[str]]:
    """Return the merges by definition: merge the most frequent pair; among ties, the pair with the oldest subwords."""
    ids = {character: i for i, character in enumerate(ALPHABET)}
    segmented = {word: list(word) for word in words}
    merges: list[list[str]] = []
    while len(ids) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, subwords in segmented.items():
            for pair in zip(subwords, subwords[1:], strict=False):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda p: (-pairs[p], ids[p[0]], ids[p[1]]), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(list(best))
        ids.setdefault("".join(best), len(ids))
        for subwords in segmented.values():
            i = 0
            while i < len(subwords) - 1:
                if (subwords[i], subwords[i + 1]) == best:
                    subwords[i : i + 2] = ["".join(best)]
                i += 1
    return merges


@settings(max_examples=30, deadline=None)
@given(
    words=st.lists(
        st.text("ab", min_size=1, max_size=10) | st.text("abcd", min_size=1, max_size=6), min_size=1, max_size=30
    )
)
def test_merges_equal_a_plain_loop_even_for_tied_frequencies(tmp_path_factory, words):
    path = tmp_path_factory.mktemp("tie") / "text"
    path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    Tokenizer.train([path], "bpe", MIN_VOCAB_SIZE + 60, "whitespace").save(path)
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    assert model["merges"] == train_plain_loop(Counter("Ġ" + word for word in words), len(ALPHABET) + 60)
    subwords = list(dict.fromkeys(left + right for left, right in model["merges"]))
    assert list(model["vocab"]) == [*SPECIALS, *ALPHABET, *subwords]  # in the order of their ids
    assert list(model["vocab"].values()) == list(range(len(model["vocab"])))


@pytest.mark.parametrize("key", BOTH)
def test_names_of_special_tokens_in_the_text_are_plain_text(tmp_path, key):
    names = "</s> <s>\na</s>b\n<unk>\n<pad></s>\n"
    (tmp_path / "text").write_text(names * 50, encoding="utf-8")
    tokenizer = Tokenizer.train([tmp_path / "text"], key[0], 400, key[1])
    for name in (*SPECIALS, *names.split("\n")):
        assert min(tokenizer.encode(name), default=9) >= len(SPECIALS)
        assert tokenizer.decode(tokenizer.encode(name)) == name


def test_subwords_do_not_mix_letters_digits_and_symbols(tokenizers):
    tokenizer = tokenizers["bpe", "words"]
    for i in range(MIN_VOCAB_SIZE, tokenizer.vocab_size):
        subword = tokenizer.decode([i])
        assert re.fullmatch(r"[^\W\d_]*|\d*|[\W_]*", subword.replace("\ufffd", "")), subword
    assert any(len(tokenizer.decode([i])) > 3 for i in range(MIN_VOCAB_SIZE, tokenizer.vocab_size))
    loose = tokenizers["bpe", "whitespace"]
    assert len(loose.encode("can't")) < len(tokenizer.encode("can't"))  # may join letters and symbols


@pytest.mark.parametrize("key", BOTH)
def test_save_and_load_round_trip_even_in_the_library(tmp_path, tokenizers, key):
    tokenizer = tokenizers[key]
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    loaded.save(tmp_path / "loaded.json")
    assert path.read_bytes() == (tmp_path / "loaded.json").read_bytes()
    assert (loaded.digest, loaded.vocab_size) == (tokenizer.digest, tokenizer.vocab_size)
    assert sorted(os.listdir(tmp_path)) == ["loaded.json", "tokenizer.json"]
    library = HuggingFaceTokenizer.from_file(str(path))
    text = "bulti  Über 1990 ünlo ,  x2y..."
    assert library.get_vocab_size() == tokenizer.vocab_size
    assert library.encode(text).ids == tokenizer.encode(text) == loaded.encode(text)
    assert library.decode(library.encode(text).ids) == single_spaced(text)
    assert [library.token_to_id(name) for name in SPECIALS] == [0, 1, 2, 3]


def test_the_digest_depends_on_the_tokenizer_not_on_the_layout(tmp_path, tokenizers):
    path = tmp_path / "tokenizer.json"
    tokenizers["bpe", "words"].save(path)
    spec = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(dict(reversed(spec.items()))), encoding="utf-8")
    assert Tokenizer.load(path).digest == tokenizers["bpe", "words"].digest
    assert len({tokenizer.digest for tokenizer in tokenizers.values()}) == len(BOTH)


def test_a_small_text_gives_a_small_vocabulary(tmp_path):
    (tmp_path / "text").write_text("ab ab ab cd\n", encoding="utf-8")
    tokenizer = Tokenizer.train(tmp_path / "text", vocab_size=37000)  # a single path is accepted
    assert tokenizer.vocab_size == MIN_VOCAB_SIZE + 2  # "ab" and " ab"; "cd" occurs once
    assert len(tokenizer.encode("ab cd")) == 1 + 3


def test_dropout_truncation_and_padding_of_foreign_files_are_disabled(tmp_path, tokenizers):
    path = tmp_path / "tokenizer.json"
    tokenizers["bpe", "words"].save(path)
    spec = json.loads(path.read_text(encoding="utf-8"))
    spec["model"]["dropout"] = 0.5
    spec["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 30},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    path.write_text(json.dumps(spec), encoding="utf-8")
    text = "balo tiba 1990 erlo."
    assert Tokenizer.load(path).encode(text) == tokenizers["bpe", "words"].encode(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"vocab_size": MIN_VOCAB_SIZE - 1},
            f"data.vocab_size: expected at least {MIN_VOCAB_SIZE} .* got {MIN_VOCAB_SIZE - 1}; try",
        ),
        ({"kind": "unigram"}, "tokenizer: expected one of bpe, wordpiece; got 'unigram'"),
        ({"pretokenizer": "chars"}, "pretokenizer: expected one of words, whitespace; got 'chars'"),
        ({"paths": ["no/such/file"]}, "no/such/file: expected a text file; got a path that does not exist; try"),
    ],
)
def test_invalid_training_arguments_raise_user_errors(folder, change, message):
    with pytest.raises(UserError, match=message) as error:
        Tokenizer.train(**{"paths": [folder / "a.txt"], **change})
    assert "\n" not in str(error.value)


def test_invalid_unicode_is_reported_with_its_number(tokenizers):
    with pytest.raises(UserError, match="text 2: expected UTF-8"):
        tokenizers["bpe", "words"].encode_batch(["fine", "caf\udce9"])


def broken_model(**changes: object):
    return lambda spec: {**spec, "model": {**spec["model"], **changes}}


DAMAGES = {
    "no model": lambda spec: {key: value for key, value in spec.items() if key != "model"},
    "a list": lambda spec: [spec],
    "no vocabulary": broken_model(vocab=3),
    "unknown model": broken_model(type="Magic"),
    "merge of unknown subwords": broken_model(merges=[["never", "seen"]]),
    "no special token": lambda spec: broken_model(
        vocab={{"<s>": "<begin>"}.get(p, p): i for p, i in spec["model"]["vocab"].items()}
    )({**spec, "added_tokens": [token for token in spec["added_tokens"] if token["content"] != "<s>"]}),
    "gap in the ids": lambda spec: broken_model(vocab={**spec["model"]["vocab"], "far": 99_999})(spec),
}


def test_special_ids_are_read_from_the_file(tmp_path, tokenizers):
    tokenizers["bpe", "words"].save(tmp_path / "tokenizer.json")
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["model"]["vocab"] = {token: i ^ 1 for token, i in spec["model"]["vocab"].items()}
    spec["added_tokens"] = [token | {"id": token["id"] ^ 1} for token in spec["added_tokens"]]
    other = Tokenizer(spec)
    assert other.special_ids == (1, 0, 3, 2) and (other.pad_id, other.bos_id, other.eos_id) == (1, 0, 3)
    assert other.decode([0, *other.encode("plain text"), 3, 1]) == "plain text"


@pytest.mark.parametrize("case", ["cut in half", "empty", "no UTF-8", *DAMAGES])
def test_a_damaged_file_raises_a_user_error_with_its_name(tmp_path, tokenizers, case):
    path = tmp_path / "tokenizer.json"
    tokenizers["wordpiece" if case == "gap in the ids" else "bpe", "words"].save(path)
    content = path.read_bytes()
    raw = {
        "cut in half": content[: len(content) // 2],
        "empty": b"",
        "no UTF-8": content[:9] + b"\xff" + content[9:],
    }
    path.write_bytes(raw[case] if case in raw else json.dumps(DAMAGES[case](json.loads(content))).encode())
    with pytest.raises(UserError, match=re.escape(str(path))) as error:
        Tokenizer.load(path)
    assert "\n" not in str(error.value) and re.search("expected .*; got .*; try ", str(error.value))
    assert "''" not in str(error.value)


@pytest.mark.parametrize("load", [Tokenizer.load, load_tokenizer])
@pytest.mark.parametrize("piece", ["<unk>", "<pad>", "</s>"])
def test_a_sentencepiece_model_is_named(tmp_path, load, piece):
    path = tmp_path / "sp.model"
    path.write_bytes(b"\n\x0e\n%c%b\x15\0\0\0\0\x18\x02\n\x11\n\x04the \x15\xc0\xff" % (len(piece), piece.encode()))
    with pytest.raises(UserError, match="json; got a SentencePiece model, which .*; try data.tokenizer=bpe, which"):
        load(path)


def test_a_missing_file_raises_a_user_error(tmp_path):
    with pytest.raises(UserError, match="got a path that does not exist"):
        Tokenizer.load(tmp_path / "none.json")


def test_errors_of_the_library_during_use_raise_user_errors(tmp_path):
    text = tmp_path / "text"
    text.write_text("one two three\n" * 5, encoding="utf-8")
    trained = Tokenizer.train([text], vocab_size=270)
    spec = {**trained._spec, "decoder": {"type": "Strip", "content": " ", "start": 0, "stop": 2**64 - 1}}
    for decoder in (spec["decoder"], {"type": "Strip", "content": " ", "start": 9, "stop": 9}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec | {"decoder": decoder}), encoding="utf-8")
        try:
            Tokenizer.load(tmp_path / "tokenizer.json").decode_batch([[4], []])
        except UserError as error:
            assert "tokenizer.json: expected " in str(error) and "\n" not in str(error)
