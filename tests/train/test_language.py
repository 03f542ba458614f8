"""The task `language`: plain text as tokens and windows, training, and generation."""

import gzip
import json
import math
import os
import shutil
import tomllib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograd import no_grad
from tests.helpers.trainings import outcome
from tests.train.test_compatibility import BEFORE
from train import RunConfig, UserError, load_model, train
from train.cli.main import main
from train.learn import validation
from train.tasks import TASKS
from train.tasks.language import continue_text
from train.text.affixes import affix_spec
from train.text.lines import read_lines
from train.text.plain import KINDS, PlainText, PlainTokenizer, WindowBatch, WindowBatches, read_plain
from train.text.tokenizer import SPECIALS, Tokenizer

TEXT = "To be, or not to be:\n\n  that is\tthe question.\n" * 30
ANY = st.text(st.characters(codec="utf-8"), max_size=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a training text and a validation text."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "train.txt").write_text(TEXT, encoding="utf-8")
    (folder / "valid.txt").write_text(TEXT[:100] + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizers(folder):
    return {kind: PlainTokenizer.from_files([folder / "train.txt"], kind, 280) for kind in KINDS}


# ---- tokens


@given(text=st.text(st.sampled_from(sorted(set(TEXT)))) | ANY)
def test_decode_inverts_encode(text, tokenizers):
    known = "".join(c for c in text if c in TEXT)
    assert tokenizers["characters"].decode(tokenizers["characters"].encode(known)) == known
    assert len(tokenizers["characters"].encode(text)) == len(text), "one token per character, unknown ones included"
    assert tokenizers["bpe"].decode(tokenizers["bpe"].encode(text)) == text


@given(lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=9), max_size=5))
def test_encoding_line_by_line_equals_encoding_the_text(lines, tokenizers):
    for tokenizer in tokenizers.values():
        ids = [i for line in lines for i in tokenizer.encode(line + "\n")]
        assert ids == tokenizer.encode("".join(line + "\n" for line in lines))


def test_training_is_deterministic_and_load_inverts_save(folder, tokenizers, tmp_path):
    for kind, tokenizer in tokenizers.items():
        assert PlainTokenizer.from_files([folder / "train.txt"], kind, 280).digest == tokenizer.digest
        tokenizer.save(tmp_path / kind)
        assert PlainTokenizer.load(tmp_path / kind).digest == tokenizer.digest
    assert tokenizers["characters"].vocab_size == 4 + len(set(TEXT)) and tokenizers["bpe"].vocab_size > 262


def test_a_tokenizer_that_loses_whitespace_is_rejected_only_in_a_new_run(folder, tokenizers, tmp_path, monkeypatch):
    lossy = {kind: Tokenizer.train(folder / "train.txt", kind, 270) for kind in ("bpe", "wordpiece")}
    lossy["affixes"] = Tokenizer(affix_spec([TEXT.split()], SPECIALS, 200))
    task = TASKS["language"]
    for name, tokenizer in lossy.items():
        tokenizer.save(tmp_path / f"{name}.json")
        values = tomllib.loads(config(folder, max_steps=1).dump())
        values["data"]["tokenizer"] = str(tmp_path / f"{name}.json")
        with pytest.raises(UserError, match="expected a tokenizer that preserves spaces .*; try characters or bpe to"):
            train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    (tmp_path / "Greek").write_text("αβγ\nδ", encoding="utf-8")
    for tokenizer in (*tokenizers.values(), PlainTokenizer.from_files([tmp_path / "Greek"], "characters", 280)):
        assert task.adapt_tokenizer(tokenizer, None, ()) is tokenizer
    with monkeypatch.context() as patch:  # a run of an earlier version
        patch.setattr(type(task), "adapt_tokenizer", lambda self, tokenizer, *_: tokenizer)
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    shutil.move(tmp_path / "affixes.json", tmp_path / "moved.json")
    values["data"]["tokenizer"], values["train"]["max_steps"] = str(tmp_path / "moved.json"), 2
    assert train(RunConfig.from_dict(values), tmp_path / "run", resume=True, progress=False).step == 2


