"""The process that trains byte pairs: killed, out of memory, interrupted, orphaned."""

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


def train(lines=(["a b c"],)):
    return Tokenizer.train_spec(iter(lines), "bpe", 300, "words")


@pytest.fixture
def processes(monkeypatch):
    """Return the list of processes that the test starts."""
    processes = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        tokenizer.subprocess, "Popen", lambda *a, **k: processes.append(popen(*a, **k)) or processes[-1]
    )
    return processes


@pytest.fixture
def fake_python(monkeypatch, tmp_path):
    """Replace the Python that runs bpe_process.py with a shell script."""

    def install(script):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return install


LINKER = "echo 'python: error while loading shared libraries: libc.so.6: cannot map zero-fill pages' >&2; exit 127"


@pytest.mark.parametrize(
    "script", ["kill -9 $$", "head -2 >/dev/null; kill -9 $$", "echo MemoryError >&2; exit 1", LINKER]
)
def test_running_out_of_memory_raises_a_user_error(fake_python, script):
    fake_python(script)
    with pytest.raises(UserError, match="not enough memory to train the vocabulary") as error:
        train([["a b c"]] * 9)
    assert "\n" not in str(error.value) and "; try fewer lines" in str(error.value)


def test_an_internal_error_of_the_process_is_not_a_user_error(fake_python):
    fake_python("echo ImportError >&2; exit 1")
    with pytest.raises(RuntimeError, match="ImportError"):
        train()


def test_ctrl_c_interrupts_native_training(fake_python, processes):
    fake_python("exec sleep 1000")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        train()
    assert processes[0].returncode == -signal.SIGKILL


def test_an_error_in_the_text_kills_the_process(processes):
    def lines():
        yield ["a b c"]
        raise UserError("line 2: expected text; got an empty line")

    with pytest.raises(UserError, match="line 2"):
        train(lines())
    assert processes[0].returncode == -signal.SIGKILL


def test_an_error_in_the_text_is_reported_although_the_process_has_ended(processes):
    def lines():
        yield ["a b c"]
        processes[0].kill()
        processes[0].wait()
        raise UserError("line 2: expected text; got an empty line")

    with pytest.raises(UserError, match="line 2"):
        train(lines())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_process_dies_with_its_parent():
    code = f"""
import os, subprocess
from {__name__} import train
popen = subprocess.Popen
subprocess.Popen = lambda *a, **k: print((process := popen(*a, **k)).pid, flush=True) or process
train(["a b"] if i else os.kill(os.getpid(), 9) for i in (1, 0))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert result.returncode == -signal.SIGKILL
    stat = Path(f"/proc/{int(result.stdout)}/stat")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.05)
    assert time.monotonic() < deadline
