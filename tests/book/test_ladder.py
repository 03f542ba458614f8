"""The versions in docs/softmax-versions.md compute the same function, and the page shows them in the same order."""

import re

import numpy as np
import pytest
from hypothesis import given

import npx
from autograd.testing import strategies as s
from benchmarks.ladder import LADDER
from book.files import ROOT


@pytest.mark.parametrize("version", LADDER)
@given(s.arrays((4, 5), ("normal", "ties", "overflow")))
def test_the_versions_agree(version, x):
    np.testing.assert_allclose(LADDER[version](x), npx.softmax.reference(x)[0], rtol=1e-12, atol=1e-300)


def test_the_page_has_them_in_this_order():
    page = (ROOT / "docs" / "softmax-versions.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| (\w[^|]*) \| \d", page, re.MULTILINE)
    short = {"in place, in blocks of rows": "in place, a block of rows at a time"}
    assert [any(name.startswith(short.get(known, known)) for name in names) for known in LADDER] == [True] * 4
    assert len(names) == 4
