"""Test the book: chapter outputs and quotations are current, right answers pass, wrong answers get their own hint."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from functools import cache

import numpy as np
import pytest

import npx
from autograd import OPERATIONS, Tensor
from autograd import operations as ops
from book import __main__ as command
from book import mini_engine
from book.files import BOOK, ROOT, Exercise, exercises, first_problem
from book.judging import MAX_LINES, WIDTH, judge, show
from book.pages import Page, PageError, digits, quoted
from npx import KERNELS
from npx.dispatch import REMATERIALIZED_BYTES
from tests.book import answers

SEEDS = range(int(os.environ.get("BOOK_SEEDS", "20")))  # of the cases that a right answer must pass
CHECK_ALL_GRADIENTS = "BOOK_KIT" in os.environ  # run the gradient checker on every right answer: takes minutes
ALL = exercises()
for_each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
pytestmark = pytest.mark.usefixtures(
    "registry", "default_rematerialization"
)  # chapters and answers register operations


@pytest.fixture(scope="module")
def default_rematerialization():
    """Save what a learner's process saves, which chapters print; the other tests recompute more."""
    with npx.rematerialize_above(REMATERIALIZED_BYTES):
        yield


for_each_page = pytest.mark.parametrize("page", [Page(e.chapter) for e in ALL], ids=lambda page: page.path.stem)


# Pages


def test_each_chapter_has_an_exercise_and_a_row_in_the_table():
    assert [e.number for e in ALL] == list(range(1, 14))
    assert sorted(BOOK.glob("[0-9]*.md")) == [e.chapter for e in ALL]
    table = (BOOK / "README.md").read_text(encoding="utf-8")
    assert all(f"| {e.number} | [{e.title}]({e.chapter.name}) |" in table for e in ALL)


@for_each_page
def test_page_output_is_current(page):
    page.check_output()


def test_updated_page_contains_the_current_output(tmp_path, monkeypatch):
    monkeypatch.setattr("book.pages.ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text("A\n\n```python\nprint(1)\nprint(2)\n```\n\n```text\nold\n```\n\n```python\nx = 3\n```\nB\n")
    with pytest.raises(PageError, match="page.md:9: the block at line 4 prints\n1\n2\n"):
        Page(path).check_output()
    path.write_text(Page(path).updated())
    Page(path).check_output()
    assert path.read_text().count("```") == 6 and "old" not in path.read_text()


@for_each_page
def test_quoted_code_matches_its_file(page):
    page.check_quotations()
    assert any(block.source for block in page.blocks), "the page quotes no file"


@for_each_page
def test_page_length_and_sections(page):
    assert page.words <= 1500
    number = int(page.path.stem[:2])
    exercise = f"## The exercise\n\n    python -m book {number}\n"
    for part in ("guess|Guess|Which|which|How many", "worked example|One of your own", exercise, "## In the real file"):
        assert re.search(part, page.text), f"{page.path.name} lacks {part!r}"
    assert max(map(len, page.text.splitlines())) <= 126


def test_the_exam_asks_about_every_chapter_and_folds_its_answers():
    text = (BOOK / "exam.md").read_text(encoding="utf-8")
    parts = re.split(r"^### Question (\d+)$", text, flags=re.MULTILINE)
    assert [int(number) for number in parts[1::2]] == list(range(1, 25))
    chapters = [re.findall(r"\[Chapter (\d+)\]\((\d\d-[a-z-]+\.md)\)\)\n\n</details>", part) for part in parts[2::2]]
    assert {int(number) for ((number, _),) in chapters} == {e.number for e in ALL}
    assert all(e.chapter.name == name for ((number, name),) in chapters for e in ALL if e.number == int(number))
    assert all("?" in part.split("<details")[0] for part in parts[2::2])


def test_mini_engine_has_at_most_60_lines_and_right_gradients():
    assert len((BOOK / "mini_engine.py").read_text(encoding="utf-8").splitlines()) <= 60
    random = np.random.default_rng(0)
    arrays = [random.normal(size=shape) for shape in ((3, 2), (2, 4), (4,), (3, 1))]

    def function(a, b, c, d):
        y = a @ b + c
        y = y * y + d
        return (y + y * d).tanh() if isinstance(y, mini_engine.Tensor) else ops.tanh(y + y * d)

    mine = [mini_engine.Tensor(x) for x in arrays]
    theirs = [Tensor(x, requires_grad=True) for x in arrays]
    function(*mine).backward()
    function(*theirs).backward(np.ones((3, 4)))
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.grad, b.grad, rtol=1e-12)


def test_changed_quotation_names_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("book.pages.ROOT", tmp_path)
    source = tmp_path / "engine.py"
    source.write_text("def f(x):\n    if x:\n        return 1\n")
    quoted("03-order.md:7", "if x:\n    return 1\n", source)
    source.write_text("def f(x):\n    if x:\n        return 2\n")
    with pytest.raises(PageError, match="(?s)03-order.md:7: the page quotes .*update the page.*1.*return 2"):
        quoted("03-order.md:7", "if x:\n    return 1\n", source)


