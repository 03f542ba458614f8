"""The kit finds every one of the mistakes planted in mutants/, under the `ci` profile; figures: docs/mutants.md."""

import re
from pathlib import Path

import pytest

from tests import cases
from tests.mutants import KINDS, MUTANTS, find

FAMILIES = {
    *("arithmetic", "functions", "products", "reductions", "shapes", "softmax", "layer norm", "dropout", "linear"),
    *("embedding", "attention", "loss", "fast kernel", "layer", "model"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_found(mutant):
    """With the suite's own examples and with two seeds."""
    for seed in (None, 1, 2):
        found = find(mutant, seed)
        assert found, f"{mutant.name}: expected {mutant.entry} to find it with seed {seed}; it passed every example"
        assert re.match("GradientError|CheckError|KernelMismatch", found.report)


def test_enough_mistakes_in_every_family_under_names_of_their_own():
    assert len(MUTANTS) >= 150 and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.family for mutant in MUTANTS} == FAMILIES
    assert {mutant.kind for mutant in MUTANTS} <= set(KINDS)
    assert {mutant.entry for mutant in MUTANTS} <= set(cases.ENTRIES)


def test_nothing_stays_planted():
    """The mutants are gone after their search: the same examples pass."""
    for mutant in MUTANTS[:3]:
        find(mutant)
    unplanted = [type(m)(m.name, m.family, m.kind, m.entry, lambda patch: None) for m in MUTANTS[:3]]
    assert [find(m) for m in unplanted] == [None] * 3


def test_the_page_lists_every_mistake():
    page = (Path(__file__).parent.parent / "docs" / "mutants.md").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert f"| {mutant.name} | {mutant.entry} |" in page, f"{mutant.name}: run python -m tests.mutants"
