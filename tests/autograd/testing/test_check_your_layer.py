"""The code in docs/check-your-layer.md runs: its first test passes, and its planted bug gives the quoted report."""

import re

import pytest

from autograd import OPERATIONS
from autograd.testing import GradientError
from tests import ROOT

PAGE = (ROOT / "docs" / "check-your-layer.md").read_text(encoding="utf-8")
FIRST, FORGETFUL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(REPORT,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


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
