"""The gradient checker detects every bug of tests/mutants under the `ci` profile; figures: docs/mutants.md."""

import re

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests import ROOT, cases
from tests.mutants import KINDS, MUTANTS, find

FAMILIES = {
    *("arithmetic", "functions", "matmul", "reductions", "shapes", "softmax", "layer norm", "dropout", "linear"),
    *("embedding", "attention", "loss", "fast kernel", "layer", "model"),
}


# Detected by random examples. All other mutants are detected by the hand-picked edges, the first example with any seed.
BY_RANDOM_EXAMPLES = {
    f"attention_grad: value gradient in float16 for float32 ({name})" for name in ("self_attention", "cross_attention")
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_every_mutant_is_detected(mutant):
    """This test uses one seed; `python -m tests.mutants` tries 20."""
    detection = find(mutant, 0)
    assert detection, f"{mutant.name}: {mutant.entry} passed every example"
    assert re.match("GradientError|CheckError|KernelMismatch", detection.report)
    assert detection.examples == 1 or mutant.name in BY_RANDOM_EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BY_RANDOM_EXAMPLES))
def test_random_examples_detect_a_mutant_with_another_seed(name):
    assert find(next(mutant for mutant in MUTANTS if mutant.name == name), 1)


@pytest.mark.parametrize("number", range(5))
def test_the_edges_are_the_first_example_with_any_seed(number, monkeypatch):
    calls = []
    monkeypatch.setattr(cases.base, "check_call", lambda entry, call, derive: calls.append(call))

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
    page = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    for kind in KINDS:
        number = sum(mutant.kind == kind for mutant in MUTANTS)
        assert re.search(rf"^\| {kind}: [^|]* \| {number} \| {number} \|", page, re.MULTILINE), (
            "run python -m tests.mutants"
        )
    assert f"| all | {len(MUTANTS)} | {len(MUTANTS)} |" in page
