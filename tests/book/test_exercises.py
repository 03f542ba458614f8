"""The exercises of the book: correct answers pass, wrong answers get their own hint, malformed ones a plain message."""

import ast
import os
import re
import textwrap
import time
from functools import cache

import pytest

from book.files import Exercise, exercises, first_problem
from book.judging import MAX_LINES, WIDTH, differing, judge, show
from tests.book import answers

SEEDS = range(int(os.environ.get("BOOK_SEEDS", "20")))  # seeds of the cases that a correct answer must pass
# Run the gradient checker on every correct answer, which takes minutes.
CHECK_ALL_GRADIENTS = "BOOK_CHECK_ALL_GRADIENTS" in os.environ
ALL = exercises()
for_each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
pytestmark = pytest.mark.usefixtures("registry", "default_rematerialization")  # answers register operations


@for_each_exercise
def test_right_answers_pass(exercise):
    right = [exercise.solution, *exercise.also_right]
    assert len(right) >= 3
    for path in right:
        verdict = judge(exercise, path, SEEDS, vary_inputs=CHECK_ALL_GRADIENTS or path == exercise.solution)
        assert verdict.passed, "\n".join([str(path), *verdict.lines])


@for_each_exercise
def test_blank_is_reported_as_unfinished(exercise):
    blank = exercise.blank.read_text("utf-8").splitlines()
    line = next(number for number, text in enumerate(blank, start=1) if "# yours" in text)
    start = time.process_time()
    verdict = judge(exercise, exercise.blank)
    assert not verdict.passed and len(verdict.lines) == 1
    assert f"blank.py:{line}: unfinished: " in verdict.lines[0]
    assert time.process_time() - start < 1
    assert len(blank) <= 40


def interface(path):
    """Return the parts that a blank and its solution share: docstrings, imports, signatures and constants."""
    parts = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            parts.append((node.name, ast.unparse(node.args), ast.get_docstring(node)))
        else:
            parts.append(ast.unparse(node))
    return parts


@for_each_exercise
def test_blank_and_solution_have_the_same_signatures_and_docstrings(exercise):
    assert interface(exercise.blank) == interface(exercise.solution)
    assert "#" in exercise.solution.read_text("utf-8"), "the solution has no comment"


@pytest.fixture(scope="session")
def wrong_verdict(tmp_path_factory):
    """Return a function that judges a known wrong answer, once."""
    folder = tmp_path_factory.mktemp("wrong")

    @cache
    def judged(exercise, wrong):
        path = folder / f"{exercise.name}_{wrong.name}.py"
        path.write_text(wrong.source)
        return judge(exercise, path)

    return judged


@for_each_exercise
def test_each_wrong_answer_gets_its_own_hint(exercise, wrong_verdict):
    hints = [wrong.hint for wrong in exercise.wrong_answers]
    assert len(set(hints)) == len(hints) >= 3 and all(20 < len(hint) < 125 for hint in hints)
    for wrong in exercise.wrong_answers:
        verdict = wrong_verdict(exercise, wrong)
        text = "\n".join(verdict.lines)
        assert not verdict.passed and verdict.hint == wrong.name, f"{wrong.name}\n{text}"
        assert wrong.hint in text.replace("\n", " ")
        assert len(verdict.lines) <= MAX_LINES - 2  # two more lines may report what the file prints
        assert max(map(len, verdict.lines)) <= WIDTH
        assert "Traceback" not in text and "judging.py" not in text and "exercise.py" not in text


def test_most_failing_inputs_have_at_most_four_numbers(wrong_verdict):
    sizes = [wrong_verdict(exercise, wrong).numbers for exercise in ALL for wrong in exercise.wrong_answers]
    assert sum(n <= 4 for n in sizes) >= 0.8 * len(sizes)


@for_each_exercise
def test_wrong_answers_fail_on_other_seeds(exercise, tmp_path, monkeypatch):
    monkeypatch.setattr("book.judging.find_hint", lambda *arguments: ("", ""))  # hints are tested above
    for wrong in exercise.wrong_answers:
        path = tmp_path / f"{wrong.name}.py"
        path.write_text(wrong.source)
        assert not judge(exercise, path, range(7, 8), vary_inputs=False).passed, wrong.name


def test_a_change_must_fit_the_solution_once(tmp_path, monkeypatch):
    monkeypatch.setattr("book.files.BOOK", tmp_path)
    exercise = Exercise("01_f")
    exercise.folder.mkdir(parents=True)
    exercise.solution.write_text("def f(x):\n    return x + x\n")
    changes = "## one\nA hint.\n\n- return x\n+ return y\n\n## two\nAnother.\n\n+ def f(x):\n+     return 0\n"
    (exercise.folder / "wrong.txt").write_text(changes)
    one, two = exercise.wrong_answers
    assert one == ("one", "A hint.", "def f(x):\n    return y + x\n") and two.source == "def f(x):\n    return 0\n"
    exercise = Exercise("01_f")
    (exercise.folder / "wrong.txt").write_text("## one\nA hint.\n\n- x\n+ y\n")
    with pytest.raises(ValueError, match="01_f, one: expected the text once in the solution; found 3: x"):
        exercise.wrong_answers  # noqa: B018


