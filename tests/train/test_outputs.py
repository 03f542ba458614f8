"""Outputs that a user names never replace an input, another output or a file of the model; links and pipes are kept."""

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from tests.helpers.command_line import command, run, texts  # noqa: F401, fixtures
from train import files
from train.cli import main
from train.cli.app import open_output
from train.errors import UserError
from train.files import WOULD_REPLACE_A_FILE, WriteError, open_for_reading
from train.run.folder_swap import new_folder

REPLACED = "this output would replace an input or another output; try another path"


def run_command(*arguments, stdin=None):
    """Run a command with a file as standard input; return its exit status and its messages."""
    with open(stdin or os.devnull) as file:
        process = command(*arguments, stdin=file)
        _, err = process.communicate()
    return process.returncode, err


@pytest.mark.parametrize("options", [(), ("--input", "-")])
def test_an_output_does_not_replace_standard_input(run, tmp_path, options):
    text, hard_link = tmp_path / "text", tmp_path / "link"
    text.write_text("one\n")
    os.link(text, hard_link)
    for output in (text, hard_link):
        result = run_command("translate", "--model", run, "--output", output, *options, stdin=text)
        assert result == (2, f"npx-transformer: {output}: {REPLACED}\n")
        assert text.read_text() == "one\n" and text.samefile(hard_link)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "config.toml", "new", "checkpoints/step-6/model.safetensors", "checkpoints/new"]
)
@pytest.mark.parametrize("model", ["", "checkpoints", "checkpoints/step-6"])
def test_an_output_is_not_inside_the_run(run, texts, tmp_path, capfd, name, model):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    link = tmp_path / "link"
    link.symlink_to(run / name)
    for output in (run / name, link):
        for program in ("translate", "parse"):
            options = ["--model", str(run / model), "--input", str(texts / "valid.src"), "--output", str(output)]
            got = f"expected a file outside the run; got a file in {run / model}; try another path"
            assert main([program, *options]) == 2
            assert capfd.readouterr().err == f"npx-transformer: {output}: {got}\n"
            assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("link", ["tokenizer.json", "config.toml", "checkpoints"])
def test_an_output_does_not_replace_a_file_that_the_run_links_to(run, texts, tmp_path, capfd, link):
    copied = shutil.copytree(run, tmp_path / "run")
    target = tmp_path / "target"
    (copied / link).rename(target)
    (copied / link).symlink_to(target)
    output = target / "step-6/optimizer.safetensors" if link == "checkpoints" else target
    before = output.read_bytes()
    options = ["--input", str(texts / "valid.src"), "--output", str(output)]
    assert main(["translate", "--model", str(copied), *options]) == 2
    reason = f"expected a file outside the run; got a file in {copied}; try another path"
    reason = reason if link == "checkpoints" else REPLACED
    assert capfd.readouterr().err.endswith(f"npx-transformer: {output}: {reason}\n")
    assert output.read_bytes() == before


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "checkpoints/step-6/model.safetensors", "new.svg"])
def test_a_picture_is_not_inside_a_run_that_it_shows(run, tmp_path, capfd, name):
    pytest.importorskip("matplotlib", reason="draws pictures")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    other = shutil.copytree(run, tmp_path / "other")
    link = tmp_path / "link.svg"
    text = tmp_path / "text.svg"
    link.symlink_to(run / name)
    for options in ([str(run), "curves"], [str(other), "curves", "--also", str(run)]):
        assert main(["draw", *options, "--out", str(link)]) == 2
        got = f"expected a file outside the run; got a file in {run}; try another path"
        assert capfd.readouterr().err == f"npx-transformer: {link}: {got}\n"
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["draw", str(other), "curves", "--out", str(text)]) == 0


@pytest.mark.parametrize(
    "command",
    ["translate --output {}", "parse --output={}", "classify --output {}", "embed --output {}", "parse --svg {}"],
)
def test_the_name_of_a_folder_is_not_an_output(tmp_path, capfd, command):
    path = f"{tmp_path}/o.svg/"
    assert main([*command.format(path).split(), "--model", "nowhere"]) == 2
    error = f"{path}: expected a file to write; got the name of a folder; try another path"
    assert capfd.readouterr().err == f"npx-transformer: {error}\n"


@pytest.mark.parametrize("is_named", [False, True], ids=["O_TMPFILE", "without O_TMPFILE"])
def test_an_output_touches_no_other_file(tmp_path, monkeypatch, is_named):
    if is_named:
        monkeypatch.setattr(os, "O_TMPFILE", 0)
    others = {".o.partial": "mine", "o2": "mine"}
    for name, content in others.items():
        (tmp_path / name).write_text(content)
    os.link(tmp_path / "o2", tmp_path / ".o2.partial")

    def contents():
        return {path.name: path.read_text() for path in tmp_path.iterdir()}

    with pytest.raises(ZeroDivisionError), open_output(tmp_path / "o") as file:
        assert len(contents()) == 3 + is_named
        file.write(str(1 / 0))
    assert contents() == others | {".o2.partial": "mine"}
    for name in ("o", "o2"):
        with open_output(tmp_path / name) as file:
            file.write("new")
    assert contents() == {".o.partial": "mine", ".o2.partial": "mine", "o": "new", "o2": "new"}
    assert (tmp_path / "o").stat().st_mode & 0o777 == (tmp_path / ".o.partial").stat().st_mode & 0o777
    if is_named:
        monkeypatch.setattr("secrets.token_hex", lambda size: "same")
        (tmp_path / ".npx-transformer-same.partial").write_text("mine")
        with pytest.raises(WriteError, match="File exists"), open_output(tmp_path / "o"):
            pass
        assert (tmp_path / ".npx-transformer-same.partial").read_text() == "mine"