@pytest.mark.parametrize("end", ["", "\n", "\r", "\r\n", "\r\r\n"])
def test_the_last_line_ends_as_any_other_line(tmp_path, end):
    """One carriage return is dropped."""
    for name, content in (("last", f"first\nlast{end}"), ("middle", f"last{end.rstrip(chr(10))}\nfirst\n")):
        (tmp_path / name).write_bytes(content.encode())
    (last,), (middle,) = read_plain(tmp_path / "last"), read_plain(tmp_path / "middle")
    assert last == middle[::-1] == [f"{line}\n" for lines in read_lines(tmp_path / "last") for line in lines]


def test_the_memory_for_finding_the_characters_does_not_grow_with_the_text(tmp_path):
    (tmp_path / "long").write_text("0123456789 abcdefgh\n" * 20_000)
    tracemalloc.start()
    try:
        PlainTokenizer.from_files([tmp_path / "long"], "characters", 99)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


def test_a_vocabulary_smaller_than_the_characters_raises(folder):
    match = r"vocab_size: expected at least 23 \(19 different characters and 4 .*\); got 22; try a larger data.voc"
    with pytest.raises(UserError, match=match):
        PlainTokenizer.from_files([folder / "train.txt"], "characters", 22)
    with pytest.raises(UserError, match="tokenizer: expected one of characters, bpe; got 'wordpiece'"):
        PlainTokenizer.from_files([folder / "train.txt"], "wordpiece", 300)


# ---- windows


@given(n=st.integers(2, 60), length=st.integers(1, 9), per_batch=st.integers(1, 4), seed=st.integers(0, 99))
def test_an_epoch_has_adjacent_windows_in_random_order(n, length, per_batch, seed):
    if n <= length:
        with pytest.raises(UserError, match=f"expected a text of at least {length + 1} tokens"):
            PlainText(np.arange(n), length)
        return
    batches = WindowBatches(PlainText(np.arange(n), length), per_batch * length, seed)
    for epoch in range(3):
        plan = batches.epoch_batches(epoch)
        assert [len(starts) for starts in plan[:-1]] == [per_batch] * (len(plan) - 1)
        starts = np.sort(np.concatenate(plan))
        assert starts[0] < length and starts[-1] + length < n <= starts[-1] + 2 * length
        assert (np.diff(starts) == length).all()
        for indices, expected in zip(
            plan, WindowBatches(batches.text, per_batch * length, seed).epoch_batches(epoch), strict=True
        ):
            batch = batches.batch(indices)
            assert np.array_equal(batch.ids, indices[:, None] + np.arange(length + 1))
            assert np.array_equal(indices, expected)
            halves = batch.halves()
            assert np.array_equal(np.concatenate([half.ids for half in halves]), batch.ids)
            assert sum(half.n_targets for half in halves) == batch.n_targets == len(indices) * length


def test_epochs_differ_in_offset_and_order():
    batches = WindowBatches(PlainText(np.arange(1000), 50), 100, seed=3)
    plans = [np.concatenate(batches.epoch_batches(epoch)) for epoch in range(4)]
    assert len({int(plan.min()) for plan in plans}) == 4 and all(np.diff(plan).min() < 0 for plan in plans)
    other = WindowBatches(PlainText(np.arange(1000), 50), 100, seed=4).epoch_batches(0)
    assert not np.array_equal(np.concatenate(other), plans[0])


@given(n=st.integers(2, 60), length=st.integers(1, 9), per_batch=st.integers(1, 4))
def test_validation_predicts_each_token_once(n, length, per_batch):
    text = PlainText(np.arange(n), min(length, n - 1))
    batches = [batch for _, batch in WindowBatches(text, per_batch * length).validation_batches()]
    assert np.array_equal(np.concatenate([batch.ids[:, 1:].ravel() for batch in batches]), np.arange(1, n))
    assert all(batch.shape[0] * batch.shape[1] <= per_batch * length for batch in batches)


