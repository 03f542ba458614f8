"""The gradient checker detects every bug of tests/mutants under the `ci` profile; figures: docs/checker-coverage.md."""

import re

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests import ROOT, cases
from tests.mutants import KINDS, MUTANTS, find

FAMILIES = {
    "arithmetic",
    "functions",
    "matmul",
    "reductions",
    "shapes",
    "softmax",
    "layer norm",
    "dropout",
    "linear",
    "embedding",
    "attention",
    "loss",
    "fast kernel",
    "layer",
    "model",
}


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] * (i % 8 > 0 or mutant.kind == "model"))
        for i, mutant in enumerate(MUTANTS)
    ],
)
def test_every_mutant_is_detected(mutant):
    """The hand-picked edges, which are the first example with any seed, detect the mutant."""
    detection = find(mutant, 0)
    assert detection, f"{mutant.name}: {mutant.entry} passed every example"
    assert re.match("GradientError|CheckError|KernelMismatch", detection.report)
    assert detection.examples == 1


@pytest.mark.parametrize("number", range(5))
def test_the_edges_are_the_first_example_with_any_seed(number, monkeypatch):
    calls = []
    monkeypatch.setattr(cases.base, "check_call", lambda entry, call, vary_inputs: calls.append(call))

    @seed(number)
    @settings(derandomize=False, database=None)
    @given(data=st.data())
    def search(data):
        cases.check("operation stack", data)

    search()
    edges = [call.options for call in cases.EDGES["operation stack"]()]
    assert [call.options for call in calls[: len(edges)]] == [*edges[1:], edges[0]]
    assert len(calls) > len(edges)


def test_mutants_are_many_and_their_names_are_unique():
    assert len(MUTANTS) >= 150 and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.family for mutant in MUTANTS} == FAMILIES
    assert {mutant.kind for mutant in MUTANTS} <= set(KINDS)
    assert {mutant.entry for mutant in MUTANTS} <= set(cases.ENTRIES)


def test_a_mutant_is_removed_after_its_search():
    operation = next(mutant for mutant in MUTANTS if mutant.entry == "operation negative")
    correct = type(operation)("correct", operation.family, operation.kind, operation.entry, lambda patch: None)
    assert find(operation) and find(correct) is None


def test_the_page_counts_every_mutant():
    page = (ROOT / "docs" / "checker-coverage.md").read_text(encoding="utf-8")
    for kind in KINDS:
        number = sum(mutant.kind == kind for mutant in MUTANTS)
        assert re.search(rf"^\| {kind}: [^|]* \| {number} \| {number} \|", page, re.MULTILINE), (
            "run python -m tests.mutants"
        )
    assert f"| all | {len(MUTANTS)} | {len(MUTANTS)} |" in page
