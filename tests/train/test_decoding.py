"""Decoding of text (train/tasks/decoding.py): scores, alignments, samples, prefixes and ensembles of models."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from models.search import Ensemble, align
from tests.train.test_translate import EchoModel, LetterTokenizer
from train.cli import main
from train.errors import UserError
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.tasks.decoding import decode_stream, score_pairs, to_json, word_indices
from train.tasks.pairs import trained_length
from train.text import sentencepiece_tokenizer
from train.text.tokenizer import SpecialIds, Tokenizer

LINES = ["one two three", "", "zero", "nine nine", "four"]


@pytest.fixture(scope="module")
def loaded(uninterrupted):
    return load_model(uninterrupted)[:2]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def translate(capfd, run, *arguments):
    assert main(["translate", "--model", str(run), *map(str, arguments)]) == 0
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize("n_models", [1, 2])
def test_scores_of_translations_equal_scores_of_pairs(uninterrupted, source, tmp_path, capfd, n_models):
    again = ["--model", str(uninterrupted)] * (n_models - 1)
    scored = translate(capfd, uninterrupted, "--input", source, "--scores", "--max-extra-tokens", 30, *again)
    rows = [row.split(" ||| ") for row in scored]
    target = tmp_path / "target"
    target.write_text("".join(f"{row[0]}\n" for row in rows), encoding="utf-8")
    arguments = ["score", "--pairs", str(source), str(target), "--model", str(uninterrupted), *again]
    assert main(arguments) == 0
    out, err = capfd.readouterr()
    same = 0
    for row, pair in zip(rows, (line.split(" ||| ") for line in out.splitlines()), strict=True):
        assert row[0] == pair[0]
        ids, forced = ([float(x) for x in fields[2].split()] for fields in (row, pair))
        if len(ids) == len(forced):  # finished, and the tokens of the text are those of the hypothesis
            np.testing.assert_allclose(ids, forced, atol=2e-4)
            same += 1
    assert same >= 2 and rows[1] == ["", "0.0000", ""]
    assert main([*arguments, "--quiet", "--output", str(tmp_path / "scored")]) == 0
    assert "log-prob" not in capfd.readouterr().err and (tmp_path / "scored").read_text(encoding="utf-8") == out
    assert main([*arguments, "--output", str(target)]) == 2
    assert "this output would replace an input" in capfd.readouterr().err
    assert main([*arguments, "--json"]) == 0
    objects = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert all("log_probability" in fields and "score" not in fields for fields in objects)
    values = [float(x) for line in out.splitlines() for x in line.split(" ||| ")[2].split()]
    assert f"5 pairs, {len(values)} tokens: log-probability" in err
    assert float(err.split()[-1]) == pytest.approx(math.exp(-sum(values) / len(values)), rel=1e-4)
    assert main([*arguments, "--json"]) == 0
    objects = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [o["index"] for o in objects] == list(range(5))
    assert all(len(o["tokens"]) == len(o["token_log_probabilities"]) for o in objects)


def test_fields_follow_the_text_in_both_formats(uninterrupted, source, capfd):
    options = ("--input", source, "--n-best", 2, "--beam-size", 3, "--scores", "--alignments")
    rows = [row.split(" ||| ") for row in translate(capfd, uninterrupted, *options)]
    objects = [json.loads(line) for line in translate(capfd, uninterrupted, *options, "--json")]
    assert len(rows) == len(objects) == 9  # two for each line with words, one for the empty line
    for row, o in zip(rows, objects, strict=True):
        index, text, score, log_probability, terms, alignment = row
        assert (int(index), text, alignment) == (o["index"], o["text"], o["alignment"])
        assert float(score) == pytest.approx(o["score"], abs=1e-4)
        assert float(log_probability) == pytest.approx(o["log_probability"], abs=1e-4)
        assert [float(x) for x in terms.split()] == pytest.approx(o["token_log_probabilities"], abs=1e-4)
        assert sum(o["token_log_probabilities"]) == pytest.approx(o["log_probability"], abs=1e-4)
        assert "".join(o["tokens"]).removesuffix("</s>").replace("▁", " ").split() == text.split()
        n_source, n_target = len(LINES[o["index"]].split()), len(text.split())
        pairs = [tuple(map(int, pair.split("-"))) for pair in alignment.split()]
        assert pairs == sorted(set(pairs)) and {j for _, j in pairs} == set(range(n_target))
        assert all(i < n_source for i, _ in pairs)
    plain = translate(capfd, uninterrupted, "--input", source, "--beam-size", 3)
    assert plain == [row[1] for i, row in enumerate(rows) if i == 0 or row[0] != rows[i - 1][0]]


def test_samples_depend_on_the_seed_and_the_line_only(loaded):
    model, tokenizer = loaded

    def texts(lines, seed, **options):
        sampling = {"samples": 3, "temperature": 2.0, "seed": seed}
        return [[t.text for t in ts] for ts in decode_stream(model, tokenizer, lines, sampling=sampling, **options)]

    together = texts(LINES, 1, max_extra_tokens=3)
    assert together == texts(LINES, 1, max_extra_tokens=3, batch_tokens=1, buffer_size=1)
    assert together != texts(LINES, 2, max_extra_tokens=3)
    assert [len(line) for line in together] == [3, 1, 3, 3, 3]
    with pytest.raises(ValueError, match="samples: expected"):
        decode_stream(model, tokenizer, LINES, sampling={"samples": 0})


def test_translations_begin_with_their_prefixes(loaded, uninterrupted, source, tmp_path, capfd):
    model, tokenizer = loaded
    prefixes = ["eins zwe", "", "", "ne", "vier  fünf"]
    for options in ({"beam_size": 2}, {"sampling": {"samples": 1}}):
        results = [ts[0].text for ts in decode_stream(model, tokenizer, LINES, prefixes=prefixes, **options)]
        assert all(t.startswith(" ".join(p.split())) for t, p in zip(results, prefixes, strict=True) if p)
    free = [ts[0].text for ts in decode_stream(model, tokenizer, LINES, beam_size=2)]
    some = [ts[0].text for ts in decode_stream(model, tokenizer, LINES, beam_size=2, prefixes=["", *prefixes[1:]])]
    assert some[:3] == free[:3]
    file = tmp_path / "prefixes"
    for lines, got in (("a\nb\n", "got 2 for 5 lines"), ("a\n" * 6, "got 6 for 5 lines")):
        file.write_text(lines)
        output = tmp_path / "output"
        arguments = ["--input", str(source), "--prefixes", str(file), "--output", str(output)]
        assert main(["translate", "--model", str(uninterrupted), *arguments]) == 2
        error = capfd.readouterr().err
        assert (
            f"--prefixes {file}: expected one prefix for each line of the input; {got}; try" in error
            and error.count("\n") == 1
        )
        assert not output.exists()


def test_a_line_longer_than_those_in_training_is_reported(loaded, uninterrupted, tmp_path, capfd):
    model, tokenizer = loaded
    file = tmp_path / "input"
    messages = []
    lines = [" ".join(["one two three"] * 40), "one"]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    n = len(tokenizer.encode(lines[0]))
    assert n > 255
    list(decode_stream(model, tokenizer, lines, beam_size=1, trained_length=n + 1, on_warning=messages.append))
    assert not messages
    warning = (
        f"line 1: the model was trained on at most 255 tokens, and this line has {n}, so its output may be incomplete"
    )
    assert main(["translate", "--model", str(uninterrupted), "--input", str(file), "--beam-size", "1", "--quiet"]) == 0
    assert capfd.readouterr().err == f"{warning}; try splitting the line\n"
    imported = RunConfig()  # has no training text
    assert trained_length(imported) is None


def test_pairs_with_an_empty_side_are_counted(uninterrupted, tmp_path, capfd):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("one\n\n\ntwo\n", encoding="utf-8")
    target.write_text("eins\ny\n\n\n", encoding="utf-8")
    pairs = ["score", "--model", str(uninterrupted), "--pairs", str(source), str(target)]
    assert main(pairs) == 0
    assert "3 pairs with an empty side; training skips such pairs\n" in capfd.readouterr().err
    assert main([*pairs[:-1], str(source)]) == 0 and "1 pair" not in capfd.readouterr().err.replace("4 pairs", "")


def test_sequences_that_the_model_cannot_generate_are_named():
    model = EchoModel()
    tokenizer = LetterTokenizer()
    model.max_length = 4
    with pytest.raises(UserError, match="prefix 2: expected at most 3 tokens; got 4; try"):
        decode_stream(model, tokenizer, ["a", "b", "cc"], prefixes=["", "abcd", "abcde"], beam_size=1)
    tokenizer.subwords = lambda ids: [f"<{i}>" for i in ids]
    model.config.suppressed_ids = tokenizer.encode_batch(["c"])[0]
    for options in ({"beam_size": 1}, {"sampling": {"samples": 1}}):
        with pytest.raises(UserError, match="prefix 2: expected tokens that the model may generate; got '<6>'; try"):
            decode_stream(model, tokenizer, ["ab", "c"], prefixes=["b", "bc"], **options)
    with pytest.raises(UserError, match="line 2: expected at most 3 target tokens; got 4; try"):
        list(score_pairs(model, tokenizer, [(["a", "b", "c"], ["a", "abcd", "abcde"])]))


@pytest.mark.parametrize(
    "sampling, error, message",
    [
        ({"top_q": 0.5}, TypeError, "top_q: unknown argument; try top_[kp]"),
        ({"source_numbers": [1]}, TypeError, "source_numbers: unknown argument; expected one of samples, "),
        ({"samples": 0}, ValueError, "samples: expected a whole number >= 1; got 0"),
        ({"seed": -1}, ValueError, "seed: expected a whole number >= 0; got -1"),
    ],
)
def test_invalid_options_of_sampling_are_named_immediately(sampling, error, message):
    with pytest.raises(error, match=message):
        decode_stream(EchoModel(), LetterTokenizer(), ["a"], sampling=sampling)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-k", "3"], "--top-k has no effect without --samples; try adding --samples 1"),
        (["--samples", "2", "--beam-size", "3"], "--beam-size applies to beam search, not to --samples"),
        (["--samples", "2", "--n-best", "3"], "--n-best applies to beam search, not to --samples"),
        (["--samples", "0"], "--samples: expected"),
        (["--prefixes", "none"], "none: expected a text file"),
    ],
)
def test_invalid_options_of_translate(uninterrupted, source, capfd, arguments, message):
    assert main(["translate", "--model", str(uninterrupted), "--input", str(source), *arguments]) == 2
    out, err = capfd.readouterr()
    assert message in err and err.count("\n") == 1 and not out


def test_invalid_options_of_score(uninterrupted, source, capfd):
    model, pairs = ["--model", str(uninterrupted)], ["--pairs", str(source), str(source)]
    for arguments, message in (
        (pairs, "--pairs needs a model; try --model RUN"),
        ([*pairs, *model, "--ref", str(source)], "--pairs cannot be combined with --ref"),
        (["--ref", str(source)], "missing --hyp; try --hyp F"),
        (
            ["--ref", str(source), "--hyp", str(source), "--src", str(source), *model, *model],
            "expected one --model; got 2",
        ),
    ):
        assert main(["score", *arguments]) == 2
        assert message in capfd.readouterr().err


def test_an_ensemble_needs_one_tokenizer(uninterrupted, source, capfd):
    other = Path(__file__).with_name("run_0_2")
    assert main(["translate", "--model", str(uninterrupted), "--model", str(other), "--input", str(source)]) == 2
    error = capfd.readouterr().err
    assert f"runs with the same tokenizer; got different tokenizers in {other} and {uninterrupted}; try" in error
    assert error.count("\n") == 1


# Alignments


class AttentiveModel:
    """A fake model whose last layer has the given cross-attention (H, T, S)."""

    config = SimpleNamespace(pad_id=0, bos_id=1, eos_id=2)

    def __init__(self, weights):
        self.weights = np.array(weights)

    def attention_layers(self):
        return {"cross": [self]}

    def inspect(self, src, tgt, kinds):
        assert kinds == ("cross",) and (tgt.shape[1], src.shape[1]) == self.weights.shape[1:]
        return SimpleNamespace(maps={"cross": [-self.weights[None], self.weights[None]]})


def test_a_token_is_aligned_to_the_source_token_of_greatest_mean_weight():
    src = np.array([[5, 6, 2]])  # the last column is EOS
    output = [[7, 8]]
    first = AttentiveModel([[[0.5, 0.4, 0.1], [0.2, 0.1, 0.7]], [[0.0, 0.4, 0.6], [0.1, 0.1, 0.8]]])
    assert align(first, src, output) == [[1, 0]]
    second = AttentiveModel([[[0.9, 0.1, 0.0], [0.1, 0.2, 0.7]]])
    assert align(second, src, output) == [[0, 1]]
    ensemble = Ensemble.__new__(Ensemble)
    ensemble.members = [first, second]
    ensemble.config = first.config
    assert align(ensemble, src, output) == [[0, 1]]


def test_tokens_belong_to_words(tmp_path):
    path = tmp_path / "text"
    path.write_text("fünf und sechs\nund fünf sechs\n" * 3, encoding="utf-8")
    tokenizer = Tokenizer.train(path, vocab_size=270)
    for line in ("fünf und sechs", "öund ü .", "x"):
        ids = tokenizer.encode(line)
        starts = "".join(x[0] for x in tokenizer.subwords(ids)).count("▁")
        assert starts == len(line.split()) == max(word_indices(tokenizer, ids)) + 1
    space, q = tokenizer.encode("q")  # a character that the training text lacks is not merged with its space
    assert tokenizer.subwords([space, q, tokenizer.eos_id]) == ["▁", "q", "</s>"]
    assert word_indices(tokenizer, [space, q, space, q, space]) == [0, 0, 1, 1, 1]


class LetterEngine:
    """A fake of SentencePiece whose pieces are letters and spaces, and which decodes pieces as the library does."""

    def encode(self, texts, **options):
        return [list("▁" + text.replace(" ", "▁")) for text in texts]

    def decode_pieces(self, pieces):
        return "".join({"▁": " ", "<unk>": " ⁇ "}.get(piece, piece) for piece in pieces).removeprefix(" ")


@pytest.mark.parametrize(
    ("line", "decoded", "words"),
    [
        ("a 🙂 b a", "a ⁇ b a", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("a🙂b b", "a⁇b b", [0, 0, 0, 0, 1, 1]),
        ("🙂 a", "⁇ a", [0, 0, 1, 1]),
    ],
)
def test_an_unknown_token_of_sentencepiece_adds_no_words(monkeypatch, line, decoded, words):
    monkeypatch.setattr(sentencepiece_tokenizer, "load_engine", lambda *arguments: LetterEngine())
    vocabulary = {piece: i for i, piece in enumerate(["<pad>", "</s>", "<unk>", "▁", "a", "b"])}
    tokenizer = sentencepiece_tokenizer.SentencePieceTokenizer(b"", vocabulary, SpecialIds(0, 0, 1, 2))
    ids = tokenizer.encode(line)
    assert tokenizer.decode(ids) == decoded and word_indices(tokenizer, ids) == words


def test_json_of_a_translation_that_was_cut_off_has_no_end(loaded):
    model, tokenizer = loaded
    ((t,),) = decode_stream(
        model, tokenizer, ["one two three"], beam_size=1, max_extra_tokens=1, prefixes=["acht neun acht neun"]
    )
    fields = to_json(t, tokenizer, True, False)
    assert len(fields["tokens"]) == len(fields["token_log_probabilities"])
    assert (fields["tokens"][-1] == "</s>") == t.hypothesis.finished
