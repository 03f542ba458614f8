"""What newcomers write, checked with one plain array: every wrong one is found, no right one is accused.

One seed each; `python -m tests.user_code --runs 100` tries many.
"""

import re

import numpy as np
import pytest

from tests.user_code import RIGHT, WRONG, check, naive

ISSUE = {"formula", "special", "finite", "domain", "bends", "luck", "inputs", "state", "incoming", "blocks", "dtype"}


def by_name(entries):
    return pytest.mark.parametrize("newcomer", entries, ids=[newcomer.name for newcomer in entries])


@by_name(RIGHT)
def test_right(newcomer):
    check(newcomer)


@by_name(WRONG)
def test_wrong(newcomer):
    with pytest.raises(AssertionError) as error:
        check(newcomer)
    assert type(error.value).__name__ in ("GradientError", "CheckError")
    assert re.search(r"^rule: \w+", str(error.value), re.MULTILINE) and error.value.rule


def test_there_are_many_of_every_kind_under_names_of_their_own():
    assert len(RIGHT) >= 45 and len(WRONG) >= 60
    assert len({newcomer.name for newcomer in RIGHT + WRONG}) == len(RIGHT + WRONG)
    assert {newcomer.kind for newcomer in WRONG} == ISSUE | {"model", "mode", "random"}


def test_each_is_made_afresh():
    for newcomer in RIGHT + WRONG:
        (_, first), (_, second) = newcomer.make(), newcomer.make()
        assert all(np.array_equal(a, b) and a is not b for a, b in zip(first, second, strict=True))


def test_what_is_wrong_mostly_passes_a_plain_test():
    """By central differences at the given x; else there would be nothing to show."""
    with np.errstate(all="ignore"):
        hidden = [n.name for n in WRONG if n.kind not in ("formula", "mode", "random") and naive(n) < 1e-4]
    assert len(hidden) > 100
