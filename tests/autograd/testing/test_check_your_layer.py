"""The code in docs/check-your-layer.md runs: its first test passes, and its planted bug gives the quoted report."""

import re
import sys
import types

import pytest

from autograd import OPERATIONS
from autograd.testing import GradientError
from tests import ROOT

PAGE = (ROOT / "docs" / "check-your-layer.md").read_text(encoding="utf-8")
PAIR, TORCH, JAX, PLUGIN, EXPECT, FIRST, FORGETFUL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(REPORT,) = re.findall(r"```text\n(check_layer.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def run():
    """Execute code of the page and return its names; the registry is restored afterwards."""
    before = dict(OPERATIONS)

    def run(code):
        scope = {}
        exec(code, scope)
        return scope

    yield run
    for name in OPERATIONS.keys() - before.keys():
        del OPERATIONS[name]


def digits(text):
    """Round numbers to three digits, on which all machines agree."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.3g}", text).split()


USERS = {  # the modules that the examples import
    "course": "def affine_forward(x, w, b):\n    return x @ w + b, (x, w)\n\n\n"
    "def affine_backward(dout, cache):\n    x, w = cache\n    return dout @ w.T, x.T @ dout, dout.sum(axis=0)\n",
    "torch": """
import torch
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))
""",
    "jax": """
import jax
@jax.custom_vjp
def log1pexp(x):
    return jax.nn.softplus(x)
log1pexp.defvjp(lambda x: (jax.nn.softplus(x), x), lambda x, g: (g * jax.nn.sigmoid(x),))
""",
}


@pytest.mark.parametrize(("example", "user"), [(PAIR, "course"), (TORCH, "torch"), (JAX, "jax")], ids=[*USERS])
def test_the_first_examples_are_short_and_pass(run, monkeypatch, example, user):
    assert len([line for line in example.splitlines() if line]) <= 8
    if user != "course":
        pytest.importorskip(user, reason=f"needs {user} (extra check-dev)")
    name = "course" if user == "course" else "functions"
    module = types.ModuleType(name)
    exec(USERS[user], vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    scope = run(example)
    next(value for name, value in scope.items() if name.startswith("test_"))()


def test_first_example_passes(run):
    assert len([line for line in FIRST.splitlines() if line]) <= 10
    run(FIRST)["test_rms_norm"]()


def test_planted_bug_gives_the_report(run):
    with pytest.raises(GradientError) as caught:
        run(FORGETFUL)["test_forgetful"]()
    assert digits(str(caught.value)) == digits(REPORT)


def test_last_line_reproduces_the_report(run):
    scope = run(FORGETFUL)
    scope["layer"] = scope["RMSNorm"](1, norm=scope["rms_norm_forgetful"])
    with pytest.raises(GradientError, match="wrong gradient of input 0"):
        exec(re.search(r"^reproduce: (.*)$", REPORT, re.MULTILINE)[1], scope)
