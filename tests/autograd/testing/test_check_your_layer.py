"""docs/check-your-layer.md does what it says: its ten lines pass, and its planted mistake gives the report it reads."""

import re

import pytest

from autograd import OPERATIONS
from autograd.testing import GradientError
from tests import ROOT

PAGE = (ROOT / "docs" / "check-your-layer.md").read_text(encoding="utf-8")
TEN, FORGETFUL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(REPORT,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def run():
    """Runs the page's code and returns its names; afterwards the registry is as it was."""
    before = dict(OPERATIONS)

    def run(code):
        scope = {}
        exec(code, scope)
        return scope

    yield run
    for name in OPERATIONS.keys() - before.keys():
        del OPERATIONS[name]


def digits(text):
    """Numbers to three digits, which every machine agrees on."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.3g}", text).split()


def test_the_ten_lines_pass(run):
    assert len([line for line in TEN.splitlines() if line]) <= 10
    run(TEN)["test_rms_norm"]()


def test_the_planted_mistake_gives_the_report(run):
    with pytest.raises(GradientError) as caught:
        run(FORGETFUL)["test_forgetful"]()
    assert digits(str(caught.value)) == digits(REPORT)


def test_its_line_reproduces_the_report(run):
    scope = run(FORGETFUL)
    scope["layer"] = scope["RMSNorm"](1, norm=scope["rms_norm_forgetful"])
    with pytest.raises(GradientError, match="wrong gradient of input 0"):
        exec(re.search(r"^reproduce: (.*)$", REPORT, re.MULTILINE)[1], scope)