def test_a_window_larger_than_the_batch_raises():
    with pytest.raises(UserError, match="batch_tokens: expected at least data.max_length = 8; got 7"):
        WindowBatches(PlainText(np.arange(99), 8), 7)


# ---- a training run


def config(folder, **changes):
    return RunConfig.from_dict(
        {
            "model": {
                **{
                    "architecture": "decoder",
                    "d_model": 16,
                    "d_ff": 32,
                    "n_heads": 2,
                    "n_layers": 1,
                    "norm_placement": "pre",
                },
                **{"positions": "rotary", "activation": "swiglu", "norm_type": "rms_norm", "dropout": 0.1},
            },
            "data": {
                **{"task": "language", "tokenizer": "characters", "vocab_size": 300, "max_length": 12},
                **{"train_text": str(folder / "train.txt"), "valid_text": str(folder / "valid.txt")},
            },
            "train": {
                **{"batch_tokens": 96, "gradient_accumulation_steps": 2, "max_steps": 9},
                **{"warmup_steps": 20, "label_smoothing": 0.0},
                **{"validate_every": 3, "checkpoint_every": 3, "log_every": 2, **changes},
            },
        }
    )


@pytest.fixture(scope="module")
def trained_run(folder, tmp_path_factory):
    """Return a run that has memorized its text."""
    out = tmp_path_factory.mktemp("trained_run") / "run"
    changes = {"max_steps": 150, "validate_every": 150, "checkpoint_every": 150, "lr_scale": 2.0}
    summary = train(config(folder, **changes), out, progress=False)
    assert summary.valid_loss < 1.2 and summary.scores == {}
    return out


def test_resuming_equals_an_uninterrupted_run(folder, tmp_path):
    train(config(folder), tmp_path / "uninterrupted", progress=False)
    for steps, resume in ((4, False), (9, True)):
        train(config(folder, max_steps=steps), tmp_path / "resumed", resume=resume, progress=False)
    (weights, state, _), (others, other, _) = (outcome(tmp_path / name) for name in ("uninterrupted", "resumed"))
    assert weights == others and state == other and state["task"] == "language"


def test_the_validation_loss_is_the_mean_over_the_whole_text(trained_run, folder):
    model, tokenizer, _ = load_model(trained_run)
    ids = np.array(tokenizer.encode((folder / "valid.txt").read_text()))
    total = 0.0
    for start in range(0, len(ids) - 1, 12):
        window = ids[None, start : start + 13]
        with no_grad():
            total += model.loss(window, loss_normalizer=1.0).item()
    lines = (trained_run / "metrics.jsonl").read_text().splitlines()
    (entry,) = [entry for entry in map(json.loads, lines) if entry["kind"] == "valid"]
    assert entry["loss"] == pytest.approx(total / (len(ids) - 1), rel=1e-5)


def score(run, text, capfd):
    """Return the figures and the messages of `score --text`."""
    assert main(["score", "--model", str(run), "--text", str(text), "--json"]) == 0
    out, err = capfd.readouterr()
    return json.loads(out), err


def test_score_reports_the_validation_loss_of_training(trained_run, folder, capfd):
    lines = (trained_run / "metrics.jsonl").read_text().splitlines()
    (entry,) = [entry for entry in map(json.loads, lines) if entry["kind"] == "valid"]
    figures, err = score(trained_run, folder / "valid.txt", capfd)
    assert (figures["loss"], figures["perplexity"]) == (entry["loss"], entry["perplexity"]) and not err
    assert figures["tokens"] == figures["characters"] == 100, "all of 101 characters except the first"
    assert figures["bits_per_character"] == pytest.approx(entry["loss"] / math.log(2))
    assert main(["score", "--model", str(trained_run), "--text", str(folder / "valid.txt")]) == 0
    shown = capfd.readouterr().out
    assert shown.removesuffix("\n").endswith(
        f"  bits per character {figures['bits_per_character']:.4f}  tokens 100  characters 100"
    )
    assert shown.partition("  bits")[0] in (trained_run / "log.txt").read_text(), "as training has logged it"


