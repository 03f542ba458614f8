"""Code of first-time users, checked with one plain array: all wrong code is detected; no correct code is rejected.

Each entry is checked with one seed, and only every fourth one in the daily suite; `python -m tests.user_code --runs
100` tries many seeds.
"""

import re

import numpy as np
import pytest

from tests.user_code import RIGHT, WRONG, central_difference_error, check

KINDS = {"formula", "special", "finite", "domain", "bends", "luck", "inputs", "state", "incoming", "blocks", "dtype"}


def by_name(entries):
    """Parametrize a test by entries; all but every fourth are marked as slow."""
    marks = [[pytest.mark.slow] * (i % 4 > 0) for i in range(len(entries))]
    marked = [pytest.param(code, id=code.name, marks=m) for code, m in zip(entries, marks, strict=True)]
    return pytest.mark.parametrize("code", marked)


@by_name(RIGHT)
def test_correct_code_passes(code):
    check(code)


@by_name(WRONG)
def test_wrong_code_is_detected(code):
    with pytest.raises(AssertionError) as error:
        check(code)
    assert type(error.value).__name__ in ("GradientError", "CheckError")
    assert re.search(r"^rule: \w+", str(error.value), re.MULTILINE) and error.value.rule


def test_every_kind_has_entries_and_names_are_unique():
    assert len(RIGHT) >= 45 and len(WRONG) >= 60
    assert len({code.name for code in RIGHT + WRONG}) == len(RIGHT + WRONG)
    assert {code.kind for code in WRONG} == KINDS | {"model", "mode", "random"}


def test_make_returns_new_equal_inputs():
    for code in RIGHT + WRONG:
        (_, first), (_, second) = code.make(), code.make()
        assert all(np.array_equal(a, b) and a is not b for a, b in zip(first, second, strict=True))


def test_central_differences_miss_most_of_the_wrong_code():
    with np.errstate(all="ignore"):
        errors = [central_difference_error(c) for c in WRONG if c.kind not in ("formula", "mode", "random")]
    assert sum(error < 1e-4 for error in errors) > 100
