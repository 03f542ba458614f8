"""What a command finds around it: a backend for notebooks, streams that know few letters, files that are damaged."""

import gzip
import os
import shutil
import subprocess
import sys

import pytest

from tests import trainings
from tests.trainings import ROOT
from train.cli import main

text, uninterrupted = trainings.text, trainings.uninterrupted


def command(*arguments, **around):
    """The command line in a process of its own, with these environment variables; (status, stdout, stderr)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | around
    done = subprocess.run(
        [sys.executable, "-m", "train", *map(str, arguments)], env=environment, capture_output=True, cwd=ROOT
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_backend_of_notebooks_changes_no_picture(uninterrupted, tmp_path):
    """A notebook sets it for the commands that it starts, and may be of another environment."""
    draw = ["draw", uninterrupted, "curves", "--out", tmp_path / "a.png"]
    assert command(*draw, MPLBACKEND="module://matplotlib_inline.backend_inline") == (0, "", "")
    assert (tmp_path / "a.png").is_file()


@pytest.mark.parametrize("around", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_letters_that_a_stream_does_not_know_are_escaped(around, uninterrupted, tmp_path):
    shutil.copytree(uninterrupted, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text("utf-8").replace("train_src =", 'train_src = "f\u00fcnf \u2192" #'), "utf-8")
    found = command("info", tmp_path / "run", "--config", **around, PYTHONUTF8="0")
    assert (found[0], found[2]) == (0, "") and 'train_src = "f\\xfcnf \\u2192"' in found[1]


@pytest.mark.parametrize("damage", ["cut", "other", "changed"])
def test_damaged_packed_text_is_told_in_one_line(damage, text, tmp_path, capfd):
    packed = gzip.compress((text / "train.en").read_bytes())
    (tmp_path / "good.gz").write_bytes(gzip.compress((text / "train.de").read_bytes()))
    found = {"cut": packed[:-30], "other": b"no archive at all", "changed": packed[:-6] + b"12" + packed[-4:]}[damage]
    (tmp_path / "bad.gz").write_bytes(found)
    sides = [tmp_path / "good.gz", tmp_path / "bad.gz"]
    for src, tgt in (sides, sides[::-1]):
        out = ["data", "own", "--out", str(tmp_path / "out"), "--quiet"]
        assert main([*out, "--train-src", str(src), "--train-tgt", str(tgt)]) == 2
        err = capfd.readouterr().err
        assert f"{tmp_path / 'bad.gz'}: expected a whole file; got '" in err and err.count("\n") == 1, err