# Answers written without seeing the hints


def test_other_right_answers_pass(tmp_path):
    for answer in answers.right_answers():
        exercise, path = write_answer(tmp_path, answer.source, ALL[answer.exercise - 1].name)
        path = path.rename(tmp_path / f"{answer.exercise}_{answer.name}.py")
        verdict = judge(exercise, path, vary_inputs=answer.exercise == 7)
        assert verdict.passed, "\n".join([str(answer), *verdict.lines])


def test_other_wrong_answers_fail_with_a_specific_message(tmp_path):
    """At least 90 in 100 get a hint; for the others, the message says which form of result was expected."""
    hints = 0
    for number, answer in enumerate(answers.wrong_answers()):
        exercise, path = write_answer(tmp_path, answer.source, ALL[answer.exercise - 1].name)
        path = path.rename(tmp_path / f"{number}.py")
        verdict = judge(exercise, path, vary_inputs=False)
        assert not verdict.passed, answer
        assert verdict.hint or "expected" in "\n".join(verdict.lines), answer
        hints += bool(verdict.hint)
    assert hints >= 0.9 * (number + 1)


SIMILAR = {  # learners' answers close to a known wrong one: exercise, the hint that applies (or ""), code
    "-inf minus -inf, with -inf returned for empty rows": (
        "12_panels", "inf_minus_inf",
        """
        peak, total = -np.inf, 0.0
        for x in panels:
            new_peak = np.maximum(peak, x.max(axis=1))
            total = total * np.exp(peak - new_peak) + np.exp(x - new_peak[:, None]).sum(axis=1)
            peak = new_peak
        return np.where(peak == -np.inf, -np.inf, np.log(total) + peak)
        """,
    ),
    "logaddexp of panels": (
        "12_panels", "nan",
        """
        total = -np.inf
        for x in panels:
            peak = x.max(axis=1)
            total = np.logaddexp(total, np.log(np.exp(x - peak[:, None]).sum(axis=1)) + peak)
        return total
        """,
    ),
    "finished sentences in the beam, with a running best": (
        "11_search", "ends_occupy_beam",
        """
        live, best = [((), 0.0)], (None, float("-inf"))
        for n in range(1, max_length + 1):
            longer = [((*p, t), log_p + q) for p, log_p in live for t, q in enumerate(next_log_p(p))]
            live = []
            for prefix, log_p in sorted(longer, key=lambda item: -item[1])[:beam]:
                if prefix[-1] != END:
                    live.append((prefix, log_p))
                elif log_p / ((5 + n) / 6) ** alpha > best[1]:
                    best = list(prefix[:-1]), log_p / ((5 + n) / 6) ** alpha
        return best
        """,
    ),
    "a row of equal numbers": ("04_checking", "constant_rows", "return [(np.array([[4.0, 4.0]]), np.array([3.0]))]"),
}  # fmt: skip


@pytest.mark.parametrize("name", SIMILAR)
def test_hint_appears_only_where_it_applies(tmp_path, name):
    folder, hint, body = SIMILAR[name]
    blank = Exercise(folder).blank.read_text("utf-8")
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    exercise, path = write_answer(tmp_path, re.sub(r"    .*# yours", lambda _: body, blank), folder)
    verdict = judge(exercise, path)
    assert not verdict.passed and verdict.hint == hint, "\n".join(verdict.lines)