def test_a_loss_that_is_not_finite_is_an_error(trained_run, folder, monkeypatch, capfd):
    def load_damaged(*arguments):
        model, *rest = load_model(*arguments)
        model.embedding.weight.data[...] = np.nan
        return model, *rest

    monkeypatch.setattr(validation, "load_model", load_damaged)
    for options in ([], ["--json"]):
        command = ["score", "--model", str(trained_run), "--text", str(folder / "valid.txt"), *options]
        assert main(command) == 2
        out, err = capfd.readouterr()
        assert err.endswith("scoring: expected a finite loss; got nan; try an earlier checkpoint\n") and not out


def test_bits_per_character_do_not_depend_on_the_tokens(folder, tmp_path, capfd):
    """The total loss in bits is divided by the number of predicted characters, for any tokenizer and line ends."""
    content = "To be: ünknown €\n\tthat is\n" * 2
    (tmp_path / "unix").write_bytes(content.encode())
    (tmp_path / "windows").write_bytes(("\ufeff" + content.replace("\n", "\r\n")).encode())
    for kind in KINDS:
        values = tomllib.loads(config(folder, max_steps=1).dump())
        values["data"]["tokenizer"] = kind
        train(RunConfig.from_dict(values), tmp_path / kind, progress=False)
        capfd.readouterr()
        figures, err = score(tmp_path / kind, tmp_path / "unix", capfd)
        _, tokenizer, _ = load_model(tmp_path / kind)
        first, *rest = tokenizer.encode(content)
        assert figures["tokens"] == len(rest) and figures["characters"] == len(content) - len(tokenizer.decode([first]))
        bits = figures["loss"] * len(rest) / math.log(2)
        assert figures["bits_per_character"] * figures["characters"] == pytest.approx(bits)
        warned = "unix: 8 characters outside the vocabulary; bits per character are not comparable with" in err
        assert warned == (kind == "characters") and err.count("\n") == warned
        assert score(tmp_path / kind, tmp_path / "windows", capfd)[0] == figures


def test_score_reads_a_text_from_a_pipe(trained_run, folder, capfd):
    reader, writer = os.pipe()
    os.write(writer, (folder / "valid.txt").read_bytes())
    os.close(writer)
    piped, _ = score(trained_run, f"/dev/fd/{reader}", capfd)
    os.close(reader)
    assert piped == score(trained_run, folder / "valid.txt", capfd)[0]


