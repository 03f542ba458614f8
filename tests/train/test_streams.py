"""The command line in a pipeline: streams that are closed, slow or full; pipes, links and devices."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests import ROOT
from tests.helpers import trainings
from tests.helpers.forks import Fork, ran
from tests.helpers.trainings import outcome
from train import average_checkpoints
from train.cli import main
from train.learn.signals import reraise_lost_interrupts
from train.run.folder import RunFolder


@pytest.fixture(scope="module")
def model(uninterrupted, tmp_path_factory):
    run = tmp_path_factory.mktemp("model") / "run"
    shutil.copytree(uninterrupted, run)
    average_checkpoints(run, 2)
    return run


def run_command(*arguments, **streams):
    """Run the command line in a forked process and return (status, stdout, stderr)."""
    return ran(lambda: main([*map(str, arguments)]), **streams)


def closed_reader():
    """Return a descriptor of a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def pipe_with(content):
    """Return a descriptor of a pipe that has this content."""
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    return reader


def translated(model, lines, capfd):
    source = model.parent / "source"
    source.write_bytes(lines)
    assert main(["translate", "--model", str(model), "--input", str(source)]) == 0
    return capfd.readouterr().out


def test_output_is_flushed_when_the_input_pauses(model):
    source, writer = os.pipe()
    reader, target = os.pipe()
    fork = Fork(lambda: os.close(writer) or main(["translate", "--model", str(model)]), {0: source, 1: target})
    os.close(target)
    with open(reader, "rb") as out:
        for line in (b"one two\n", b"three\n\nfour\n"):
            os.write(writer, line)
            for _ in range(line.count(b"\n")):
                assert out.readline().endswith(b"\n")  # the next line is written only after that
        os.write(writer, b"five")
        os.close(writer)
        assert out.read().count(b"\n") == 1 and fork.wait() == 0
    os.close(source)


def test_input_from_a_file_a_pipe_or_stdin_is_equivalent(model, capfd):
    lines = "\ufeffone two\r\n\nthree \u2028 \x00 four\u0085\n\ud7ff \U0010ffff\nlast".encode()
    expected = translated(model, lines, capfd)
    assert expected.count("\n") == 5
    translate = "translate", "--quiet", "--model", model
    assert run_command(*translate, stdin=lines) == (0, expected, "")
    assert run_command(*translate, "--input", "-", stdin=lines) == (0, expected, "")
    (reference := model.parent / "reference").write_bytes(lines)
    score = ["score", "--quiet", "--metric", "chrf"]
    status, table, _ = run_command(*score, "--ref", reference, "--hyp", "-", stdin=lines)
    assert status == 0 and "100.00" in table
    assert run_command(*score, "--ref", "-", "--hyp", reference, stdin=lines) == (0, table, "")
    error = "npx-transformer: -: expected one input from standard input; got two; try a file for one of them\n"
    assert run_command(*score, "--ref", "-", "--hyp", "-", stdin=lines) == (2, "", error)
    reader = pipe_with(lines)
    assert run_command(*translate, "--input", f"/proc/self/fd/{reader}") == (0, expected, "")
    assert run_command(*translate, "--input", "/dev/null") == (0, "", "") == run_command(*translate)
    os.close(reader)


def test_output_to_stdout_links_and_descriptors(model, tmp_path, capfd):
    expected = translated(model, b"one\ntwo\n", capfd)
    arguments = "translate", "--quiet", "--model", model, "--input", model.parent / "source", "--output"
    (tmp_path / "link").symlink_to("file")
    with open(tmp_path / "before", "ab") as file:
        file.write(b"before\n")
        file.flush()
        for output in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
            assert run_command(*arguments, output, stdout=file.fileno()) == (0, "", "")
    assert (tmp_path / "before").read_text() == "before\n" + 4 * expected
    assert main([*map(str, arguments), str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "file", "link"]


def test_closed_streams_do_not_change_the_translation(model, text, capfd):
    source = text / "valid.en"
    translate = "translate", "--quiet", "--model", model, "--input", source
    expected = translated(model, source.read_bytes(), capfd)
    assert run_command(*translate, closed=[0]) == (0, expected, "")
    assert run_command(*translate, closed=[1]) == (0, "", "")
    long = " ".join(["one"] * 1100).encode()
    status, out, err = run_command("translate", "--model", model, "--max-extra-tokens", "1", stdin=long, closed=[2])
    assert (status, out.count("\n"), err) == (0, 1, "")  # warnings do not go to stdout


@pytest.mark.parametrize("streams", ["closed", "full", "no reader", "no input"])
def test_training_does_not_depend_on_its_streams(uninterrupted, tmp_path, streams):
    (tmp_path / "c.toml").write_text((uninterrupted / "config.toml").read_text())
    options = {
        "closed": {"closed": [1, 2]},
        "no input": {"closed": [0]},
        "no reader": {"stderr": closed_reader()},
        "full": {"stderr": os.open("/dev/full", os.O_WRONLY)},
    }[streams]
    assert run_command("train", tmp_path / "c.toml", "--out", tmp_path / "run", **options)[0] == 0
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


@pytest.mark.parametrize("command", [["--help"], ["train", "--help"], ["--version"], ["info", "base"], ["score"]])
def test_a_closed_reader_ends_the_command_silently(command, text):
    texts = ["--ref", text / "valid.de", "--hyp", text / "valid.de"] if command == ["score"] else []
    assert run_command(*command, *texts, stdout=closed_reader()) == (141, "", "")


def test_an_endless_line_is_rejected(model):
    with open("/dev/zero", "rb") as zeros:
        status, out, err = run_command("translate", "--model", model, stdin=zeros.fileno())
    assert (status, out, err.count("\n")) == (2, "", 1) and "stdin, line 1" in err


@pytest.mark.parametrize("name", ["train.en", "config.toml", "tokenizer.json"])
def test_a_pipe_is_rejected_where_a_file_is_read_twice(name, text, uninterrupted, tmp_path, capfd):
    shutil.copytree(uninterrupted, tmp_path / "run")
    os.mkfifo(tmp_path / "pipe")
    if name == "train.en":
        arguments = ["train", "base", "--train-src", tmp_path / "pipe", "--train-tgt", text / "train.de", "--out", "x"]
    else:
        (tmp_path / "run" / name).unlink()
        os.mkfifo(tmp_path / "run" / name)
        arguments = ["translate", "--model", tmp_path / "run", "--input", text / "valid.en"]
    assert main([*map(str, arguments)]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "got a pipe" in err


def test_linked_checkpoint_folders_and_their_paths_are_accepted(model, text, tmp_path, capfd):
    shutil.copytree(model, tmp_path / "run")
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "scratch")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "scratch")
    expected = run_command("translate", "--model", model, "--input", text / "valid.en")[1]
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        assert main(["translate", "--model", str(path), "--input", str(text / "valid.en")]) == 0
        assert capfd.readouterr().out == expected


