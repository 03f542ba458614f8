"""Test that the relations between wrong and correct results are recognized, and never reported for other results."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from book.relations import Pair, relation

NUMBERS = np.random.default_rng(0).normal(size=(3, 4, 5))


def name_of(change, part=None):
    """Return the name of the relation of `change(x)` to x, for the arrays of NUMBERS."""
    pairs = [Pair(change(x), x, None, change(x), x) for x in NUMBERS]
    return relation(pairs, part)[0]


@given(st.floats(-1e3, 1e3).filter(lambda c: min(abs(c - 1), abs(c + 1), abs(c)) > 0.02))
def test_a_constant_factor_is_recognized(c):
    assert name_of(lambda x: c * x) in ("constant factor", "size")


@pytest.mark.parametrize(
    ("change", "name"),
    [(lambda x: -x, "sign"), (lambda x: x[0], "shape"), (lambda x: x > 0, "dtype"), (lambda x: x * np.nan, "nan"),
     (lambda x: x * x.sum(), "scale"), (lambda x: x + 1, "offset"),
     (lambda x: x.T, "transposed"), (lambda x: x + np.inf, "inf"), (lambda x: x - np.inf, "-inf"),
     (lambda x: x + x**2, ""), (lambda x: x * (1 + 1e-8), ""), (lambda x: None, ""),
     (lambda x: [[1], [2, 3]], ""), (lambda x: "text", ""), (lambda x: KeyError("a"), "")],
)  # fmt: skip
def test_relations_by_name(change, name):
    assert name_of(change) == name


OF_ONE_RESULT = {  # changes to a result, and the relation that describes the result by itself
    "shape": lambda x: x[0],
    "dtype": lambda x: x > 0,
    "nan": lambda x: x * np.nan,
    "number of values": None,  # for a right result that is a tuple
    "": lambda x: x + x**2,
    "reshape": lambda x: ValueError("cannot reshape array of size 12 into shape (1,2,4)"),
}


def pair_of(name, x):
    change = OF_ONE_RESULT[name]
    return Pair(x, (x, x), None, x, (x, x)) if change is None else Pair(change(x), x, None, change(x), x)


@pytest.mark.parametrize("later", OF_ONE_RESULT)
@pytest.mark.parametrize("first", OF_ONE_RESULT)
def test_a_hint_about_one_result_describes_the_first_which_is_shown(first, later):
    assert relation([pair_of(first, NUMBERS[0]), pair_of(later, NUMBERS[1])], None)[0] == first


def test_a_relation_between_results_holds_for_all_of_them():
    negative = Pair(-NUMBERS[0], NUMBERS[0], None, -NUMBERS[0], NUMBERS[0])
    assert relation([negative, negative], None)[0] == "sign"
    for later in OF_ONE_RESULT:
        assert relation([negative, pair_of(later, NUMBERS[1])], None) == ("", ""), later
    zeros = np.zeros(3)
    assert relation([negative, Pair(zeros + 1, zeros, None, zeros + 1, zeros)], None) == ("", "")


def test_gradients_in_the_wrong_order():
    right = [(x, 2 * x, 3 * x) for x in NUMBERS]
    pairs = [Pair(r[1], r[0], None, (r[1], r[2], r[0]), r) for r in right]
    assert relation(pairs, 0)[0] == "exchanged"


@pytest.mark.parametrize(("power", "name"), [(0, "g ignored"), (2, "not linear"), (1, "")])
def test_dependence_on_the_incoming_gradient(power, name):
    vjp = lambda g, x: g**power * x + (g if power == 1 else 0)  # noqa: E731
    pairs = [Pair(vjp(3.0, x), x, vjp(6.0, x), vjp(3.0, x), x) for x in NUMBERS]
    assert relation(pairs, None)[0] == name


@pytest.mark.parametrize("i", [0, -1])
def test_one_row_of_a_sum(i):
    rows = [np.stack([x, x**2]) for x in NUMBERS]
    pairs = [Pair(r[i], r.sum(axis=0), None, r[i], r.sum(axis=0), (r[0], r[-1])) for r in rows]
    name, text = relation(pairs, 1)
    assert name == "one row" and f"the {('first', 'last')[i]} row of g alone" in text


def test_one_number_has_no_relation_to_another():
    assert relation([Pair(2.0, 3.0, None, 2.0, 3.0)], None) == ("", "")
