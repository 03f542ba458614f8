"""Check every registered operation, kernel, layer and model with autograd.testing, on the cases of tests/cases.

An entry without a case fails with its name. conftest.py has the profiles; `HYPOTHESIS_PROFILE=thorough` tries
250 examples.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import cases
from tests.soak import soak

# In the daily suite, tests/laws checks complete models.
LARGE = ("model ", "layer DecoderLayer", "layer EncoderLayer", "layer Experts")
SLOW = [[pytest.mark.slow] * entry.startswith(LARGE) for entry in cases.ENTRIES]


@pytest.mark.parametrize("entry", [pytest.param(e, marks=m) for e, m in zip(cases.ENTRIES, SLOW, strict=True)])
def test_entry(entry):
    @cases.case_settings(entry, settings.default)
    @given(data=st.data())
    def check(data):
        cases.check(entry, data)

    check()


def test_soak_counts_the_examples_that_passed():
    assert soak("operation exp", 5) == 5


def test_every_entry_has_a_case_and_edges():
    for entry in cases.ENTRIES:
        cases.check_registration(entry)
    assert {*cases.CASES, *cases.EDGES} <= {*cases.ENTRIES}


@pytest.mark.parametrize("kind", ["operation", "kernel", "layer"])
def test_entry_without_a_case_is_named(kind):
    with pytest.raises(AssertionError, match=f"{kind} new_one has no case in tests/cases"):
        cases.check_registration(f"{kind} new_one")
