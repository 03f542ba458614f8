"""`make gpu-check` on a machine without a GPU: it says so; its own checks work on the strict stand-in for CuPy."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from autograd.testing.checks import present
from tests import gpu_check
from tests.strict_cupy import device

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++: none found")


@pytest.mark.skipif(present("cuda"), reason="there is a GPU: run make gpu-check")
def test_without_a_gpu_it_ends_with_status_2_and_one_line():
    done = subprocess.run([sys.executable, "-m", "tests.gpu_check"], cwd=gpu_check.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("gpu-check: device cuda: expected") and done.stderr.count("\n") == 1


@needs_gxx
def test_a_training_step_through_every_kernel_is_that_of_the_cpu(capsys):
    """The whole path of a GPU, in three precisions, every launch going to the emulator."""
    pytest.importorskip("ml_dtypes", reason="NumPy knows bfloat16 from ml_dtypes, which is not installed")
    with device(cuda=True):
        gpu_check.training_step()
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == gpu_check.TOLERANCE.keys() and 0 < found["float32"] < 1e-5


@needs_gxx
def test_every_case_of_a_kernel_runs_alone(monkeypatch):
    ran = []
    monkeypatch.setitem(sys.modules, "cupy", Allocations())
    monkeypatch.setattr(gpu_check, "TOLERANCE", {"float32": 0})
    monkeypatch.setattr("tests.cases.cuda.CASES", {"softmax": lambda d: [(lambda run, x: ran.append(x), np.ones(2))]})
    with device(cuda=True):
        gpu_check.run_kernels()
    assert len(ran) == 1 and not isinstance(ran[0], np.ndarray)


class Allocations:
    """Stands for cupy where only its allocator is set."""

    def __getattr__(self, name):
        return self

    def __call__(self, *args):
        return self


def test_a_suite_is_counted_and_a_failure_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(
        gpu_check, "run", lambda command, seconds, **env: real(command, seconds, NPX_TEST_ENGINE="numpy")
    )
    (tmp_path / "test_two.py").write_text("def test_a():\n    pass\n\n\ndef test_b():\n    assert 1 == 2\n")
    status, detail = gpu_check.suite([str(tmp_path / "test_two.py")], 60)
    assert (
        status == "failed" and detail["tests"] == 2 and detail["failures"] == 1 and "assert 1 == 2" in detail["output"]
    )
    assert gpu_check.summary(detail) == "2 tests, 1 failures"
    assert real([sys.executable, "-c", "import time; time.sleep(9)"], 0.1) == (None, "took more than 0 s")


real = gpu_check.run


def test_the_steps_are_those_of_the_issue():
    names = [name for name, _, _ in gpu_check.steps()]
    for part in (
        "kernels",
        "operations, layers and laws",
        "parity with torch",
        "base, 25k",
        "memcheck",
        "racecheck",
        "CPU",
    ):
        assert any(part in name for name in names), part
