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

from models import PRESETS
from tests import ROOT
from tests.helpers.trainings import rewrite
from train.cli import app, info, main
from train.errors import UserError
from train.experiments import demo
from train.experiments.paper import FIGURES, TESTED
from train.run.checkpoint import load_model, read_state
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks import decoding
from train.text.pair_tokenizer import load_tokenizer

WORDS = "red green blue big small old new cat dog bird house tree".split()
SIZES = [
    *("model.d_model=16", "model.d_ff=16", "model.n_heads=2", "model.n_layers=1", "data.vocab_size=300"),
    *("train.batch_tokens=200", "train.max_steps=6", "train.checkpoint_every=2", "train.validate_every=3"),
    *("train.log_every=2", "train.warmup_steps=4", "search.beam=2", "search.max_extra=4"),
]
SET = [part for size in SIZES for part in ("--set", size)]


def sentences(n):
    return [f"the {WORDS[i % 7]} {WORDS[7 + i % 5]} {WORDS[i * i % 12]}" for i in range(n)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Return a folder of parallel text in which the target is the reversed source."""
    folder = tmp_path_factory.mktemp("text")
    for name, n in (("train", 60), ("valid", 8)):
        source = sentences(n)
        (folder / f"{name}.src").write_text("".join(f"{line}\n" for line in source), encoding="utf-8")
        (folder / f"{name}.tgt").write_text("".join(f"{line[::-1]}\n" for line in source), encoding="utf-8")
    return folder


def data_options(texts):
    return [f"--{part}-{side}={texts / part}.{side}" for part in ("train", "valid") for side in ("src", "tgt")]


@pytest.fixture(scope="module")
def run(texts, tmp_path_factory):
    """Return a finished run of six steps with averaged weights."""
    out = tmp_path_factory.mktemp("runs") / "a"
    assert main(["train", "base", *data_options(texts), "--out", str(out), "--quiet", *SET]) == 0
    assert main(["average", str(out), "--last", "2"]) == 0
    return out


def command(*arguments, **kwargs):
    """Start the command line in a new process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    return subprocess.Popen(
        [sys.executable, "-m", "train", *map(str, arguments)], cwd=ROOT, env=environment, text=True, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kwargs,
    )  # fmt: skip


def files_of(folder):
    """Return the bytes of every file below a folder."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def assert_rejected(capfd, arguments, *parts):
    """Check for exit status 2, one line on stderr that contains all the parts, and nothing on stdout."""
    capfd.readouterr()
    status = main(list(map(str, arguments)))
    out, err = capfd.readouterr()
    assert (status, out) == (2, ""), err
    assert err.count("\n") == 1 and err.startswith("npx-transformer: "), err
    for part in parts:
        assert str(part) in err


def test_translate_score_and_info_of_a_run(run, texts, tmp_path, capfd):
    assert RunConfig.load(run / "config.toml").model.d_model == 16
    assert [path.name for path in RunFolder(run).steps()] == ["step-2", "step-4", "step-6"]
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
    last = RunFolder(run).steps()[-1]
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
    process = command("translate", "--quiet", "--model", run, "--beam", "1", stdin=subprocess.PIPE)
    out, err = process.communicate("the red cat\n\nthe blue dog\u0085bird\r\nno newline")
    assert (process.returncode, err) == (0, "")
    lines = out.split("\n")
    assert len(lines) == 5
    assert lines[1] == lines[4] == ""


def test_n_best_prints_n_scored_lines_per_input(run, texts, capfd):
    arguments = ["translate", "--model", str(run), "--input", str(texts / "valid.src"), "--n-best", "3", "--beam", "3"]
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
    assert main(["translate", "--model", str(run), "--input", str(texts / "valid.src"), "--alpha", "0.25"]) == 0
    assert (search["beam"], search["alpha"], search["penalty"], search["max_extra"]) == (2, 0.25, "paper", 4)


@pytest.mark.parametrize("preset", PRESETS)
def test_info_of_a_preset_prints_the_papers_figures(preset, capsys):
    assert main(["info", preset]) == 0
    text = capsys.readouterr().out
    config = RunConfig.from_dict({"model": {"preset": preset}})
    assert f"{config.transformer_config(config.data.vocab_size).n_parameters():,}" in text
    if preset in FIGURES:
        assert f"the paper: {FIGURES[preset]['params_millions']:g} million" in text


def test_every_preset_of_the_paper_has_figures():
    assert FIGURES.keys() | TESTED.keys() == PRESETS.keys() - {"parsing-wsj", "parsing-semi", "parsing-small", "tiny"}
    assert all({"ppl", "bleu", "params_millions"} <= figures.keys() for figures in FIGURES.values())


def test_info_prints_the_papers_training_cost(capsys):
    for preset, cost in (("base", "3.3e+18"), ("big", "2.3e+19"), ("big-enfr", "2.3e+19")):
        assert main(["info", preset]) == 0
        assert cost in capsys.readouterr().out


def test_info_prints_the_figures_of_the_presets_own_language_pair(capsys):
    """Table 3 (newstest2013) and the parameter counts are those of English-German models."""
    expected = {"base": ["4.92, BLEU 25.8", "German: BLEU 27.3", "French: BLEU 38.1"],
                "big": ["4.33, BLEU 26.4", "German: BLEU 28.4"], "big-enfr": ["French: BLEU 41.8"],
                "A-h4": ["5.00, BLEU 25.5"]}  # fmt: skip
    for preset, ends in expected.items():
        assert main(["info", preset]) == 0
        quality = [line for line in capsys.readouterr().out.splitlines() if line.startswith("quality")]
        assert len(quality) == len(ends) and all(map(str.endswith, quality, ends))
    assert main(["info", "big-enfr"]) == 0 and "million" not in capsys.readouterr().out


def test_info_counts_the_updates_after_the_last_log_line(run, tmp_path, capfd):
    """This includes a run that is shorter than one interval and has no log line."""
    out = tmp_path / "run"
    shutil.copytree(run, out)
    totals = read_state(RunFolder(out).steps()[-1])["run"]
    for lines in (1, 0):  # a log line after an earlier update, none
        entry = {"kind": "train", "step": 1, "tokens": 7, "loss": 9.0, "tokens_per_second": 3.0, "seconds": 1.0}
        (out / "metrics.jsonl").write_text(f"{json.dumps(entry)}\n" * lines)
        state = {"window_loss": 12.0, "window_targets": 5, "window_tokens": 6, "window_seconds": 2.0, "seconds": 4.0}
        rewrite(RunFolder(out).steps()[-1], lambda s, state=state: s["run"].update(state))
        assert main(["info", str(out)]) == 0
        speed = f"{totals['tokens'] / 4:,.0f} tokens/s"  # the mean speed, not that of the window
        line = f"trained      6 updates, {totals['tokens']:,} tokens, loss 2.4000, {speed}"
        assert line in capfd.readouterr().out


def test_the_output_of_info_config_is_a_valid_configuration(texts, tmp_path, capsys):
    assert main(["info", "tiny", "--config"]) == 0
    file = tmp_path / "my.toml"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    settings = [*SET, "--set", "train.max_steps=1", "--set", "train.precision=float64"]
    out = tmp_path / "run"
    assert main(["train", str(file), *data_options(texts), "--out", str(out), "--quiet", *settings]) == 0
    assert RunConfig.load(out / "config.toml").train.precision == "float64"


def test_info_sizes_the_model_that_train_would_build(texts, tmp_path, capsys):
    """`info` accepts the same configurations and --set options as `train`."""
    file = tmp_path / "my.toml"
    file.write_text('[model]\npreset = "tiny"\nn_layers = 1\n[data]\nvocabularies = "separate"\n', encoding="utf-8")
    settings = [*SET, "--set", "data.vocab_size=270", "--set", "train.max_steps=1"]
    for config in ("tiny", str(file)):
        out = tmp_path / f"run-{len(config)}"
        assert main(["train", config, *data_options(texts), "--out", str(out), "--quiet", *settings]) == 0
        n = load_model(out)[0].n_parameters()
        sizes = load_tokenizer(out / "tokenizer.json")
        capsys.readouterr()
        assert sizes.vocab_size == (sizes.src_vocab_size or 270) == 270
        assert main(["info", config, *settings]) == 0
        assert f"parameters   {n:,}\n" in capsys.readouterr().out
    assert main(["info", "tiny", "--vocab-size", "300", "--config"]) == 0
    assert "\nvocab_size = 300\n" in capsys.readouterr().out


def test_the_preset_tiny_fits_a_cpu():
    """With two cores, an update takes seconds."""
    tiny, base = (RunConfig.from_dict({"model": {"preset": preset}}) for preset in ("tiny", "base"))
    assert (tiny.data.vocab_size, tiny.train.batch_tokens, tiny.train.warmup_steps) == (8000, 4096, 1000)
    assert (base.data.vocab_size, base.train.batch_tokens, base.train.warmup_steps) == (37000, 25000, 4000)
    changed = RunConfig.from_dict({"model": {"preset": "tiny"}}, ["model.preset=base"])
    assert changed == base
    given = {"model": {"preset": "tiny"}, "data": {"vocab_size": 9712}, "train": {"batch_tokens": 2048}}
    kept = RunConfig.from_dict(given)
    assert (kept.data.vocab_size, kept.train.batch_tokens) == (9712, 2048)


def test_the_demo_writes_all_its_files(tmp_path, capfd):
    pytest.importorskip("num2words")
    pytest.importorskip("matplotlib")
    short = [*SIZES, "data.vocab_size=350", "train.keep_last=2", "search.beam=1", "search.max_extra=1"]
    result = demo.run_demo(tmp_path / "demo", n_train=1200, settings=short)
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
    "no config": (GOOD, ["CONFIG.toml", "base"]),
    "missing config": (["none.toml", *GOOD], ["none.toml", "no such file"]),
    "unknown key": (["{invalid_files}/key.toml", *GOOD], ["key.toml", "train.max_stepz", "train.max_steps"]),
    "unknown setting": (["base", *GOOD, "--set", "train.sead=2"], ["train.sead", "train.seed"]),
    "heads": (["base", *GOOD, "--set", "model.d_model=100"], ["d_model", "100"]),
    "precision": (["base", *GOOD, "--set", "train.precision=fp16"], ["train.precision", "fp16", "--device cuda"]),
    "no text": (["base"], ["data.train_src", "--train-src"]),
    "missing text": (["base", *GOOD, "--train-src=none.txt"], ["none.txt"]),
    "folder as text": (["base", *GOOD, "--train-src={invalid_files}"], ["invalid_files", "folder"]),
    "empty text": (["base", *GOOD, "--train-src={invalid_files}/empty"], ["empty"]),
    "unequal": (["base", *GOOD, "--train-src={invalid_files}/short"], ["short", " 2 and 60"]),
    "not utf-8": (["base", *GOOD, "--train-tgt={invalid_files}/latin"], ["latin", "line 1", "0xe9"]),
    "half validation": (["base", *GOOD, VALID[0]], ["data.valid_tgt"]),
    "unequal validation": (["base", *GOOD, *VALID, "--valid-src={invalid_files}/short"], ["short", " 2 and 8"]),
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
    source, model = texts / "valid.src", ["--model", run]
    for arguments, *parts in (
        (["translate", "--model", "none", "--input", source], "none"),
        (["translate", *model, "--input", "none.txt"], "none.txt"),
        (["translate", *model, "--input", invalid_files / "latin"], "latin", "line 1", "0xe9"),
        (["translate", *model, "--input", source, "--output", tmp_path / "no" / "file"], "no folder"),
        (["translate", *model, "--input", source, "--output", tmp_path], "a folder"),
        (["translate", *model, "--input", source, "--n-best", "9"], "--n-best", "9"),
        (["translate", *model, "--input", source, "--beam", "0"], "--beam", "from 1 to 512"),
        (["translate", *model, "--input", source, "--penalty", "papers"], "--penalty", '"paper"'),
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
        message = f"npx-transformer: {output}: the output would replace an input; try another --output\n"
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


def test_a_full_disk_is_reported_and_leaves_no_file(run, texts, tmp_path, monkeypatch, capfd):
    def disk_full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(app.os, "replace", disk_full)
    output = tmp_path / "output"
    assert_rejected(
        capfd, ["translate", "--model", run, "--input", texts / "valid.src", "--output", output], "No space left"
    )
    assert list(tmp_path.iterdir()) == []


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
    process = command("translate", "--model", run, "--beam", "1", stdin=subprocess.PIPE)
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
    (stopped,) = RunFolder(tmp_path / "a").steps()
    step = int(stopped.name.removeprefix("step-"))
    assert step < 5000
    end = ["--quiet", "--set", f"train.max_steps={step + 3}"]
    assert main(["train", "--out", str(tmp_path / "a"), "--resume", *end]) == 0
    assert main(["train", "base", *data_options(texts), "--out", str(tmp_path / "b"), *SET, *steps, *end]) == 0
    weights = [tmp_path / name / "checkpoints" / f"step-{step + 3}" / "model.safetensors" for name in "ab"]
    assert weights[0].read_bytes() == weights[1].read_bytes()
