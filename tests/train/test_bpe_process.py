"""The process in which a vocabulary is learned: killed, without memory, interrupted, and left by whoever asked."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import ROOT
from train.errors import UserError
from train.text import tokenizer
from train.text.tokenizer import Tokenizer


def learn(lines=(["a b c"],)):
    return Tokenizer.train_spec(iter(lines), "bpe", 300, "words")


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    found, popen = [], subprocess.Popen
    monkeypatch.setattr(tokenizer.subprocess, "Popen", lambda *a, **k: found.append(popen(*a, **k)) or found[-1])
    return found


@pytest.fixture
def learner(monkeypatch, tmp_path):
    """Puts a shell script in the place of the Python that runs learner.py."""

    def put(script):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return put


@pytest.mark.parametrize("script", ["kill -9 $$", "head -2 >/dev/null; kill -9 $$", "echo MemoryError >&2; exit 1"])
def test_learning_without_memory_is_told(learner, script):
    learner(script)
    with pytest.raises(UserError, match="expected enough memory to train it") as error:
        learn([["a b c"]] * 9)
    assert "\n" not in str(error.value) and "; try fewer lines" in str(error.value)


def test_a_fault_of_the_learner_is_not_taken_for_the_users(learner):
    learner("echo ImportError >&2; exit 1")
    with pytest.raises(RuntimeError, match="ImportError"):
        learn()


def test_ctrl_c_is_answered_while_native_code_learns(learner, started):
    learner("exec sleep 1000")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        learn()
    assert started[0].returncode == -signal.SIGKILL


def test_an_error_in_the_text_ends_the_learner(started):
    def lines():
        yield ["a b c"]
        raise UserError("line 2: expected text; got none; try another file")

    with pytest.raises(UserError, match="line 2"):
        learn(lines())
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_nobody_learns_for_a_process_that_was_killed():
    code = f"""
import os, subprocess
from {__name__} import learn
popen = subprocess.Popen
subprocess.Popen = lambda *a, **k: print((process := popen(*a, **k)).pid, flush=True) or process
learn(["a b"] if i else os.kill(os.getpid(), 9) for i in (1, 0))
"""
    root = ROOT
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root)
    assert ended.returncode == -signal.SIGKILL
    stat, until = Path(f"/proc/{int(ended.stdout)}/stat"), time.monotonic() + 20
    while time.monotonic() < until and stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.05)
    assert time.monotonic() < until