def test_output_is_compared_to_three_digits():
    assert digits("x 0.33333 [1.0, 2]") == digits("x 0.33349 [1.00000, 2]") != digits("x 0.335 [1.0, 2]")
    assert digits("-inf  4") == digits("-inf 4") != digits("inf 4")


@cache
def normalized(text):
    """Return code without whitespace and comments."""
    return re.sub(r"\s+|#.*", "", text)


def statements(path, min_length=30):
    """Yield the assignments and return statements of a file that are too long to recur by chance."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Assign, ast.Return, ast.AugAssign)):
            line = normalized(ast.unparse(node))
            if len(line) >= min_length:
                yield line


@for_each_exercise
def test_no_chapter_contains_a_solution(exercise):
    chapter_code = {e.chapter.name: normalized("".join(b.code for b in Page(e.chapter).blocks)) for e in ALL}
    for line in statements(exercise.solution):
        assert not [name for name, code in chapter_code.items() if line in code], line


def project_names(tree):
    """Return the names of this project's packages that code imports, or reads as attributes of an imported module."""
    packages, names, modules = {"npx", "autograd", "models", "train"}, set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in packages:
            names |= {alias.name for alias in node.names}
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name in packages}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names.add(node.attr)
        if isinstance(node, ast.Attribute) and node.attr in ("backward", "zero_grad"):
            names.add(node.attr)
    return names


def test_nothing_is_used_before_the_chapter_that_introduces_it():
    """Check operations, kernels and every name in an `introduces` comment."""
    introduced, first_chapter = set(), {}
    for exercise in ALL:
        page = Page(exercise.chapter)
        (names,) = re.findall(r"<!-- introduces: (.*?) ?-->", page.text)
        for name in filter(None, names.split(", ")):
            assert name.split(".")[-1] in page.text.replace(f"introduces: {names}", ""), f"{page.path.name}: {name}"
            first_chapter.setdefault(name, exercise.number)
    watched = {*OPERATIONS, *KERNELS, *first_chapter} - {"sum", "max", "min", "exp", "log", "sqrt"}
    for exercise in ALL:
        introduced |= {name for name, number in first_chapter.items() if number <= exercise.number}
        code = [b.code for b in Page(exercise.chapter).blocks if b.kind == "python" and not b.source]
        for text in ["\n".join(code), exercise.blank.read_text("utf-8"), exercise.solution.read_text("utf-8")]:
            early = (project_names(ast.parse(text)) & watched) - introduced
            assert not early, f"{exercise.name} uses {early}"


# Exercises


@for_each_exercise
def test_right_answers_pass(exercise):
    right = [exercise.solution, *exercise.also_right]
    assert len(right) >= 3
    for path in right:
        verdict = judge(exercise, path, SEEDS, derive=CHECK_ALL_GRADIENTS or path == exercise.solution)
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
    """Return what a blank and its solution share: docstrings, imports, signatures and constants."""
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
def test_wrong_answers_fail_on_other_seeds(exercise, tmp_path):
    for wrong in exercise.wrong_answers:
        path = tmp_path / f"{wrong.name}.py"
        path.write_text(wrong.source)
        assert not judge(exercise, path, range(7, 8), derive=False).passed, wrong.name


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
    with pytest.raises(ValueError, match="01_f, one: expected once in the solution; got 3: x"):
        exercise.wrong_answers  # noqa: B018


# Answers written without the hints in sight


def test_other_right_answers_pass(tmp_path):
    for answer in answers.right_answers():
        exercise, path = write_answer(tmp_path, answer.source, ALL[answer.exercise - 1].name)
        path = path.rename(tmp_path / f"{answer.exercise}_{answer.name}.py")
        verdict = judge(exercise, path, derive=answer.exercise == 7)
        assert verdict.passed, "\n".join([str(answer), *verdict.lines])