EDITS = {  # exercise, edits of the solution, name of the hint, part of the text
    "an argument changed in place": (
        "02_remembering", [("to_a = g / b", "g /= b\n        to_a = g")], "in place", "`g /= b` changes an argument",
    ),
    "assigned in a loop": (
        "07_one_head", [("p.T @ g", "p[-1:].T @ g[-1:]")], "one row", "the last row of g alone",
    ),
    "a transposed gradient": ("07_one_head", [("to_scores.T @ q", "q.T @ to_scores")], "transposed", "is transposed"),
    "a constant that differs": (
        "01_slope", [("2.2e-16 ** (1 / 3) * size", "6e-6 * max(x, 1)")], "step_signed", "a negative x",
    ),
    "a view of a panel": (
        "12_panels", [("peak, total = -np.inf, 0.0", "peak, total = -np.inf, 0.0\n    first = None"),
                      ("peak = new_peak", "first = x[:, 0] if first is None else first\n        peak = new_peak"),
                      ("return np.log(total) +", "return first + 0 * np.log(total) + 0 *")],
        "explanation", "a view and changes with it: copy it, or go through the panels only once",
    ),
    "one swap of two": (
        "13_model", [("causal=True)).reshape", "causal=True)).swapaxes(1, 2).reshape")], "output_mixes_positions",
        "In this stage your results are those of a known mistake",
    ),
    "an earlier step": (
        "09_learning",
        [("1 - beta1**step)", "1 - beta1 ** min(step, 100))"), ("1 - beta2**step)", "1 - beta2 ** min(step, 100))")],
        "explanation", "p moves as if step were 100, not 1000",
    ),
    "the last query": (
        "08_many_heads", [("<= positions[:, None]  ", "<= positions[:, None] - (positions[:, None] == n_keys - 1)  ")],
        "explanation", "A query may look at its own position, but in yours, some may not",
    ),
    "a variance": (
        "09_learning", [("(1 - beta2) * g * g", "(1 - beta2) * (g - m) ** 2")], "squares_around_m", "minus the new m",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_solution_gets_a_specific_hint(tmp_path, name):
    folder, edits, hint, expected = EDITS[name]
    source = Exercise(folder).solution.read_text("utf-8")
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    verdict = judge(*write_answer(tmp_path, source, folder))
    text = re.sub(r"\s+", " ", " ".join(verdict.lines))
    assert not verdict.passed and verdict.hint == hint and expected in text, text


# Answers of the wrong form


def write_answer(tmp_path, text, name="05_softmax"):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return Exercise(name), path


SOLUTION = Exercise("05_softmax").solution.read_text("utf-8")
MESSAGES = {
    "a syntax error": ("def softmax(x:\n    return x\n", r"05_softmax\.py:1: Python cannot parse this: .*"),
    "an empty file": ("", r"05_softmax\.py: expected def softmax\(x\); found no softmax"),
    "a wrong signature": ("def softmax():\n    return 1\n", r"05_softmax\.py:1: expected def softmax\(x\); found .*"),
    "a foreign import": ("import torch\n" + SOLUTION, r"05_softmax\.py:1: expected only numpy.*; found torch"),
    "a forbidden import": ("from npx import softmax\n", r"05_softmax\.py:1: expected only numpy.*; found npx"),
    "an exception": (
        SOLUTION.replace("    e = ", "    raise ValueError('not today')\n    e = "),
        r"Not yet: your code raises an exception here\.\n\n  softmax.*\n  .*05_softmax\.py:12: ValueError: not today",
    ),
    "incompatible shapes": (
        SOLUTION.replace("    e = ", "    np.ones((2, 3)) @ np.ones((2, 3))\n    e = "),
        r"(?s)Not yet: your code raises an exception here\..*05_softmax\.py:12: ValueError: .*"
        r"\(size 2 is\s+different from 3\)\n\nHint: Two shapes do not fit\.",
    ),
    "an exception at import": (
        "raise ValueError('no')\n" + SOLUTION,
        r"The file cannot be imported.*05_softmax\.py:1: .*: no",
    ),
    "None": ("def softmax(x):\n    pass\n", r"(?s).*expected softmax to return two things.*; got None"),
    "a single return value": ("def softmax(x):\n    return x\n", r"(?s).*its vjp; got an array of shape \(2,\)"),
    "a binary file": (None, r"05_softmax\.py: expected a text file in UTF-8; .*"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_malformed_answers_give_one_plain_message(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    text, expected = MESSAGES[name]
    exercise, path = write_answer(tmp_path, text or "")
    if text is None:
        path.write_bytes(b"\xff\xfe\x00")
    verdict = judge(exercise, path)
    assert not verdict.passed and len(verdict.lines) <= MAX_LINES
    assert re.match(expected, "\n".join(verdict.lines)), verdict.lines


@pytest.mark.parametrize(
    ("line", "blank"),
    [("...", True), ("y = ...", True), ("return ..., 1", True), ("return [(..., ...)]", True),
     ("return lambda g: (...,)", True), ("y = x[..., None]", False), ("y = x[...]", False), ("'...'", False),
     ("y = f(...)", False)],
)  # fmt: skip
def test_ellipsis_is_a_blank_only_as_a_placeholder(tmp_path, line, blank):
    exercise, path = write_answer(tmp_path, f"def softmax(x):\n    {line}\n")
    assert (first_problem(exercise, path) is not None) == blank


def test_equal_entries_of_two_dicts_are_not_shown():
    assert differing({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}, 1e-9) == ({"b": 2.0}, {"b": 3.0})
    assert differing({"a": 1.0}, {"b": 1.0}, 1e-9) == ({"a": 1.0}, {"b": 1.0})
    assert differing([1.0], [2.0], 1e-9) == ([1.0], [2.0])


def test_show_takes_the_number_of_digits():
    assert show(2e6) == show(2000000.1) and show(2e6, 13) != show(2000000.1, 13)
