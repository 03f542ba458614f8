"""`python -m autograd.testing check` and the pytest plugin, on a module of course pairs."""

import json
import subprocess
import sys

import pytest

from autograd.testing import check_command
from tests import ROOT

MODULE = """
import numpy as np

def affine_forward(x, w, b):
    return x @ w + b, (x, w)

def affine_backward(dout, cache):
    x, w = cache
    return dout @ w.T, x.T @ dout, dout.sum(axis=0)

def scale(x):
    return 3 * x, None

def scale_backward(dout, cache):
    return 2 * dout

def logarithm_forward(x):
    if (x <= 0).any():
        raise ValueError("positive numbers only")
    return np.log(x), x

def logarithm_backward(dout, x):
    return dout / x

def plain(x):
    return None
"""
LOSSES = """
import numpy as np

def bce_forward(p, y):
    return -(y * np.log(p) + (1 - y) * np.log(1 - p)).sum(), (p, y)

def bce_backward(g, cache):
    p, y = cache
    return g * (p - y) / (p * (1 - p))
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with the module; return status, output and errors."""
    (tmp_path / "course.py").write_text(MODULE)
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "calendar.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments):
        for name in ("course", "empty"):
            sys.modules.pop(name, None)
        return check_command.main([*arguments]), *capsys.readouterr()

    yield run
    for name in ("course", "empty"):
        sys.modules.pop(name, None)


def test_every_pair_of_a_module_is_checked(run):
    status, out, err = run("course")
    rows = {line.split()[0]: line for line in out.splitlines() if " pair " in line}
    assert set(rows) == {"affine_forward", "scale", "logarithm_forward"}
    assert " right " in rows["affine_forward"]
    assert " wrong " in rows["scale"]
    assert " right " in rows["logarithm_forward"]
    assert "every wrong entry is 0.6667 times" in out
    assert out.endswith("2 right, 1 wrong, 0 not checked\n")
    assert status == 1
    assert not err


def test_one_function_with_given_inputs_as_json(run):
    status, out, _ = run("course.py:affine_forward", "--json", *(f"--input={s}" for s in ("3x4", "4x2", "2")))
    (outcome,) = json.loads(out)["checks"]
    assert outcome["inputs"] == ["3x4", "4x2", "2"]
    assert outcome["result"] == "right"
    assert status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["courses"], "expected an importable module; got 'courses' (ModuleNotFoundError"),
        (["courses.py"], "expected the path of a Python file; got courses.py, which"),
        (["calendar.py:affine_forward"], "expected a file name that no imported module uses; got calendar.py"),
        (["empty"], "expected custom gradients in empty"),
        (["course:affine"], "expected a name that course defines; got 'affine'; try affine_forward, scale"),
        (["course:plain"], "expected a function with a gradient; got plain, which has no backward function"),
        (["course:scale", "--input", "4,6"], "expected a shape such as 4x6"),
        ([], "the following arguments are required"),
        (
            ["course", "--expected-gradient", "reversed"],
            "expected NAME=GRADIENT for --expected-gradient, with NAME among affine_forward, scale",
        ),
        (
            ["course", "--expected-gradient", "gate=reversed"],
            "with NAME among affine_forward, scale, logarithm_forward; got 'gate=r",
        ),
        (
            ["course:scale", "--expected-gradient", "doubled"],
            "--expected-gradient doubled: expected 'straight-through'",
        ),
    ],
)
def test_wrong_usage_is_reported_in_one_line(run, arguments, message):
    status, out, err = run(*arguments)
    assert message in err
    assert err.count("\n") == 1
    assert not out
    assert status == 2


@pytest.mark.parametrize(
    ("target", "declaration"), [("course", "scale=doubles the gradient"), ("course:scale", "doubles the gradient")]
)
def test_a_declared_gradient_is_right(run, target, declaration):
    status, out, err = run(target, "--expected-gradient", declaration)
    assert "intentionally wrong (doubles the gradient)" in out
    assert "0 wrong" in out
    assert status == 0
    assert not err


def test_a_gradient_other_than_the_declared_one_is_wrong(run):
    status, _, _ = run("course:scale", "--expected-gradient", "reversed")
    assert status == 1


def test_inputs_that_the_function_rejects_are_not_a_pass(run):
    status, out, _ = run("course:logarithm_forward", "--input", "4x6")
    assert "not checked: ValueError: positive numbers only" in out
    assert status == 2


def test_the_first_argument_is_never_guessed_to_be_a_number(run):
    """With p = 0.5, the gradient of p would be taken for that of y."""
    status, out, _ = run("losses")
    assert status != 1 and "wrong" not in out.split("\n\n")[0]


@pytest.mark.slow
def test_the_pytest_plugin(tmp_path):
    (tmp_path / "course.py").write_text(MODULE)
    (tmp_path / "test_course.py").write_text(
        "import pytest\nfrom course import *\n\n"
        "def test_affine(check_gradient):\n    check_gradient(affine_forward, affine_backward)\n\n"
        "@pytest.mark.gradients('course')\ndef test_all(custom_gradient):\n    custom_gradient.check()\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--strict-markers",
        "-p",
        "pytest_autograd",
        "-p",
        "no:cacheprovider",
    ]
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert "FAILED test_course.py::test_all[scale]" in done.stdout
    assert "3 passed" in done.stdout
    assert "1 failed" in done.stdout
    (tmp_path / "test_course.py").write_text(
        "import pytest\n@pytest.mark.gradients('sys')\ndef test_all(custom_gradient):\n    custom_gradient.check()\n"
    )
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode and "expected custom gradients in sys; found none" in done.stdout + done.stderr
    (tmp_path / "test_course.py").write_text(
        "import pytest\n@pytest.mark.gradients(package='course')\ndef test_all(custom_gradient):\n    pass\n"
    )
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode and "expected modules as positional arguments" in done.stdout + done.stderr