def test_invalid_texts_and_options_of_score(trained_run, folder, tmp_path, capfd):
    model = ["--model", str(trained_run)]
    valid = str(folder / "valid.txt")
    contents = {"empty": b"", "short": b"to be or not", "latin": b"to be\n\xfc\n", "gz": gzip.compress(b"to be")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for arguments, message in (
        ([*model, "--text", f"{tmp_path / 'empty'}"], "empty: expected at least one line of text; got an empty file"),
        ([*model, "--text", f"{tmp_path / 'latin'}"], "latin, line 2: expected UTF-8 text; got 0xfc"),
        ([*model, "--text", f"{tmp_path / 'gz'}"], "gz: expected UTF-8 text; got a gzip file; try `gunzip`"),
        ([*model, "--text", f"{tmp_path / 'none'}"], "none: expected a text file; got a path that does not exist"),
        ([*model, "--text", str(tmp_path)], "expected a text file; got a folder"),
        (["--text", valid], "score: --text needs a model; try --model RUN\n"),
        ([*model, *model, "--text", valid], "expected one --model; got 2; try only one, or --pairs"),
        ([*model, "--text", valid, "--hyp", valid], "--text cannot be combined with --hyp; try only one of them"),
        ([*model, "--text", valid, "--pairs", valid, valid], "--pairs cannot be combined with --text; try only one"),
        (
            model,
            "missing --ref; try --ref F, --pairs SRC TGT --model RUN, or --text F --model RUN for a language model",
        ),
        ([*model, "--pairs", valid, valid], "got a language model; try --text F\n"),
        ([*model, "--ref", valid, "--hyp", valid, "--src", valid], "got a language model; try --text F\n"),
        (["--model", str(BEFORE), "--text", valid], "got a translation model; try --pairs SRC TGT\n"),
    ):
        assert main(["score", *arguments]) == 2, arguments
        out, err = capfd.readouterr()
        assert message in err and err.count("\n") == 1 and not out
    assert main(["score", *model, "--text", f"{tmp_path / 'short'}"]) == 0, "13 characters with the line feed"
    (tmp_path / "short").write_text("to be or no")
    assert main(["score", *model, "--text", f"{tmp_path / 'short'}"]) == 2
    assert "short: expected a text of at least 13 tokens (data.max_length + 1); got 12; try a longer text" in (
        capfd.readouterr().err
    )


def test_generation_is_deterministic_for_a_seed(trained_run, capsys):
    def generate(*options):
        assert main(["generate", "--model", str(trained_run), "--prompt", "To be", "--tokens", "40", *options]) == 0
        return capsys.readouterr().out

    first = generate("--seed", "1")
    assert first == generate("--seed", "1") != generate("--seed", "2")
    assert first.startswith("To be") and len(first) == 5 + 40 + 1 and set(first) <= set(TEXT)
    assert generate("--temperature", "0") == generate("--top-k", "1", "--seed", "5") == generate("--top-p", "1e-9")
    assert ", or not to be" in generate("--temperature", "0"), "longer than the context of 12 tokens"


def test_an_empty_prompt_equals_a_new_line(trained_run):
    model, tokenizer, _ = load_model(trained_run)
    texts = [continue_text(model, tokenizer, prompt, 9, 12, seed=3) for prompt in ("", "\n")]
    assert texts[0] == texts[1] and len(texts[0]) == 9


def test_the_heads_of_a_language_model_are_drawn(trained_run, tmp_path, capsys):
    draw = ["draw", str(trained_run), "heads", "--input", "to be", "--out", str(tmp_path / "a.svg")]
    assert main(draw) == 0
    alt = (tmp_path / "a.alt.txt").read_text("utf-8")
    assert "Each row of a head sums to 1" in alt and "text, " in alt and "Output" not in alt
    for option in (["--kind", "cross"], ["--beam-size", "2"]):
        assert main([*draw, *option]) == 2
        error = capsys.readouterr().err
        assert f"{option[0]}: expected an encoder-decoder model; got a language model; omit --" in error


@pytest.mark.parametrize(
    "options, message",
    [
        (("--prompt", "Être"), "prompt: expected only characters of the training text; got 'Ê'; try"),
        (("--top-p", "1.5"), "--top-p: expected a number above 0 and at most 1; got 1.5"),
        (("--temperature", "-1"), "--temperature: expected a number from 0 to 1e6; got -1.0"),
        (("--tokens", "0"), "--tokens: expected a whole number from 1 to 10000000; got 0"),
    ],
)
def test_invalid_options_are_reported_on_one_line(trained_run, capsys, options, message):
    assert main(["generate", "--model", str(trained_run), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_a_model_of_another_task_is_rejected(trained_run, capfd):
    assert main(["translate", "--model", str(trained_run)]) == 2
    assert "expected a translation model; got a language model; try `npx-transformer generate" in capfd.readouterr().err
    assert main(["generate", "--model", str(BEFORE)]) == 2
    assert "expected a language model; got a translation model" in capfd.readouterr().err
    assert main(["draw", str(trained_run), "beam", "--input", "to", "--out", "a.svg"]) == 2
    assert "expected a model that translates or parses; got a language model; try" in capfd.readouterr().err


def test_a_text_shorter_than_a_window_leaves_no_folder(folder, tmp_path):
    (tmp_path / "short.txt").write_text("be\n")
    values = tomllib.loads(config(folder).dump())
    values["data"]["train_text"] = str(tmp_path / "short.txt")
    with pytest.raises(UserError, match="short.txt: expected a text of at least 13 tokens .data.max_length . 1."):
        train(RunConfig.from_dict(values), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_windows_describe_their_shape():
    windows = WindowBatch(np.zeros((3, 5), np.int32))
    assert windows.describe() == "3 windows of 4 tokens" and windows.n_tokens == windows.n_targets == 12