def test_other_wrong_answers_fail_with_a_specific_message(tmp_path):
    """At least 90 in 100 get a hint; the others are told which form of a result was expected."""
    hints = 0
    for number, answer in enumerate(answers.wrong_answers()):
        exercise, path = write_answer(tmp_path, answer.source, ALL[answer.exercise - 1].name)
        path = path.rename(tmp_path / f"{number}.py")
        verdict = judge(exercise, path, derive=False)
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
        r"Not yet: it raises an exception here\.\n\n  softmax.*\n  .*05_softmax\.py:12: ValueError: not today",
    ),
    "incompatible shapes": (
        SOLUTION.replace("    e = ", "    np.ones((2, 3)) @ np.ones((2, 3))\n    e = "),
        r"(?s)Not yet: it raises an exception here\..*05_softmax\.py:12: ValueError: .*"
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


def test_show_takes_the_number_of_digits():
    assert show(2e6) == show(2000000.1) and show(2e6, 13) != show(2000000.1, 13)


# The command


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command in this process; answers are still checked in a separate one."""

    def run(*words):
        try:
            status = command.main([*words, "--folder", str(tmp_path / "my")])
        except SystemExit as exit:
            status = exit.code
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def test_a_learner_starts_fails_passes_and_resets(tmp_path, run):
    mine = tmp_path / "my" / "05_softmax.py"
    assert " 5  open " in run()[1]
    status, output = run("5")
    assert status == 0 and str(mine) in output and "05-softmax.md" in output
    assert mine.read_text() == Exercise("05_softmax").blank.read_text()
    status, output = run("5")
    assert status == 1 and "unfinished" in output and len(output.splitlines()) == 1

    wrong = next(wrong for wrong in Exercise("05_softmax").wrong_answers if wrong.name == "diagonal_only")
    mine.write_text('print("hello")\n' + wrong.source)
    status, output = run("5", "--hint")
    assert status == 1 and "each output's derivative with respect to its own input" in output.replace("\n", " ")
    assert "yours" in output and "'hello'" in output and len(output.splitlines()) <= MAX_LINES

    mine.write_text(SOLUTION)
    status, output = run("5")
    assert status == 0 and "05_softmax: correct." in output and "npx/kernels/softmax.py" in output
    assert " 5  done " in run()[1]
    mine.write_text(SOLUTION + "# more\n")
    assert " 5  started" in run()[1]

    run("5", "--reset")
    assert mine.read_text() == Exercise("05_softmax").blank.read_text()
    assert (tmp_path / "my" / "05_softmax.py.1").read_text() == SOLUTION + "# more\n"


def test_general_hint_for_an_unrecognized_error(tmp_path, run):
    run("5")
    (tmp_path / "my" / "05_softmax.py").write_text("def softmax(x):\n    return 3 * x, lambda g: (g,)\n")
    status, output = run("5", "--hint")
    assert status == 1 and "Hint: Each output depends on every input of its row" in output


def test_command_runs_in_any_folder(tmp_path):
    output = subprocess.run(
        [sys.executable, "-m", "book"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert len(re.findall(r"^ *\d+  (?:open|started|done) ", output, re.MULTILINE)) == len(ALL)


def test_solution_chapter_and_usage_errors(tmp_path, run):
    assert run("5", "--solution") == (0, SOLUTION)
    assert "1000.31" in run("5", "--chapter")[1]
    status, output = run("14")
    assert (status, output) == (2, "python -m book: expected an exercise from 1 to 13; got 14\n")
    assert run("--hint")[0] == 2 and not (tmp_path / "my").exists()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "while True:\n        pass",
            r"It did not finish within 1 seconds.*\n.*05_softmax\.py:[23]: at `(while|pass).*`",
        ),
        (
            "import time\n    time.sleep(99)",
            r"It did not finish within 1 seconds.*\n.*05_softmax\.py:3: at `time.sleep",
        ),
        ("import os\n    os._exit(3)", r".*05_softmax\.py: the process exited with status 3"),
        (
            "import sys\n    sys.exit(4)",
            r"Not yet: it raises an exception here(?s:.*)05_softmax\.py:3:\s+SystemExit: 4",
        ),
    ],
    ids=["endless", "sleep", "exit", "sys.exit"],
)
def test_an_answer_cannot_hang_or_kill_the_command(tmp_path, monkeypatch, body, expected):
    exercise, path = write_answer(tmp_path, f"def softmax(x):\n    {body}\n")
    monkeypatch.setattr(command, "WALL_PER_CPU", 2 if "sleep" in body else 60)
    verdict = command.verdict(exercise, path, limit=1.0)
    assert not verdict["passed"] and re.match(expected, "\n".join(verdict["lines"])), verdict["lines"]


def test_missing_package_names_the_right_python(monkeypatch, tmp_path, run):
    monkeypatch.setattr(command, "REQUIRED", ("no_such_package",))
    status, output = run("5")
    assert status == 2 and output.count("\n") == 1 and not (tmp_path / "my").exists()
    assert re.search("expected the Python of this .* without no_such_package; try make exercise N=5, or .venv", output)
    assert run("5", "--solution")[0] == 0


def test_invalid_progress_file_counts_as_empty(tmp_path):
    (tmp_path / command.DONE).write_text("{broken")
    assert command.load_done(tmp_path) == {}
    (tmp_path / command.DONE).write_text(json.dumps(["list"]))
    assert command.load_done(tmp_path) == {}


def test_git_ignores_the_answers():
    assert "/my/" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_files_module_imports_only_light_modules():
    """Keep the static check of an answer fast: it runs before any process imports NumPy."""
    tree = ast.parse((BOOK / "files.py").read_text("utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= {"dataclasses", "functools", "pathlib", "typing"}
