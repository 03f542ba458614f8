"""The environment of a command: matplotlib backends, stream encodings, damaged files."""

import gzip
import os
import shutil
import subprocess
import sys

import pytest

from tests import ROOT
from train.cli import main


def command(*arguments, **around):
    """Run a command in a subprocess with these environment variables; return (status, stdout, stderr)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | around
    process = subprocess.run(
        [sys.executable, "-m", "train", *map(str, arguments)], env=environment, capture_output=True, cwd=ROOT
    )
    return process.returncode, process.stdout.decode(), process.stderr.decode()


def test_a_notebook_backend_does_not_change_pictures(uninterrupted, tmp_path):
    """A notebook sets MPLBACKEND for the commands it starts, possibly to one that is not installed."""
    draw = ["draw", uninterrupted, "curves", "--out", tmp_path / "a.png"]
    assert command(*draw, MPLBACKEND="module://matplotlib_inline.backend_inline") == (0, "", "")
    assert (tmp_path / "a.png").is_file()


@pytest.mark.parametrize("around", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_characters_outside_the_stream_encoding_are_escaped(around, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text("utf-8").replace("train_src =", 'train_src = "f\u00fcnf \u2192" #'), "utf-8")
    result = command("info", tmp_path / "run", "--config", **around, PYTHONUTF8="0")
    assert (result[0], result[2]) == (0, "") and 'train_src = "f\\xfcnf \\u2192"' in result[1]


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_an_output_error_is_not_attributed_to_the_input(source, uninterrupted, text, tmp_path):
    """A file size limit simulates a full disk. The limit applies to a process, so the command runs in a new one."""
    translate = ["translate", "--model", uninterrupted, "--output", tmp_path / "out", "--batch-tokens", "99"]
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9)); from train.cli import main; "
    input_option = ["--input", text / "train.en"] if source == "file" else []
    arguments = [sys.executable, "-c", f"{program} sys.exit(main())", *map(str, [*translate, *input_option])]
    with (text / "train.en").open("rb") as stdin:
        process = subprocess.run(
            arguments, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, stdin=stdin
        )
    message = f"npx-transformer: {tmp_path / 'out'}: expected space on the disk; got 'File too large'; "
    assert process.returncode == 2 and process.stderr.decode().startswith(message) and process.stderr.count(b"\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file that cannot be read")
def test_an_input_error_names_the_input(uninterrupted, text, tmp_path, capfd):
    for arguments in (
        ["translate", "--model", uninterrupted, "--output", tmp_path / "out", "--input", "/proc/self/mem"],
        ["score", "--ref", text / "valid.de", "--hyp", "/proc/self/mem"],
        ["info", "/proc/self/mem"],
    ):
        assert main([*map(str, arguments)]) == 2
        err = capfd.readouterr().err
        assert (
            err.startswith("npx-transformer: /proc/self/mem: cannot be read (Input/output error); try ")
            and err.count("\n") == 1
        ), err
    with open("/proc/self/mem", "rb") as broken:
        command = [sys.executable, "-m", "train", "translate", "--model", uninterrupted]
        process = subprocess.run(command, cwd=ROOT, stdin=broken, capture_output=True)
    message = b"npx-transformer: stdin: expected readable text; got 'Input/output error'; try"
    assert process.returncode == 2 and message in process.stderr, process.stderr
    assert not any(tmp_path.iterdir())


def test_a_gzip_file_of_text_is_named(text, uninterrupted, tmp_path, capfd):
    file = tmp_path / "train.en.gz"
    file.write_bytes(gzip.compress((text / "train.en").read_bytes()))
    train = ["train", "tiny", "--out", str(tmp_path / "run"), f"--train-src={file}", f"--train-tgt={text / 'train.de'}"]
    for command in (train, ["translate", "--model", str(uninterrupted), "--input", str(file)]):
        assert main(command) == 2
        assert f"{file}: expected UTF-8 text; got a gzip file; try `gunzip`\n" in capfd.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "other", "changed"])
def test_a_damaged_gzip_file_gives_a_one_line_error(damage, text, tmp_path, capfd):
    packed = gzip.compress((text / "train.en").read_bytes())
    (tmp_path / "good.GZ").write_bytes(gzip.compress((text / "train.de").read_bytes()))
    content = {"cut": packed[:-30], "other": b"no archive at all", "changed": packed[:-6] + b"12" + packed[-4:]}[damage]
    (tmp_path / "bad.gz").write_bytes(content)
    sides = [tmp_path / "good.GZ", tmp_path / "bad.gz"]
    for src, tgt in (sides, sides[::-1]):
        out = ["data", "own", "--out", str(tmp_path / "out"), "--quiet"]
        assert main([*out, "--train-src", str(src), "--train-tgt", str(tgt)]) == 2
        err = capfd.readouterr().err
        assert f"{tmp_path / 'bad.gz'}: expected a complete file; got '" in err and err.count("\n") == 1, err
