"""Functions with a hand-written gradient, as users of NumPy, PyTorch and JAX write it: only correct ones pass.

The fast tests check a few of them, and the slow tests a third of the others. `python -m tests.user_code.foreign pair`
checks them all, with many seeds.
"""

import pytest

from tests.user_code.foreign import FRAMEWORKS, NAMES, collection

DAILY = ("huber", "attention_wrong", "embedding_wrong", "workspace", "in_place")


def entry_of(framework, name):
    if framework != "pair":
        pytest.importorskip(framework, reason=f"needs {framework} (extra check-dev)")
    return next((entry for entry in collection(framework) if entry.name == name), None)


def verify(entry):
    if entry.is_right:
        entry.check()
    else:
        with pytest.raises(AssertionError) as error:
            entry.check()
        assert error.value.rule


@pytest.mark.parametrize("name", DAILY)
def test_pairs(name):
    verify(entry_of("pair", name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in DAILY][::3])
def test_more_pairs(name):
    verify(entry_of("pair", name))


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
def test_other_frameworks(framework):
    for name in ("attention", "attention_wrong", "embedding_wrong", "only_in_float32", "only_contiguous"):
        entry = entry_of(framework, name)
        if entry is not None:
            verify(entry)


def test_there_are_thirty_of_each():
    entries = collection("pair")
    assert sum(e.is_right for e in entries) >= 30 and sum(not e.is_right for e in entries) >= 30
    assert [e.name for e in entries] == NAMES
