"""`make gpu-check` on a machine without a GPU: it says so; its own checks work on the strict stand-in for CuPy."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from autograd.testing.kernels import present
from benchmarks import kernels
from npx.registry import KERNELS
from tests import gpu_check
from tests.cases.kernels import KERNEL_CASES
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
    ran, right = [], KERNELS["softmax"].run
    monkeypatch.setitem(sys.modules, "cupy", Allocations())
    monkeypatch.setattr(gpu_check, "TOLERANCE", {"float32": 0})
    monkeypatch.setattr("tests.cases.kernels.KERNEL_CASES", {"softmax": KERNEL_CASES["softmax"]})
    monkeypatch.setattr(KERNELS["softmax"], "run", lambda key, x, mask: (ran.append(x), right(key, x, mask))[1])
    with device(cuda=True):
        gpu_check.run_kernels()
    assert len(ran) == 9 and not any(isinstance(x, np.ndarray) for x in ran)


@needs_gxx
def test_the_suite_of_the_kernels_runs_with_its_arrays_on_a_device(monkeypatch):
    """What only a run on a GPU would show: host and device arrays that meet, a device that one file leaves behind."""
    monkeypatch.setattr(
        gpu_check, "run", lambda command, seconds, **env: real(command, seconds, NPX_TEST_ENGINE="emulated")
    )
    monkeypatch.setattr(gpu_check, "WORKERS", "0")
    chosen = "float32 and (equals_the_reference or source-dropout or equal_their_composition)"
    status, detail = gpu_check.suite([*gpu_check.SUITES["kernels"][1], "-k", chosen], 100)
    assert status == "passed", detail


@needs_gxx
def test_the_benchmark_gives_each_version_what_it_keeps_itself(monkeypatch, capsys):
    names = "attention", "dropout", "dropout_residual_norm", "layer_norm"
    sizes = "--tokens", "8", "--length", "4", "--d-model", "16", "--heads", "2", "--repeats", "1"
    monkeypatch.setattr(sys, "argv", ["kernels", "--device", "cuda", *sizes, "--json", "--kernel", *names])
    with device(cuda=True):
        kernels.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["kernel"] for row in rows] == [part for name in names for part in (name, f"{name}_grad")]


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
    warned = "import sys; print('{}'); print('careful', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    assert real([sys.executable, "-c", warned, "0"], 60) == (0, "{}\n")
    assert real([sys.executable, "-c", warned, "3"], 60) == (3, "{}\ncareful\n")


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