def test_an_interrupt_names_the_output_that_is_not_complete(tmp_path, capfd):
    (tmp_path / "o").write_text("old")
    with pytest.raises(KeyboardInterrupt), open_output(tmp_path / "o") as file:
        file.write("new")
        raise KeyboardInterrupt
    assert capfd.readouterr().err == f"interrupted before {tmp_path}/o was complete\n"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_an_exported_folder_touches_no_other_folder(tmp_path):
    for name in (".o.partial", ".o.replaced", "o"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch(exist_ok=name != "o")
    (tmp_path / "o/mine").unlink()
    for is_empty in (True, False):
        with ExitStack() as stack:
            if not is_empty:
                stack.enter_context(pytest.raises(OSError, match="not empty"))
            with new_folder(tmp_path / "o", must_be_new=True) as partial:
                (tmp_path / partial / "x").touch()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *(".o.partial", ".o.partial/mine", ".o.replaced", ".o.replaced/mine", "o", "o/x")
    ]


def test_an_output_does_not_replace_a_file_that_was_read(tmp_path):
    text, link = tmp_path / "text", tmp_path / "link"
    text.write_text("one")
    os.link(text, link)

    def read():
        with open_for_reading(text) as file:
            return file.read()

    with pytest.raises(UserError, match=WOULD_REPLACE_A_FILE), open_output(link) as file:
        file.write(str(read()))  # read after the output was opened
    with pytest.raises(UserError, match=WOULD_REPLACE_A_FILE), open_output(text):
        pass
    assert read() == link.read_bytes() == b"one" and len([*tmp_path.iterdir()]) == 2
    time.sleep(0.02)  # the time of a change may have a resolution of 10 ms
    text.write_text("two")  # now another command wrote the file, for example in a notebook
    with open_output(text) as file:
        file.write("three")
    assert text.read_text() == "three"


def test_a_picture_does_not_replace_an_input_or_an_output(run, tmp_path, capfd):
    gold, link = tmp_path / "gold.svg", tmp_path / "link.svg"
    gold.write_text("(TOP (S (NN a)))\n")
    link.symlink_to(gold)
    new = str(tmp_path / "new.svg")
    for options in (
        ["--gold", str(gold), "--svg", str(gold)], ["--gold", str(gold), "--svg", str(link)],
        ["--gold", str(gold), "--output", new, "--svg", new], ["--input", str(gold), "--svg", str(gold)],
        ["--lexicon", str(gold), "--svg", str(gold)],
    ):  # fmt: skip
        assert main(["parse", "--model", str(run), *options]) == 2
        assert capfd.readouterr().err == f"npx-transformer: {options[-1]}: {REPLACED}\n"
        assert gold.read_text() == "(TOP (S (NN a)))\n" and not os.path.lexists(new)


def test_a_picture_does_not_replace_the_file_of_standard_output(run, tmp_path):
    picture = tmp_path / "picture.svg"
    with open(picture, "w") as file:
        program = "import sys; from train.cli import main; sys.exit(main(sys.argv[1:]))"
        arguments = ["parse", "--model", str(run), "--input", os.devnull, "--svg", str(picture)]
        process = subprocess.run(
            [sys.executable, "-c", program, *arguments], stdout=file, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (process.returncode, process.stderr) == (2, f"npx-transformer: {picture}: {REPLACED}\n")


@pytest.mark.parametrize("mode", ["t", "b"])
def test_outputs_keep_links_and_write_to_pipes(tmp_path, mode):
    content = "text\n" if mode == "t" else b"text\n"
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(target.name)
    with open_output(link, mode=mode) as file:
        file.write(content)
    assert link.is_symlink() and target.read_text() == "text\n"
    os.mkfifo(pipe)
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    with open_output(pipe, mode=mode) as file:
        file.write(content)
    reader.join()
    assert received == [b"text\n"] and pipe.is_fifo()


def test_an_array_is_written_to_a_pipe(tmp_path):
    from train.cli.embed import write_array

    reading, writing = os.pipe()
    with open(writing, "ab") as file:
        write_array(file, [np.arange(3.0)] * 2, 3)
    with open(reading, "rb") as file:
        (tmp_path / "array.npy").write_bytes(file.read())
    assert np.load(tmp_path / "array.npy").tolist() == [[0, 1, 2]] * 2


def test_the_record_of_files_read_stays_small(tmp_path, monkeypatch):
    """A training run of several days reads the states of many checkpoints."""
    monkeypatch.setattr(files, "files_read", set())
    monkeypatch.setattr(files, "MAX_FILES_READ", 3)
    for i in range(9):
        (tmp_path / f"{i}").write_text("x")
        files.digest(tmp_path / f"{i}")
    assert files.files_read == {files.file_version((tmp_path / f"{i}").stat()) for i in range(3)}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs files without a name")
def test_a_new_output_never_has_another_name(tmp_path, monkeypatch):
    """Therefore, a kill at any time leaves either the complete output or none."""
    names = []
    link = os.link

    def record(source, name, **options):
        link(source, name, **options)
        names.extend(sorted(path.name for path in tmp_path.iterdir()))

    monkeypatch.setattr(os, "link", record)
    with files.atomic_write(tmp_path / "out", "t", follow_links=True) as file:
        file.write("x")
        assert not any(tmp_path.iterdir())
    assert names == ["out"] and (tmp_path / "out").read_text() == "x"
