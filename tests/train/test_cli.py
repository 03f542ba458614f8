"""The command line as its users meet it: a run from text to scores, mistakes told in one line, stops without loss."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models import PRESETS
from tests import ROOT
from train.cli import app, info, main
from train.errors import UserError
from train.experiments import demo
from train.experiments.paper import FIGURES
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.tasks import translation

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
    """A folder of parallel text in which the target is the source backwards."""
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
    """A finished run of six steps, averaged."""
    out = tmp_path_factory.mktemp("runs") / "a"
    assert main(["train", "base", *data_options(texts), "--out", str(out), "--quiet", *SET]) == 0
    assert main(["average", str(out), "--last", "2"]) == 0
    return out


def command(*arguments, **named):
    """The command line in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    return subprocess.Popen(
        [sys.executable, "-m", "train", *map(str, arguments)], cwd=ROOT, env=environment, text=True, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **named,
    )  # fmt: skip


def files_of(folder):
    """Every file below a folder with its bytes."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(capfd, arguments, *parts):
    """Exit status 2 and exactly one line on stderr that has all the parts, nothing on stdout."""
    capfd.readouterr()
    status = main(list(map(str, arguments)))
    out, err = capfd.readouterr()
    assert (status, out) == (2, ""), err
    assert err.count("\n") == 1 and err.startswith("npx-transformer: "), err
    for part in parts:
        assert str(part) in err


def test_a_run_is_translated_scored_and_described(run, texts, tmp_path, capfd):
    assert RunConfig.load(run / "config.toml").model.d_model == 16
    assert [path.name for path in RunFolder(run).steps()] == ["step-2", "step-4", "step-6"]
    source, found = texts / "valid.src", tmp_path / "found.txt"
    assert main(["translate", "--model", str(run), "--input", str(source), "--output", str(found)]) == 0
    assert len(found.read_text(encoding="utf-8").splitlines()) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["found.txt"]
    capfd.readouterr()
    assert main(["score", "--ref", str(texts / "valid.tgt"), "--hyp", str(found), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["lines"] == 8
    assert all("signature" in score for score in report["scores"].values())
    assert main(["score", "--ref", str(found), "--hyp", str(found)]) == 0
    assert report["scores"]["bleu_13a"]["signature"] in capfd.readouterr().out
    assert main(["info", str(run)]) == 0
    text = capfd.readouterr().out
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "valid", "step": 3}\n\n{"ki')
    assert main(["info", str(run)]) == 0 and capfd.readouterr().out == text
    assert "steps 2, 4, 6, averaged" in text
    assert "best" in text and "digest" in text


def test_scores_have_confidence_a_paired_test_and_the_models_perplexity(run, texts, tmp_path, capfd):
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
    refused(capfd, ["score", "--ref", ref, "--hyp", hyp, "--model", run], "--model and --src together")
    refused(capfd, ["score", "--ref", ref, "--hyp", hyp, "--bootstrap", "1"], "got 1", "try 1000")


def test_stdin_to_stdout_keeps_every_line_in_its_place(run):
    process = command("translate", "--model", run, "--beam", "1", stdin=subprocess.PIPE)
    out, err = process.communicate("the red cat\n\nthe blue dog\u0085bird\r\nno newline")
    assert (process.returncode, err) == (0, "")
    lines = out.split("\n")
    assert len(lines) == 5
    assert lines[1] == lines[4] == ""


def test_n_best_gives_so_many_scored_lines(run, texts, capfd):
    arguments = ["translate", "--model", str(run), "--input", str(texts / "valid.src"), "--n-best", "3", "--beam", "3"]
    assert main(arguments) == 0
    rows = [line.split(" ||| ") for line in capfd.readouterr().out.splitlines()]
    assert [int(row[0]) for row in rows] == [i for i in range(8) for _ in range(3)]
    scores = [float(row[2]) for row in rows]
    assert all(scores[i] >= scores[i + 1] for i in range(len(scores) - 1) if (i + 1) % 3)


def test_search_options_go_before_the_runs_own(run, texts, monkeypatch, capfd):
    seen = {}

    def spy(*_, **options):
        seen.update(options)
        return iter([])

    monkeypatch.setattr(translation, "translate_stream", spy)
    assert main(["translate", "--model", str(run), "--input", str(texts / "valid.src"), "--alpha", "0.25"]) == 0
    assert (seen["beam"], seen["alpha"], seen["penalty"], seen["max_extra"]) == (2, 0.25, "paper", 4)


@pytest.mark.parametrize("preset", PRESETS)
def test_info_of_a_preset_stands_beside_the_papers_figures(preset, capsys):
    assert main(["info", preset]) == 0
    text = capsys.readouterr().out
    config = RunConfig.from_dict({"model": {"preset": preset}})
    assert f"{config.transformer_config(37000).n_parameters():,}" in text
    if preset in FIGURES:
        assert f"the paper: {FIGURES[preset]['params_millions']:g} million" in text


def test_every_model_of_the_paper_has_its_figures():
    assert FIGURES.keys() == PRESETS.keys() - {"parsing-wsj", "parsing-semi", "parsing-small", "tiny"}
    assert all({"ppl", "bleu", "params_millions"} <= figures.keys() for figures in FIGURES.values())


def test_the_papers_cost_is_printed_for_its_two_models(capsys):
    for preset, cost in (("base", "3.3e+18"), ("big", "2.3e+19")):
        assert main(["info", preset]) == 0
        assert cost in capsys.readouterr().out


def test_a_printed_configuration_trains(texts, tmp_path, capsys):
    assert main(["info", "tiny", "--config"]) == 0
    file = tmp_path / "my.toml"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    settings = [*SET, "--set", "train.max_steps=1", "--set", "train.precision=float64"]
    out = tmp_path / "run"
    assert main(["train", str(file), *data_options(texts), "--out", str(out), "--quiet", *settings]) == 0
    assert RunConfig.load(out / "config.toml").train.precision == "float64"


def test_the_demo_goes_all_the_way(tmp_path, capfd):
    pytest.importorskip("num2words")
    pytest.importorskip("matplotlib")
    short = [*SIZES, "data.vocab_size=350", "train.keep_last=2", "search.beam=1", "search.max_extra=1"]
    result = demo.run_demo(tmp_path / "demo", n_train=1200, settings=short)
    assert result["exact"] < 50  # nothing is learned in so few steps, and it is not said to be
    held_out = (tmp_path / "demo" / "test.en").read_text(encoding="utf-8").splitlines()
    trained = (tmp_path / "demo" / "train.en").read_text(encoding="utf-8").splitlines()
    assert len(set(held_out)) == 1000 and not set(held_out) & set(trained)
    assert len((tmp_path / "demo" / "test.translated.de").read_text(encoding="utf-8").splitlines()) == 1000
    assert (tmp_path / "demo" / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "test numbers translated correctly" in capfd.readouterr().out


def test_the_demos_german_is_german():
    pytest.importorskip("num2words")
    for number, words in (
        (0, "null"),
        (21, "einundzwanzig"),
        (342, "dreihundertzweiundvierzig"),
        (101_000, "einhunderteintausend"),
        (21_965, "einundzwanzigtausendneunhundertfünfundsechzig"),
    ):
        assert demo.german(number) == words


# ---- mistakes

GOOD = ["--train-src={texts}/train.src", "--train-tgt={texts}/train.tgt"]
VALID = ["--valid-src={texts}/valid.src", "--valid-tgt={texts}/valid.tgt"]
# name -> (what follows `train --out NEW`, what the message has to say)
MISTAKES = {
    "no config": (GOOD, ["CONFIG.toml", "base"]),
    "missing config": (["none.toml", *GOOD], ["none.toml", "no such file"]),
    "unknown key": (["{traps}/key.toml", *GOOD], ["key.toml", "train.max_stepz", "train.max_steps"]),
    "unknown setting": (["base", *GOOD, "--set", "train.sead=2"], ["train.sead", "train.seed"]),
    "heads": (["base", *GOOD, "--set", "model.d_model=100"], ["d_model", "100"]),
    "precision": (["base", *GOOD, "--set", "train.precision=fp16"], ["train.precision", "fp16", "--device cuda"]),
    "no text": (["base"], ["data.train_src", "--train-src"]),
    "missing text": (["base", *GOOD, "--train-src=none.txt"], ["none.txt"]),
    "folder as text": (["base", *GOOD, "--train-src={traps}"], ["traps", "folder"]),
    "empty text": (["base", *GOOD, "--train-src={traps}/empty"], ["empty"]),
    "unequal": (["base", *GOOD, "--train-src={traps}/short"], ["short", " 2 and 60"]),
    "not utf-8": (["base", *GOOD, "--train-tgt={traps}/latin"], ["latin", "line 1", "0xe9"]),
    "half validation": (["base", *GOOD, VALID[0]], ["data.valid_tgt"]),
    "unequal validation": (["base", *GOOD, *VALID, "--valid-src={traps}/short"], ["short", " 2 and 8"]),
    "small vocabulary": (["base", *GOOD, "--set", "data.vocab_size=10"], ["vocab_size", "10"]),
    "small batch": (["base", *GOOD, *SET, "--set", "train.batch_tokens=2"], ["batch_tokens"]),
    "missing tokenizer": (["base", *GOOD, "--set", "data.tokenizer=none.json"], ["none.json"]),
    "device": (["base", *GOOD, "--device", "tpu"], ['"cpu", "cuda"', "tpu"]),
    "option": (["base", *GOOD, "--nope"], ["--nope", "train --help"]),
    "resume of nothing": (["base", *GOOD, "--resume"], ["run folder to resume"]),
}


@pytest.fixture(scope="module")
def traps(tmp_path_factory):
    """A folder of files that no training can take."""
    folder = tmp_path_factory.mktemp("traps")
    (folder / "empty").write_bytes(b"")
    (folder / "latin").write_bytes("caf\xe9\n".encode("latin-1") * 60)
    (folder / "short").write_text("one\ntwo\n")
    (folder / "key.toml").write_text("[train]\nmax_stepz = 3\n")
    return folder


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_training_is_told_and_writes_nothing(name, texts, traps, tmp_path, capfd):
    options, parts = MISTAKES[name]
    options = [option.format(texts=texts, traps=traps) for option in options]
    refused(capfd, ["train", "--out", tmp_path / "new", "--quiet", *options], *parts)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_exists_is_not_overwritten(run, texts, tmp_path, capfd):
    before = files_of(run)
    refused(capfd, ["train", "base", *data_options(texts), "--out", run, *SET], run, "--resume")
    assert files_of(run) == before
    other = [*SET, "--set", "train.seed=2"]
    refused(capfd, ["train", "base", *data_options(texts), "--out", run, "--resume", *other], "train.seed", "2")
    assert files_of(run) == before
    file = tmp_path / "file"
    file.write_text("mine")
    refused(capfd, ["train", "base", *data_options(texts), "--out", file, *SET], file)
    assert file.read_text() == "mine"


def test_mistakes_of_the_other_commands_are_told(run, texts, traps, tmp_path, capfd):
    source, model = texts / "valid.src", ["--model", run]
    for arguments, *parts in (
        (["translate", "--model", "none", "--input", source], "none"),
        (["translate", *model, "--input", "none.txt"], "none.txt"),
        (["translate", *model, "--input", traps / "latin"], "latin", "line 1", "0xe9"),
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
        (["demo", "--out", traps], "traps"),
        (["nothing"], "nothing"),
    ):
        refused(capfd, arguments, *parts)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_and_a_strange_tokenizer_are_told(run, texts, tmp_path, capfd):
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    weights = broken / "checkpoints" / "averaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    refused(capfd, ["translate", "--model", broken, "--input", texts / "valid.src"], weights, "damaged")
    strange = tmp_path / "strange"
    shutil.copytree(run, strange)
    tokenizer = strange / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace("<unk>", "<odd>"), encoding="utf-8")
    refused(capfd, ["translate", "--model", strange, "--input", texts / "valid.src"], tokenizer)


def test_invalid_utf8_on_stdin_is_told_with_its_line(run):
    process = command("translate", "--model", run, stdin=subprocess.PIPE)
    process.stdin.buffer.write(b"the red cat\nthe \xff cat\n")
    out, err = process.communicate()
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert "stdin, line 2" in err and "0xff" in err


def test_a_failed_translation_leaves_the_output_as_it_was(run, texts, tmp_path, monkeypatch, capfd):
    def broken(*_, **__):
        yield [("a first line", 0.0)]
        raise UserError("line 2: expected better; got worse; try again")

    monkeypatch.setattr(translation, "translate_stream", broken)
    output = tmp_path / "output"
    output.write_text("before")
    refused(capfd, ["translate", "--model", run, "--input", texts / "valid.src", "--output", output], "line 2")
    assert output.read_text() == "before"
    assert list(tmp_path.iterdir()) == [output]


def test_a_full_disk_is_told_and_keeps_what_is_there(run, texts, tmp_path, monkeypatch, capfd):
    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(app.os, "replace", no_room)
    output = tmp_path / "output"
    refused(capfd, ["translate", "--model", run, "--input", texts / "valid.src", "--output", output], "No space left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_told_in_one_line():
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "train", "info", "base"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert "No space left" in process.stderr


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "translate" in capsys.readouterr().out


def test_a_fault_of_ours_shows_where(monkeypatch, capfd):
    def fault(*_, **__):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(info, "describe", fault)
    assert main(["info", "base"]) == 1
    err = capfd.readouterr().err
    assert "Traceback" in err and "ZeroDivisionError: ours" in err


# ---- stops


def test_a_reader_that_goes_away_is_no_error(run):
    process = command("translate", "--model", run, "--beam", "1", stdin=subprocess.PIPE)
    process.stdout.close()  # as `head` does when it has enough
    process.stdin.write("the red cat\n" * 20)
    process.stdin.close()
    assert (process.wait(60), process.stderr.read()) == (141, "")
    process.stderr.close()


def test_ctrl_c_writes_a_checkpoint_and_resume_ends_as_if_it_had_not_been(texts, tmp_path, capfd):
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
