"""The kit finds every one of the mistakes planted in mutants/, under the `ci` profile; figures: docs/mutants.md."""

import re

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests import ROOT, cases
from tests.mutants import KINDS, MUTANTS, find

FAMILIES = {
    *("arithmetic", "functions", "products", "reductions", "shapes", "softmax", "layer norm", "dropout", "linear"),
    *("embedding", "attention", "loss", "fast kernel", "layer", "model"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_found(mutant):
    """By the edges, which are the first example with every seed, or else with three seeds."""
    for number in (0, 1, 2):
        found = find(mutant, number)
        assert found, f"{mutant.name}: expected {mutant.entry} to find it with seed {number}; it passed every example"
        assert re.match("GradientError|CheckError|KernelMismatch", found.report)
        if found.examples == 1:
            break


@pytest.mark.parametrize("number", range(5))
def test_the_edges_are_the_first_example_with_any_seed(number, monkeypatch):
    seen = []
    monkeypatch.setattr(cases.base, "check_call", lambda entry, call, derive: seen.append(call))

    @seed(number)
    @settings(derandomize=False, database=None)
    @given(data=st.data())
    def search(data):
        cases.check("operation stack", data)

    search()
    edges = [call.options for call in cases.EDGES["operation stack"]()]
    assert [call.options for call in seen[: len(edges)]] == [*edges[1:], edges[0]]
    assert len(seen) > len(edges)


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
    page = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert f"| {mutant.name} | {mutant.entry} |" in page, f"{mutant.name}: run python -m tests.mutants"
