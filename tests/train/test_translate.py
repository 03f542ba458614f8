"""Translation of text (train/tasks/translation.py): order, alignment, buffers, limits."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import TransformerConfig
from train import load_model
from train.tasks.pairs import format_hypotheses, length_batches, pad_sources
from train.tasks.translation import best_translations, translate_lines, translate_stream

PAD = 0
BOS = 1
EOS = 2
FIRST = 4
LETTERS = "abcdefgh\n"


class LetterTokenizer:
    """A fake tokenizer: one token per letter."""

    def encode_batch(self, lines):
        return [[FIRST + LETTERS.index(c) for c in line if c in LETTERS] for line in lines]

    def decode_batch(self, sequences):
        return ["".join(LETTERS[i - FIRST] for i in ids) for ids in sequences]

    @property
    def target(self):
        return self


class EchoModel:
    """A fake model that copies its source with probability close to 1."""

    def __init__(self):
        special_ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS, "suppressed_ids": ()}
        self.config = SimpleNamespace(resolved_n_outputs=FIRST + len(LETTERS), **special_ids)
        self.training, self.max_length = False, None
        self.shapes = []

    def train(self, mode=True):
        self.training = mode

    def length_limits(self, src, max_extra_tokens):
        return (src > EOS).sum(axis=1) + max_extra_tokens

    def start_decoding(self, src):
        self.shapes.append(src.shape)
        cache = SimpleNamespace(source=src, position=0)
        cache.select = lambda rows: setattr(cache, "source", cache.source[rows])
        return np.full(len(src), BOS), cache

    def step(self, tokens, cache):
        logits = np.zeros((len(tokens), FIRST + len(LETTERS)), np.float32)
        position = min(cache.position, cache.source.shape[1] - 1)
        wanted = np.where(cache.source[:, position] == PAD, EOS, cache.source[:, position])
        logits[np.arange(len(tokens)), wanted] = 9
        cache.position += 1
        return logits


def echo(lines, **options):
    return translate_lines(EchoModel(), LetterTokenizer(), lines, **options)


text_lines = st.lists(st.text("abcdefgh ", max_size=12), max_size=30)


@given(text_lines, st.integers(1, 200), st.integers(1, 9), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_outputs_are_in_the_order_of_the_input(lines, batch_tokens, buffer_size, beam_size):
    options = {"batch_tokens": batch_tokens, "buffer_size": buffer_size, "beam_size": beam_size}
    results = echo([line + "\n" for line in lines], **options)
    assert [translations[0][0] for translations in results] == [line.replace(" ", "") for line in lines]
    assert all(len(translations) == 1 for translations in results)


@given(text_lines)
@settings(max_examples=20, deadline=None)
def test_results_do_not_depend_on_batches_and_buffers(lines):
    single = echo(lines, n_best=3, batch_tokens=1, buffer_size=1)
    batched = echo(lines, n_best=3)
    for a, b in zip(single, batched, strict=True):
        assert [text for text, _ in a] == [text for text, _ in b]
        np.testing.assert_allclose([score for _, score in a], [score for _, score in b])


@given(st.lists(st.integers(1, 40), max_size=50), st.integers(1, 300))
def test_batches_have_each_sentence_once_within_the_limit(lengths, batch_tokens):
    batches = list(length_batches(lengths, batch_tokens))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= batch_tokens
    longest_first = [lengths[i] for batch in batches for i in batch]
    assert longest_first == sorted(lengths, reverse=True)


def test_an_empty_line_stays_empty_without_a_search():
    model = EchoModel()
    results = translate_lines(model, LetterTokenizer(), ["", " ", "ab\r\n", "\n"], n_best=2)
    assert [results[0], results[1], results[3]] == [[("", 0.0)]] * 3
    assert results[2][0][0] == "ab" and len(results[2]) == 2
    assert model.shapes == [(1, 3)]
    assert echo([]) == []


def test_a_long_line_is_truncated_with_a_warning():
    warnings = []
    results = echo(["a", "abcd", "abcde", "abc"], max_length=4, buffer_size=2, on_warning=warnings.append)
    assert [translations[0][0] for translations in results] == ["a", "abc", "abc", "abc"]
    assert [message.split(";")[0] for message in warnings] == [
        "line 2: expected at most 3 tokens",
        "line 3: expected at most 3 tokens",
    ]
    assert "got 5" in warnings[1] and "\n" not in warnings[1]
    with pytest.warns(UserWarning, match="line 1: expected at most 3 tokens; got 5"):
        echo(["abcde"], max_length=4)


def test_the_length_limit_of_the_model_truncates_the_source():
    model = EchoModel()
    model.max_length = 4
    with pytest.warns(UserWarning, match="at most 3 tokens"):
        translate_lines(model, LetterTokenizer(), ["abcdef"])
    assert model.shapes == [(1, 4)]


def test_output_begins_before_the_input_ends():
    read = []

    def endless():
        while True:
            read.append("ab")
            yield "ab"

    stream = translate_stream(EchoModel(), LetterTokenizer(), endless(), buffer_size=5)
    assert next(stream)[0][0] == "ab"
    assert len(read) == 5


def test_progress_counts_every_line_once():
    steps = []
    echo(["ab", "", "c", "d" * 9], on_progress=steps.append, batch_tokens=1)
    assert steps == [1, 1, 1, 1]


def test_a_line_end_in_a_translation_becomes_a_space():
    class NewlineTokenizer(LetterTokenizer):
        def decode_batch(self, sequences):
            return [text.replace("b", "\n").replace("c", "\r") for text in super().decode_batch(sequences)]

    ((translation,),) = translate_lines(EchoModel(), NewlineTokenizer(), ["abac"])
    assert translation[0] == "a a "


def test_n_best_lists_have_the_format_of_moses():
    (translations,) = echo(["ab"], n_best=2, beam_size=2)
    assert format_hypotheses(translations, 0) == "ab"
    first, second = format_hypotheses(translations, 7, 2).split("\n")
    assert first == f"7 ||| ab ||| {translations[0][1]:.4f}"
    assert second.startswith("7 ||| ")


def test_a_wrong_argument_is_answered_with_the_right_one():
    for lines, option, message in (
        (["a"], {"n_bests": 2}, "n_bests: unknown argument; try n_best$"),
        (
            ["a"],
            {"num_beams": 2},
            "unknown argument; expected one of .*prefixes.* batch_tokens.* beam_size, length_penalty",
        ),
        ("I am Tom.", {}, "lines: expected a list of sentences; got a string; try \\['I am Tom.'\\]$"),
    ):
        with pytest.raises(TypeError, match=message):
            best_translations(None, None, lines, **option)
    with pytest.raises(TypeError, match="^device: unknown argument; expected one of path, task, on_warning$"):
        load_model("run", device="cuda")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        load_model()
    for configuration in (TransformerConfig, partial(TransformerConfig.preset, "tiny")):
        with pytest.raises(TypeError, match="^num_layers: unknown argument; try n_layers$"):
            configuration(vocab_size=300, num_layers=3)


def test_invalid_options_raise_before_any_line_is_read():
    def unreadable():
        raise AssertionError("read")
        yield ""

    for options in (
        {"beam_size": 0},
        {"n_best": 5},
        {"batch_tokens": 0},
        {"max_length": 1},
        {"length_penalty_type": "none"},
    ):
        with pytest.raises(ValueError, match="expected"):
            translate_stream(EchoModel(), LetterTokenizer(), unreadable(), **options)


def test_sources_are_padded_after_eos():
    config = SimpleNamespace(pad_id=PAD, eos_id=EOS)
    assert pad_sources([[5, 6], [7]], config).tolist() == [[5, 6, EOS], [7, EOS, PAD]]
    assert pad_sources([[]], config).tolist() == [[EOS]]
