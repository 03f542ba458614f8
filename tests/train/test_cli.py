"""The command line: a complete run, one-line error messages, interruption and resumption."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests import ROOT
from tests.helpers.command_line import (  # noqa: F401, fixtures
    SET,
    SIZES,
    assert_rejected,
    command,
    data_options,
    files_of,
    run,
    sentences,
    texts,
)
from train.cli import app, info, main
from train.errors import UserError
from train.experiments import demo
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks import decoding


def test_translate_score_and_info_of_a_run(run, texts, tmp_path, capfd):
    assert RunConfig.load(run / "config.toml").model.d_model == 16
    assert [path.name for path in RunFolder(run).step_paths()] == ["step-2", "step-4", "step-6"]
    source, output = texts / "valid.src", tmp_path / "output.txt"
    assert main(["translate", "--model", str(run), "--input", str(source), "--output", str(output)]) == 0
    assert len(output.read_text(encoding="utf-8").splitlines()) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["output.txt"]
    assert f" per second, with {run / 'checkpoints' / 'averaged'} (mean of 2 checkpoints)\n" in capfd.readouterr().err
    assert main(["score", "--ref", str(texts / "valid.tgt"), "--hyp", str(output), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["lines"] == 8
    assert all("signature" in score for score in report["scores"].values())
    assert main(["score", "--ref", str(output), "--hyp", str(output)]) == 0
    assert report["scores"]["bleu_13a"]["signature"] in capfd.readouterr().out
    assert main(["info", str(run)]) == 0
    text = capfd.readouterr().out
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "valid", "step": 3}\n\n{"ki')
    assert main(["info", str(run)]) == 0 and capfd.readouterr().out == text
    assert "steps 2, 4, 6, averaged" in text
    assert "  best" not in text and "digest" in text  # the run keeps no best checkpoint


@pytest.mark.parametrize("option", ["--scores", "--alignments", "--n-best=2", "--json"])
def test_score_rejects_translations_with_further_fields(option, run, texts, tmp_path, capfd):
    ref, hyp = texts / "valid.tgt", tmp_path / "hyp"
    for options, status in ([option], 2), ([], 0):  # as the message advises
        translate = ["translate", f"--model={run}", f"--input={texts / 'valid.src'}", f"--output={hyp}", *options]
        assert main([*translate, "--quiet"]) == 0
        for arguments in ([f"--hyp={hyp}"], [f"--hyp={ref}", f"--baseline={hyp}"]):
            assert main(["score", f"--ref={ref}", *arguments, "--quiet", "--metric=bleu"]) == status
            expected = f"{hyp}: expected one translation per line; got lines with further fields; try" if status else ""
            assert expected in capfd.readouterr().err
    ref.with_name("fields").write_text("".join(f"{i} ||| x\n" for i in range(8)))
    texts_with_fields = [f"--{name}={ref.with_name('fields')}" for name in ("ref", "hyp")]
    assert main(["score", *texts_with_fields]) == 0


def test_score_accepts_the_names_of_best_metric(texts, tmp_path, capfd):
    """`bleu` is the BLEU that validations measure."""
    ref, hyp = texts / "valid.tgt", tmp_path / "hyp"
    hyp.write_text("".join(f"{line} x\n" for line in sentences(8)), encoding="utf-8")
    scores = []
    for name in ("bleu", "bleu_13a"):
        assert (
            main(["score", "--ref", str(ref), "--hyp", str(hyp), "--json", "--metric", name, "--metric", "chrf"]) == 0
        )
        scores.append(json.loads(capfd.readouterr().out)["scores"])
    assert scores[0] == scores[1] and set(scores[0]) == {"bleu_13a", "chrf"}


def test_score_with_bootstrap_baseline_and_model(run, texts, tmp_path, capfd):
    ref, src, hyp = texts / "valid.tgt", texts / "valid.src", tmp_path / "hyp"
    hyp.write_text("".join(f"{line[::-1]} x\n" for line in sentences(8)), encoding="utf-8")
    last = RunFolder(run).step_paths()[-1]
    arguments = ["score", "--ref", ref, "--hyp", hyp, "--baseline", src, "--model", last, "--src", src]
    arguments = [*map(str, arguments), "--bootstrap", "20"]
    assert main([*arguments, "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)["scores"]
    measured = [entry for entry in RunFolder(run).metrics() if entry["kind"] == "valid" and entry["step"] == 6]
    assert scores["perplexity"]["score"] == pytest.approx(measured[0]["perplexity"], rel=1e-6)
    assert scores["chrf"]["p_value"] < 0.2 and scores["ter"]["confidence"] >= 0
    assert main(arguments) == 0
    shown = capfd.readouterr().out
    assert f"{scores['perplexity']['score']:.2f}" in shown and "|seed:12345|" in shown
    assert_rejected(capfd, ["score", "--ref", ref, "--hyp", hyp, "--model", run], "must be given together")
    assert_rejected(capfd, ["score", "--ref", ref, "--hyp", hyp, "--bootstrap", "1"], "got 1", "try 1000")


def test_stdin_to_stdout_preserves_the_line_order(run):
    process = command("translate", "--quiet", "--model", run, "--beam-size", "1", stdin=subprocess.PIPE)
    out, err = process.communicate("the red cat\n\nthe blue dog\u0085bird\r\nno newline")
    assert (process.returncode, err) == (0, "")
    lines = out.split("\n")
    assert len(lines) == 5
    assert lines[1] == lines[4] == ""


def test_n_best_prints_n_scored_lines_per_input(run, texts, capfd):
    arguments = [
        "translate",
        "--model",
        str(run),
        "--input",
        str(texts / "valid.src"),
        "--n-best",
        "3",
        "--beam-size",
        "3",
    ]
    assert main(arguments) == 0
    rows = [line.split(" ||| ") for line in capfd.readouterr().out.splitlines()]
    assert [int(row[0]) for row in rows] == [i for i in range(8) for _ in range(3)]
    scores = [float(row[2]) for row in rows]
    assert all(scores[i] >= scores[i + 1] for i in range(len(scores) - 1) if (i + 1) % 3)


def test_search_options_override_the_runs_configuration(run, texts, monkeypatch, capfd):
    search = {}

    def spy(*_, **options):
        search.update(options)
        return iter([])

    monkeypatch.setattr(decoding, "decode_stream", spy)
    assert (
        main(["translate", "--model", str(run), "--input", str(texts / "valid.src"), "--length-penalty", "0.25"]) == 0
    )
    names = ("beam_size", "length_penalty", "length_penalty_type", "max_extra_tokens")
    assert [search[name] for name in names] == [2, 0.25, "paper", 4]


def test_an_interrupted_demo_names_the_command_that_resumes_its_training(tmp_path, monkeypatch, capfd):
    def interrupted(config, run):
        run.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("train.learn.training.train", interrupted)
    monkeypatch.setattr(demo, "sample_numbers", lambda *_: {"test": [1, 2], "valid": [3], "train": [4, 5]})
    out = tmp_path / "new demo"
    assert main(["demo", "--out", str(out)]) == 130
    assert f"to finish the training, try npx-transformer train --resume --out '{out}/run';" in capfd.readouterr().err


def test_the_demo_writes_all_its_files(tmp_path, capfd):
    pytest.importorskip("num2words")
    pytest.importorskip("matplotlib")
    short = [*SIZES, "data.vocab_size=350", "train.keep_last=2", "search.beam_size=1", "search.max_extra_tokens=1"]
    result = demo.run_demo(tmp_path / "demo", n_train=1200, overrides=short)
    assert result["exact"] < 50  # so few steps are not enough to learn anything
    held_out = (tmp_path / "demo" / "test.en").read_text(encoding="utf-8").splitlines()
    trained = (tmp_path / "demo" / "train.en").read_text(encoding="utf-8").splitlines()
    assert len(set(held_out)) == 1000 and not set(held_out) & set(trained)
    assert len((tmp_path / "demo" / "test.translated.de").read_text(encoding="utf-8").splitlines()) == 1000
    assert (tmp_path / "demo" / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "test numbers translated correctly" in capfd.readouterr().out


def test_german_numbers():
    pytest.importorskip("num2words")
    for number, words in (
        (0, "null"),
        (21, "einundzwanzig"),
        (342, "dreihundertzweiundvierzig"),
        (101_000, "einhunderteintausend"),
        (21_965, "einundzwanzigtausendneunhundertfünfundsechzig"),
    ):
        assert demo.german(number) == words


# ---- invalid commands

GOOD = ["--train-src={texts}/train.src", "--train-tgt={texts}/train.tgt"]
VALID = ["--valid-src={texts}/valid.src", "--valid-tgt={texts}/valid.tgt"]
# name -> (arguments after `train --out NEW`, parts of the message)
INVALID = {
    "no config": (GOOD, ["CONFIG.toml", "tiny"]),
    "missing config": (["none.toml", *GOOD], ["none.toml", "a path that does not exist"]),
    "unknown key": (["{invalid_files}/key.toml", *GOOD], ["key.toml", "train.max_stepz", "train.max_steps"]),
    "unknown setting": (["base", *GOOD, "--set", "train.sead=2"], ["train.sead", "train.seed"]),
    "heads": (["base", *GOOD, "--set", "model.d_model=100"], ["d_model", "100"]),
    "precision": (["base", *GOOD, "--set", "train.precision=fp16"], ["train.precision", "fp16", "--device cuda"]),
    "no text": (["base"], ["data.train_src", "--train-src"]),
    "missing text": (["base", "--train-src=none.txt", *GOOD[1:]], ["none.txt"]),
    "folder as text": (["base", "--train-src={invalid_files}", *GOOD[1:]], ["invalid_files", "folder"]),
    "empty text": (["base", "--train-src={invalid_files}/empty", *GOOD[1:]], ["empty"]),
    "unequal": (["base", "--train-src={invalid_files}/short", *GOOD[1:]], ["short", " 2 and 60"]),
    "not utf-8": (["base", GOOD[0], "--train-tgt={invalid_files}/latin"], ["latin", "line 1", "0xe9"]),
    "half validation": (["base", *GOOD, VALID[0]], ["data.valid_tgt"]),
    "unequal validation": (["base", *GOOD, VALID[1], "--valid-src={invalid_files}/short"], ["short", " 2 and 8"]),
    "small vocabulary": (["base", *GOOD, "--set", "data.vocab_size=10"], ["vocab_size", "10"]),
    "small batch": (["base", *GOOD, *SET, "--set", "train.batch_tokens=2"], ["batch_tokens"]),
    "missing tokenizer": (["base", *GOOD, "--set", "data.tokenizer=none.json"], ["none.json"]),
    "device": (["base", *GOOD, "--device", "tpu"], ['"cpu", "cuda"', "tpu"]),
    "option": (["base", *GOOD, "--nope"], ["--nope", "train --help"]),
    "resume of nothing": (["base", *GOOD, "--resume"], ["expected a run to resume"]),
}


@pytest.fixture(scope="module")
def invalid_files(tmp_path_factory):
    """Return a folder of files that training rejects."""
    folder = tmp_path_factory.mktemp("invalid_files")
    (folder / "empty").write_bytes(b"")
    (folder / "latin").write_bytes("caf\xe9\n".encode("latin-1") * 60)
    (folder / "short").write_text("one\ntwo\n")
    (folder / "key.toml").write_text("[train]\nmax_stepz = 3\n")
    return folder


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_training_command_writes_nothing(name, texts, invalid_files, tmp_path, capfd):
    options, parts = INVALID[name]
    options = [option.format(texts=texts, invalid_files=invalid_files) for option in options]
    assert_rejected(capfd, ["train", "--out", tmp_path / "new", "--quiet", *options], *parts)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_is_not_overwritten(run, texts, tmp_path, capfd):
    before = files_of(run)
    assert_rejected(capfd, ["train", "base", *data_options(texts), "--out", run, *SET], run, "--resume")
    assert files_of(run) == before
    other = [*SET, "--set", "train.seed=2"]
    assert_rejected(capfd, ["train", "base", *data_options(texts), "--out", run, "--resume", *other], "train.seed", "2")
    assert files_of(run) == before
    file = tmp_path / "file"
    file.write_text("mine")
    assert_rejected(capfd, ["train", "base", *data_options(texts), "--out", file, *SET], file)
    assert file.read_text() == "mine"


def test_invalid_options_of_the_other_commands(run, texts, invalid_files, tmp_path, capfd):
    source = texts / "valid.src"
    model = ["--model", run]
    for arguments, *parts in (
        (["translate", "--model", "none", "--input", source], "none"),
        (["translate", *model, "--input", "none.txt"], "none.txt"),
        (["translate", *model, "--input", invalid_files / "latin"], "latin", "line 1", "0xe9"),
        (["translate", *model, "--input", source, "--output", tmp_path / "no" / "file"], "is not a folder"),
        (["translate", *model, "--input", source, "--output", tmp_path], "a folder"),
        (["translate", *model, "--input", source, "--n-best", "9"], "--n-best", "9"),
        (["translate", *model, "--input", source, "--beam-size", "0"], "--beam-size", "from 1 to 512"),
        (
            ["translate", *model, "--input", source, "--length-penalty-type", "papers"],
            "--length-penalty-type",
            '"paper"',
        ),
        (["translate", "--input", source], "--model"),
        (["score", "--ref", source, "--hyp", texts / "train.src"], "60", "8"),
        (["score", "--ref", source, "--hyp", "none.txt"], "none.txt"),
        (["average", run, "--last", "9"], "9", "3"),
        (["average", "none"], "none"),
        (["info", "bigg"], "bigg", "try big"),
        (["info", tmp_path], "config.toml"),
        (["demo", "--out", invalid_files], "invalid_files"),
        (["nothing"], "nothing"),
    ):
        assert_rejected(capfd, arguments, *parts)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_and_an_invalid_tokenizer(run, texts, tmp_path, capfd):
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    weights = broken / "checkpoints" / "averaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert_rejected(capfd, ["translate", "--model", broken, "--input", texts / "valid.src"], weights, "damaged")
    odd = tmp_path / "odd"
    shutil.copytree(run, odd)
    tokenizer = odd / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace("<unk>", "<odd>"), encoding="utf-8")
    assert_rejected(capfd, ["translate", "--model", odd, "--input", texts / "valid.src"], tokenizer)


def test_invalid_utf8_on_stdin_is_reported_with_its_line(run):
    process = command("translate", "--model", run, stdin=subprocess.PIPE)
    process.stdin.buffer.write(b"the red cat\nthe \xff cat\n")
    out, err = process.communicate()
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert "stdin, line 2" in err and "0xff" in err


def test_an_output_does_not_replace_an_input(run, tmp_path, capfd):
    text, link = tmp_path / "text", tmp_path / "link"
    text.write_text("one\n")
    link.symlink_to(text)
    for output in (text, link):
        assert main(["translate", "--model", str(run), "--input", str(text), "--output", str(output)]) == 2
        message = f"npx-transformer: {output}: this output would replace an input or another output; try another path\n"
        assert capfd.readouterr().err == message and text.read_text() == "one\n"


def test_a_failed_translation_leaves_the_output_unchanged(run, texts, tmp_path, monkeypatch, capfd):
    def broken(*_, **__):
        yield [replace(decoding.empty_translation(), text="a first line")]
        raise UserError("line 2: expected better; got worse; try again")

    monkeypatch.setattr(decoding, "decode_stream", broken)
    output = tmp_path / "output"
    output.write_text("before")
    assert_rejected(capfd, ["translate", "--model", run, "--input", texts / "valid.src", "--output", output], "line 2")
    assert output.read_text() == "before"
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize("calls", [["link", "replace"], ["fsync"]])
@pytest.mark.parametrize("before", [[], ["before"]])
def test_a_full_disk_is_reported_and_leaves_the_output_as_it_was(
    run, texts, tmp_path, monkeypatch, capfd, calls, before
):
    def disk_full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "output"
    for text in before:
        output.write_text(text)
    for call in calls:
        monkeypatch.setattr(app.os, call, disk_full)
    assert_rejected(
        capfd, ["translate", "--model", run, "--input", texts / "valid.src", "--output", output], "No space left"
    )
    assert [path.read_text() for path in tmp_path.iterdir()] == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_reported_on_one_line():
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "train", "info", "base"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert "No space left" in process.stderr


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "translate" in capsys.readouterr().out


def test_an_internal_error_prints_a_traceback(monkeypatch, capfd):
    def fail(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(info, "describe", fail)
    assert main(["info", "base"]) == 1
    err = capfd.readouterr().err
    assert "Traceback" in err and "ZeroDivisionError: ours" in err


# ---- interruption


def test_a_closed_reader_ends_the_command_silently(run):
    process = command("translate", "--model", run, "--beam-size", "1", stdin=subprocess.PIPE)
    process.stdout.close()  # like `head` after its last line
    process.stdin.write("the red cat\n" * 20)
    process.stdin.close()
    assert (process.wait(60), process.stderr.read()) == (141, "")
    process.stderr.close()


def test_ctrl_c_and_resume_equal_an_uninterrupted_run(texts, tmp_path, capfd):
    steps = ["--set", "train.max_steps=5000", "--set", "train.checkpoint_every=5000", "--set", "train.log_every=1"]
    process = command("train", "base", *data_options(texts), "--out", tmp_path / "a", "--quiet", *SET, *steps)
    metrics = tmp_path / "a" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    (stopped,) = RunFolder(tmp_path / "a").step_paths()
    step = int(stopped.name.removeprefix("step-"))
    assert step < 5000
    end = ["--quiet", "--set", f"train.max_steps={step + 3}"]
    assert main(["train", "--out", str(tmp_path / "a"), "--resume", *end]) == 0
    assert main(["train", "base", *data_options(texts), "--out", str(tmp_path / "b"), *SET, *steps, *end]) == 0
    weights = [tmp_path / name / "checkpoints" / f"step-{step + 3}" / "model.safetensors" for name in "ab"]
    assert weights[0].read_bytes() == weights[1].read_bytes()
