"""Short training runs from the command line, for tests: text, options, a finished run, and failures."""

import os
import subprocess
import sys

import pytest

from tests import ROOT
from train.cli import main

WORDS = "red green blue big small old new cat dog bird house tree".split()
SIZES = [
    *("model.d_model=16", "model.d_ff=16", "model.n_heads=2", "model.n_layers=1", "data.vocab_size=300"),
    *("train.batch_tokens=200", "train.max_steps=6", "train.checkpoint_every=2", "train.validate_every=3"),
    *("train.log_every=2", "train.warmup_steps=4", "search.beam_size=2", "search.max_extra_tokens=4"),
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
