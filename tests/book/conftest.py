"""Fixtures of the tests of the book."""

import pytest

import npx
from npx.dispatch import REMATERIALIZE_ABOVE


@pytest.fixture(scope="module")
def default_rematerialization():
    """Save the arrays that a learner's process saves, because chapters print them; the other tests recompute more."""
    with npx.rematerialize_above(REMATERIALIZE_ABOVE):
        yield