def test_every_command_that_loads_an_outdated_average_says_so(model, text, tmp_path, capfd):
    run, source, target = tmp_path / "run", text / "valid.en", text / "valid.de"
    shutil.copytree(model, run)
    RunFolder(run).step_path(9).rename(run / "checkpoints" / "old")
    trainings.run(text, run, resume=True, max_steps=13)
    averaged, newest = run / "checkpoints" / "averaged", run / "checkpoints" / "step-13"
    log = (run / "log.txt").read_text(encoding="utf-8")
    assert f"until `average` runs again or {averaged} is deleted" in log
    warning = (
        f"the loaded {averaged} is older than step-13; try `npx-transformer average {run} --last 2`, {newest} instead "
        f"of {run}, or deleting {averaged}\n"
    )
    new = tmp_path / "new"
    for command in (
        ["translate", "--model", run, "--input", source],
        ["score", "--model", run, "--pairs", source, target],
        ["score", "--model", run, "--src", source, "--ref", target, "--hyp", target],
        ["info", run],
        ["draw", run, "heads", "--input", "one two", "--out", tmp_path / "heads.svg"],
        ["export", run, "--to", "safetensors", "--out", tmp_path / "exported"],
        ["train", "--init", run, "--out", new, "--set", "train.max_steps=1", "--set", "train.validate_score=false"],
    ):
        assert main([*map(str, command)]) == 0
        assert capfd.readouterr().err.count(warning) == 1, command
    for command, expected in (
        (["generate", "--model", run], "expected a language model; got"),
        (
            ["embed", "--model", run, "--input", source],
            "expected a masked language model or a classifier or a tagger; got",
        ),
        (["parse", "--model", run, "--input", source], "expected a parser; got"),
    ):
        assert main([*map(str, command)]) == 2
        shown = capfd.readouterr().err
        assert expected in shown and "older than" not in shown
    assert main(["translate", "--model", str(newest), "--input", str(source)]) == 0
    assert "older than" not in capfd.readouterr().err
    assert warning.strip() in (new / "log.txt").read_text(encoding="utf-8")
    shutil.rmtree(averaged)
    assert main(["info", str(run)]) == 0
    shown = capfd.readouterr()
    assert "; commands load step-13\n" in shown.out and not shown.err


@pytest.mark.parametrize("slow", [0, 0.1])
def test_ctrl_c_in_a_finalizer_is_not_lost(monkeypatch, slow):
    """The signal is not lost even if a busy machine is late to start the thread that repeats it."""

    class Cleared:
        def __del__(self):
            raise KeyboardInterrupt

    start = threading.Thread.start
    before = sys.unraisablehook
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (start(thread), time.sleep(slow)))
    with pytest.raises(KeyboardInterrupt), reraise_lost_interrupts():
        Cleared()
        for _ in range(6000):
            time.sleep(0.01)
    assert sys.unraisablehook is before


def test_ctrl_c_stops_tokenizer_training_with_one_line(model, tmp_path):
    lines = [f"{i * 7919 % 99991:x} {i * 104729 % 99991:x} {i:x}\n" for i in range(60_000)]
    for side in "ab":
        (tmp_path / side).write_text("".join(lines))
    command = ["train", "base", f"--train-src={tmp_path / 'a'}", f"--train-tgt={tmp_path / 'b'}", "--out"]
    reader, writer = os.pipe()
    fork = Fork(lambda: main([*command, str(tmp_path / "run")]), {2: writer})
    os.close(writer)
    with open(reader, "rb") as err:
        assert b"training the bpe tokenizer" in err.readline()
        time.sleep(0.2)
        fork.kill(signal.SIGINT)
        assert (fork.wait(), err.read()) == (130, b"interrupted; run the same command again\n")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_during_imports_is_silent():
    script = """
import sys
class Pressed:
    def find_spec(self, name, *rest):
        if name == "train.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Pressed())
import train.cli
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
