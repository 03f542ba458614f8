"""The outputs that a user names: never an input, another output or a file of the model; links and pipes are kept."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.helpers.command_line import command, run, texts  # noqa: F401, fixtures
from train.cli import main
from train.cli.app import open_output

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
            got = f"expected a file outside the run; got one in {run / model}; try another path"
            assert main([program, *options]) == 2
            assert capfd.readouterr().err == f"npx-transformer: {output}: {got}\n"
            assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


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
