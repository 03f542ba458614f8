"""Check docs/derivations.md: adjacent lines of a derivation agree to 1e-12 on random inputs."""

import re

import numpy as np
import pytest

from book.files import ROOT
from book.pages import Page
from book.results import same
from tests.derivations import DERIVATIONS, DRAWN, basics

PAGE = Page(ROOT / "docs" / "derivations.md")


def test_there_are_thirteen_derivations():
    assert len(DERIVATIONS) == 13 and DERIVATIONS.keys() == DRAWN.keys()


@pytest.mark.parametrize("title", DERIVATIONS)
def test_adjacent_lines_agree(title):
    lines = DERIVATIONS[title]
    for seed in range(20):
        case = DRAWN[title](np.random.default_rng(seed))
        results = [line(*case) for line in lines]
        for one, other, line in zip(results, results[1:], lines[1:], strict=False):
            assert same(one, other, 1e-12), f"{line.__name__}: expected the result of the previous line, seed {seed}"


def test_the_page_quotes_every_line():
    PAGE.check_quotations()
    quoted = [block.code for block in PAGE.blocks]
    assert all(block.source.startswith("tests/derivations/") for block in PAGE.blocks)
    found = re.findall(r"^def (\w+_\d+)\(", "\n".join(quoted), re.MULTILINE)
    assert found == [line.__name__ for lines in DERIVATIONS.values() for line in lines]
    titles = re.findall(r"^## \d+\. (.*)$", PAGE.text, re.MULTILINE)
    assert [title.lower() for title in titles] == [title.lower() for title in DERIVATIONS]


def test_the_best_step_is_the_cube_root_of_eps():
    """The error of a step h, f'''/6 h^2 + eps |f| / h, is smallest where h^3 = 3 eps |f| / |f'''|."""
    f, third, eps = 2.0, 12.0, 2.2e-16
    steps = np.exp(np.linspace(np.log(1e-7), np.log(1e-3), 200_001))
    cost = third / 6 * steps**2 + eps * f / steps
    assert abs(steps[cost.argmin()] / (3 * eps * f / third) ** (1 / 3) - 1) < 1e-4


def test_a_wrong_line_is_found(monkeypatch):
    lines = [*DERIVATIONS["softmax"]]
    lines[3] = lambda g, x: basics.softmax(x) * g
    monkeypatch.setitem(DERIVATIONS, "softmax", lines)
    with pytest.raises(AssertionError, match="expected the result of the previous line"):
        test_adjacent_lines_agree("softmax")
