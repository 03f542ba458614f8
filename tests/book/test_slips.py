"""Wrong answers that no hint was written for are described by a slip in a right answer that gives the same results."""

import re

import pytest

from book.files import Exercise
from book.hints import known_words
from book.judging import MAX_LINES, WIDTH, judge
from book.results import load
from book.slips import TooLong, limited, slips, types_of_names

pytestmark = pytest.mark.usefixtures("registry", "default_rematerialization")  # answers register operations

TOY = """
def ratio(a, b):
    total = a + b
    return a / total
"""


@pytest.fixture
def toy(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return path


def results(path, types=None):
    """Return the results of the slips of a toy and their descriptions."""
    found = {}
    for slip in slips(path, types or {}):
        try:
            found.setdefault(slip.module().ratio(3.0, 5.0), slip.text)
        except (ArithmeticError, NameError, TypeError):
            continue
    return found


def test_each_slip_is_described(toy):
    found = results(toy)
    assert found[3.0] == "Your results are those of `a`, where the division by `total` is missing."
    assert found[24.0] == "Your results are those of `a * total`, where `*` should be `/`."
    assert found[0.6] == "Your results are those of `total = b`, where the term `a` is missing."
    assert found[5 / 8] == "Your results are those of `b / total`, where `b` should be `a`."
    assert 3 / 8 not in found  # no slip leaves the result as it is


def test_names_of_different_types_are_not_exchanged(toy):
    assert 5 / 8 not in results(toy, {"a": float, "b": int, "total": float})


def test_a_part_that_occurs_twice_is_quoted_with_its_context(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text("def ratio(a, b):\n    return (a + b) * (a - b) + b * b\n")
    texts = {slip.text.removeprefix("Your results are those of ") for slip in slips(path, {})}
    assert "`(a + a) * (a - b) + b * b`, where `a + a` should be `a + b`." in texts
    assert "`(a + b) / (a - b) + b * b`, where `/` should be `*`." in texts
    assert "`(a + b) * (a - b) - b * b`, which should be `(a + b) * (a - b) + b * b`." in texts
    assert "`(a + a) * (a - a) + a * a`, which should be `(a + b) * (a - b) + b * b`." in texts
    assert "`(b + b) * (b - b) + b * b`, which should be `(a + b) * (a - b) + b * b`." in texts


def test_types_of_names(toy):
    module = load(toy)
    assert types_of_names(toy, [lambda: module.ratio(1.0, 2)]) == {"a": float, "b": int, "total": float}
    assert types_of_names(toy, [lambda: module.ratio(1.0, 2), lambda: module.ratio(1, 2)])["a"] is None


def test_a_slip_cannot_hang(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text("def ratio(a, b):\n    while a < b:\n        a += 1\n    return a\n")
    stopped = 0
    for slip in slips(path, {}):
        try:
            limited(slip.module().ratio, 0, 3)
        except TooLong:
            stopped += 1
        except Exception:
            continue
    assert stopped


UNKNOWN = {  # exercise, edits of the solution, description
    "divided by the size": (
        "01_slope", [("* size", "/ size")], "`2.2e-16 ** (1 / 3) / size`, which should be `2.2e-16 ** (1 / 3) * size`.",
    ),
    "multiplied by b": (
        "02_remembering", [("* y / b", "* y * b")], "where `-g * y * b` should be `-g * y / b`. In our answer, to_b is",
    ),
    "a name that the answer lacks is not exchanged": (
        "02_remembering",
        [("        to_a = g / b  # the derivative with respect to a is 1 / b\n", ""),
         ("unbroadcast(to_a, a)", "unbroadcast(g / b, a)"), ("-g * y / b", "-g * y / b**2")],
        "`to_b = -g * y / b / b`, where `/ b` is there twice. In our answer, to_b is",
    ),
    "exponentials in place of y": (
        "05_softmax", [("(y * (g", "(e * (g")], "where `e` should be `y`. In our answer, e is the exponentials",
    ),
    "multiplied after the sum": (
        "05_softmax", [("(g * y).sum(axis=-1, keepdims=True)", "g.sum(axis=-1, keepdims=True) * y")],
        "where `g * y` should be computed before `.sum`. In our answer, mean is the sum of g y",
    ),
    "the diagonal subtracted twice": (
        "05_softmax", [("y * (g - mean)", "y * ((1 - y) * g - mean)")], "where the term `g * y` is missing.",
    ),
    "the sum of the row is missing": (
        "07_one_head", [("softmax_grad(to_p, saved) * scale", "to_p * p * scale")],
        "where the term `(gw * weights).sum(axis=1, keepdims=True)` is missing.",
    ),
    "the root comes first": (
        "09_learning", [("np.sqrt(vhat)", "np.sqrt(vhat / (1 - beta2**step))")],
        "where `/ (1 - beta2 ** step)` is there twice.",
    ),
    "the other power of warmup": (
        "09_learning", [("warmup**-1.5", "warmup**-0.5")], "where `warmup ** (-0.5)` should be `warmup ** (-1.5)`.",
    ),
    "the penalty without 5": (
        "11_search", [("((5 + n) / 6) ** alpha))", "(n / 6) ** alpha))")], "where the term `5` is missing.",
    ),
    "the maximum subtracted": ("12_panels", [("np.log(total) +", "np.log(total) -")], "where `-` should be `+`."),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_wrong_answer_is_described_by_a_slip(tmp_path, monkeypatch, name):
    monkeypatch.setattr("book.hints.known_wrong", lambda exercise: {})
    folder, edits, expected = UNKNOWN[name]
    exercise, path = Exercise(folder), tmp_path / f"{folder}.py"
    source = exercise.solution.read_text("utf-8")
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    path.write_text(source)
    verdict = judge(exercise, path)
    assert not verdict.passed and verdict.hint == "slip", verdict.lines
    assert expected in re.sub(r"\s+", " ", " ".join(verdict.lines)), verdict.lines
    assert len(verdict.lines) <= MAX_LINES - 2 and max(map(len, verdict.lines)) <= WIDTH


def test_slips_describe_most_wrong_answers_without_their_hints(tmp_path, monkeypatch):
    """Most of the wrong answers with a hint of their own are recognized without it."""
    monkeypatch.setattr("book.hints.known_wrong", lambda exercise: {})
    exercise = Exercise("06_norms")
    described = 0
    for wrong in exercise.wrong_answers[::2]:
        path = tmp_path / f"{wrong.name}.py"
        path.write_text(wrong.source)
        described += judge(exercise, path, vary_inputs=False).hint == "slip"
    assert described >= 0.75 * len(exercise.wrong_answers[::2])


def test_a_description_uses_no_function_that_the_chapters_lack():
    words = known_words(Exercise("02_remembering"))
    assert {"unbroadcast", "to_a", "g"} <= words and not {"sum_to", "reciprocal"} & words
    assert "einsum" not in known_words(Exercise("07_one_head"))


def test_an_infinite_slope_is_wrong(tmp_path):
    exercise, path = Exercise("01_slope"), tmp_path / "01_slope.py"
    path.write_text("def slope(f, x, h):\n    return float('inf')\n\n\ndef step(x):\n    return 1e-5\n")
    assert not judge(exercise, path).passed
