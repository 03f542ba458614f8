"""The book: pages say what is so, exercises accept what is right and know what is wrong, each with its own hint."""

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from functools import cache

import pytest

from autograd import OPERATIONS
from book import __main__ as command
from book.files import BOOK, ROOT, Exercise, exercises, first_problem
from book.judging import MAX_LINES, WIDTH, hint_of, judge, show
from book.pages import Page, PageError, digits, quoted
from npx import KERNELS

SEEDS = range(int(os.environ.get("BOOK_SEEDS", "20")))  # of values and gradients
KIT_EVERYWHERE = "BOOK_KIT" in os.environ  # the kit's derived inputs for each right answer: minutes
ALL = exercises()
each = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
pytestmark = pytest.mark.usefixtures("registry")  # pages and answers define operations
pages = pytest.mark.parametrize("page", [Page(e.chapter) for e in ALL], ids=lambda page: page.path.stem)


# Pages


def test_there_are_twelve_chapters_and_exercises():
    assert [e.number for e in ALL] == list(range(1, 13))
    assert sorted(BOOK.glob("[0-9]*.md")) == [e.chapter for e in ALL]
    table = (BOOK / "README.md").read_text(encoding="utf-8")
    assert all(f"| {e.number} | [{e.title}]({e.chapter.name}) |" in table for e in ALL)


@pages
def test_a_page_runs_and_shows_what_it_prints(page):
    page.check_output()


def test_a_page_is_brought_up_to_date(tmp_path, monkeypatch):
    monkeypatch.setattr("book.pages.ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text("A\n\n```python\nprint(1)\nprint(2)\n```\n\n```text\nold\n```\n\n```python\nx = 3\n```\nB\n")
    with pytest.raises(PageError, match="page.md:9: the block at line 4 prints\n1\n2\n"):
        Page(path).check_output()
    path.write_text(Page(path).updated())
    Page(path).check_output()
    assert path.read_text().count("```") == 6 and "old" not in path.read_text()


@pages
def test_a_page_quotes_what_stands_in_the_files(page):
    page.check_quotations()
    assert any(block.source for block in page.blocks), "the real file is nowhere to be seen"


@pages
def test_a_page_is_short_and_has_its_parts(page):
    assert page.words <= 1500
    number = int(page.path.stem[:2])
    exercise = f"## The exercise\n\n    python -m book {number}\n"
    for part in ("guess|Guess|Which|which|How many", "sibling|One of your own", exercise, "## In the real file"):
        assert re.search(part, page.text), f"{page.path.name} has no {part!r}"
    assert max(map(len, page.text.splitlines())) <= 126


def test_a_change_of_a_quoted_file_names_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr("book.pages.ROOT", tmp_path)
    source = tmp_path / "engine.py"
    source.write_text("def f(x):\n    if x:\n        return 1\n")
    quoted("03-order.md:7", "if x:\n    return 1\n", source)
    source.write_text("def f(x):\n    if x:\n        return 2\n")
    with pytest.raises(PageError, match="(?s)03-order.md:7: the page quotes .*bring the page up to date.*1.*return 2"):
        quoted("03-order.md:7", "if x:\n    return 1\n", source)


def test_output_is_compared_to_three_digits():
    assert digits("x 0.33333 [1.0, 2]") == digits("x 0.33349 [1.00000, 2]") != digits("x 0.335 [1.0, 2]")
    assert digits("-inf  4") == digits("-inf 4") != digits("inf 4")


@cache
def normal(text):
    """Text without what does not count, to look for statements in."""
    return re.sub(r"\s+|#.*", "", text)


def statements(path, least=30):
    """The lines of a file's functions that are long enough to be theirs alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Assign, ast.Return, ast.AugAssign)):
            line = normal(ast.unparse(node))
            if len(line) >= least:
                yield line


@each
def test_no_chapter_has_a_solution(exercise):
    said = {e.chapter.name: normal("".join(b.code for b in Page(e.chapter).blocks)) for e in ALL}
    for line in statements(exercise.solution):
        assert not [name for name, text in said.items() if line in text], line


def ours(tree):
    """The names of our packages that code uses: what it imports, and what it takes from an import by a dot."""
    tops, found = {"npx", "autograd", "models", "train"}, set()
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in tops:
            found |= {alias.name for alias in node.names}
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name in tops}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found.add(node.attr)
        if isinstance(node, ast.Attribute) and node.attr in ("backward", "zero_grad"):
            found.add(node.attr)
    return found


def test_nothing_is_used_before_the_chapter_that_introduces_it():
    """Operations and kernels, and the names that a page lists as its own."""
    introduced, listed = set(), {}
    for exercise in ALL:
        page = Page(exercise.chapter)
        (names,) = re.findall(r"<!-- introduces: (.*?) ?-->", page.text)
        for name in filter(None, names.split(", ")):
            assert name.split(".")[-1] in page.text.replace(f"introduces: {names}", ""), f"{page.path.name}: {name}"
            listed.setdefault(name, exercise.number)
    watched = {*OPERATIONS, *KERNELS, *listed} - {"sum", "max", "min", "exp", "log", "sqrt"}
    for exercise in ALL:
        introduced |= {name for name, number in listed.items() if number <= exercise.number}
        code = [b.code for b in Page(exercise.chapter).blocks if b.kind == "python" and not b.source]
        for text in ["\n".join(code), exercise.blank.read_text("utf-8"), exercise.solution.read_text("utf-8")]:
            early = (ours(ast.parse(text)) & watched) - introduced
            assert not early, f"{exercise.name} uses {early}"


# Exercises


@each
def test_right_answers_pass(exercise):
    right = [exercise.solution, *exercise.others("also_right")]
    assert len(right) >= 3
    for path in right:
        verdict = judge(exercise, path, SEEDS, derive=KIT_EVERYWHERE or path == exercise.solution)
        assert verdict.passed, "\n".join([str(path), *verdict.lines])


@each
def test_the_blank_is_not_done_yet(exercise):
    start = time.process_time()
    line = exercise.blank.read_text("utf-8").splitlines().index(
        next(x for x in exercise.blank.read_text("utf-8").splitlines() if "# yours" in x)
    )  # fmt: skip
    verdict = judge(exercise, exercise.blank)
    assert not verdict.passed and len(verdict.lines) == 1
    assert f"blank.py:{line + 1}: not done yet: " in verdict.lines[0]
    assert time.process_time() - start < 1
    assert exercise.blank.read_text("utf-8").count("\n") <= 40


def head(path):
    """What a blank and its solution share: docstrings, imports, signatures, constants."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.append((node.name, ast.unparse(node.args), ast.get_docstring(node)))
        else:
            found.append(ast.unparse(node))
    return found


@each
def test_blank_and_solution_have_the_same_signatures_and_docstrings(exercise):
    assert head(exercise.blank) == head(exercise.solution)
    assert "#" in exercise.solution.read_text("utf-8"), "a solution without a comment"


@cache
def wrong_verdict(exercise, path):
    return judge(exercise, path)


@each
def test_wrong_answers_fail_each_with_its_own_hint(exercise):
    wrong = exercise.others("wrong")
    assert len(wrong) >= 3
    hints = [hint_of(path) for path in wrong]
    assert len(set(hints)) == len(hints) and all(20 < len(hint) < 125 for hint in hints)
    for path in wrong:
        verdict = wrong_verdict(exercise, path)
        assert not verdict.passed, path
        assert verdict.hint == path.stem, "\n".join([str(path), *verdict.lines])
        text = "\n".join(verdict.lines)
        assert hint_of(path)[:60] in text.replace("\n", " ")
        assert len(verdict.lines) <= MAX_LINES - 2 and max(map(len, verdict.lines)) <= WIDTH  # 2: what it prints
        assert "Traceback" not in text and "judging.py" not in text and "exercise.py" not in text


def test_the_input_shown_has_four_numbers_at_most_in_most_cases():
    shown = [wrong_verdict(e, path).numbers for e in ALL for path in e.others("wrong")]
    assert len(shown) >= 36 and sum(n <= 4 for n in shown) >= 0.8 * len(shown)


@each
def test_wrong_answers_fail_on_other_seeds(exercise):
    for path in exercise.others("wrong"):
        assert not judge(exercise, path, range(7, 8), derive=False).passed, path


NEAR = {  # answers that a reader wrote, which are no file of `wrong/`: the hint that is true of them, or none
    "-inf minus -inf, and -inf given back": (
        "12_panels", "nothing_minus_nothing",
        """
        peak, total = -np.inf, 0.0
        for x in panels:
            higher = np.maximum(peak, x.max(axis=1))
            total = total * np.exp(peak - higher) + np.exp(x - higher[:, None]).sum(axis=1)
            peak = higher
        return np.where(peak == -np.inf, -np.inf, np.log(total) + peak)
        """,
    ),
    "panels joined by logaddexp": (
        "12_panels", "",
        """
        total = -np.inf
        for x in panels:
            peak = x.max(axis=1)
            total = np.logaddexp(total, np.log(np.exp(x - peak[:, None]).sum(axis=1)) + peak)
        return total
        """,
    ),
    "a row of equal numbers": ("04_checking", "equal_rows", "return [(np.array([[4.0, 4.0]]), np.array([3.0]))]"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_a_hint_is_given_only_where_it_is_true(tmp_path, name):
    folder, hint, body = NEAR[name]
    blank = Exercise(folder).blank.read_text("utf-8")
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    exercise, path = written(tmp_path, re.sub(r"    .*# yours", lambda _: body, blank), folder)
    verdict = judge(exercise, path)
    assert not verdict.passed and verdict.hint == hint, "\n".join(verdict.lines)


# Mistakes of another kind


def written(tmp_path, text, name="05_softmax"):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return Exercise(name), path


SOLUTION = Exercise("05_softmax").solution.read_text("utf-8")
MESSAGES = {
    "a syntax error": ("def softmax(x:\n    return x\n", r"05_softmax\.py:1: Python cannot read this: .*"),
    "nothing": ("", r"05_softmax\.py: expected def softmax\(x\); found no softmax"),
    "another signature": ("def softmax():\n    return 1\n", r"05_softmax\.py:1: expected def softmax\(x\); found .*"),
    "torch": ("import torch\n" + SOLUTION, r"05_softmax\.py:1: expected only numpy.*; found torch"),
    "ours": ("from npx import softmax\n", r"05_softmax\.py:1: expected only numpy.*; found npx"),
    "a raise": (
        SOLUTION.replace("    e = ", "    raise ValueError('not today')\n    e = "),
        r"Not yet: it cannot do this\.\n\n  softmax.*\n  .*05_softmax\.py:12: ValueError: not today",
    ),
    "shapes that do not fit": (
        SOLUTION.replace("    e = ", "    np.ones((2, 3)) @ np.ones((2, 3))\n    e = "),
        r"(?s)Not yet: it cannot do this\..*05_softmax\.py:12: ValueError: .*\(size 2 is\s+different from 3\)$",
    ),
    "a raise at the top": ("raise ValueError('no')\n" + SOLUTION, r"It does not load.*05_softmax\.py:1: .*: no"),
    "None": ("def softmax(x):\n    pass\n", r"(?s).*expected softmax to return two things.*; got None"),
    "one thing": ("def softmax(x):\n    return x\n", r"(?s).*its vjp; got an array of shape \(2,\)"),
    "a file that is no text": (None, r"05_softmax\.py: expected a text file in UTF-8; .*"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_other_mistakes_give_one_plain_message(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    text, expected = MESSAGES[name]
    exercise, path = written(tmp_path, text or "")
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
def test_three_dots_are_a_blank_only_where_something_is_to_be_written(tmp_path, line, blank):
    exercise, path = written(tmp_path, f"def softmax(x):\n    {line}\n")
    assert (first_problem(exercise, path) is not None) == blank


def test_numbers_that_agree_in_six_digits_are_shown_with_more():
    assert show(2e6) == show(2000000.1) and show(2e6, 13) != show(2000000.1, 13)


# The command


@pytest.fixture
def run(tmp_path, capsys):
    """The command in this process; an answer is still checked in one of its own."""

    def run(*words):
        try:
            status = command.main([*words, "--folder", str(tmp_path / "my")])
        except SystemExit as exit:
            status = exit.code
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def test_a_learners_way_through_an_exercise(tmp_path, run):
    mine = tmp_path / "my" / "05_softmax.py"
    assert " 5  open " in run()[1]
    status, said = run("5")
    assert status == 0 and str(mine) in said and "05-softmax.md" in said
    assert mine.read_text() == Exercise("05_softmax").blank.read_text()
    status, said = run("5")
    assert status == 1 and "not done yet" in said and len(said.splitlines()) == 1

    wrong = next(p for p in Exercise("05_softmax").others("wrong") if p.stem == "diagonal")
    mine.write_text('print("hello")\n' + wrong.read_text().split('"""', 2)[2])
    status, said = run("5", "--hint")
    assert status == 1 and "each output's slope by its own input alone" in said.replace("\n", " ")
    assert "yours" in said and "'hello'" in said and len(said.splitlines()) <= MAX_LINES

    mine.write_text(SOLUTION)
    status, said = run("5")
    assert status == 0 and "05_softmax: right." in said and "npx/kernels/softmax.py" in said
    assert " 5  done " in run()[1]
    mine.write_text(SOLUTION + "# more\n")
    assert " 5  begun" in run()[1]

    run("5", "--reset")
    assert mine.read_text() == Exercise("05_softmax").blank.read_text()
    assert (tmp_path / "my" / "05_softmax.py.1").read_text() == SOLUTION + "# more\n"


def test_a_hint_where_no_mistake_is_recognised(tmp_path, run):
    run("5")
    (tmp_path / "my" / "05_softmax.py").write_text("def softmax(x):\n    return 3 * x, lambda g: (g,)\n")
    status, said = run("5", "--hint")
    assert status == 1 and "Hint: Each output depends on every input of its row" in said


def test_the_command_runs_from_another_folder(tmp_path):
    said = subprocess.run(
        [sys.executable, "-m", "book"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert len(re.findall(r"^ *\d+  (?:open|begun|done) ", said, re.MULTILINE)) == 12


def test_solution_chapter_and_bad_use(tmp_path, run):
    assert run("5", "--solution") == (0, SOLUTION)
    assert "1000.31" in run("5", "--chapter")[1]
    status, said = run("13")
    assert (status, said) == (2, "python -m book: expected an exercise from 1 to 12; got 13\n")
    assert run("--hint")[0] == 2 and not (tmp_path / "my").exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True:\n        pass", r"It did not end within 1 seconds.*\n.*05_softmax\.py:[23]: at `(while|pass).*`"),
        ("import time\n    time.sleep(99)", r"It did not end within 1 seconds.*\n.*05_softmax\.py:3: at `time.sleep"),
        ("import os\n    os._exit(3)", r".*05_softmax\.py: it ended its own process, with status 3"),
        ("import sys\n    sys.exit(4)", r"Not yet: it cannot do this(?s:.*)05_softmax\.py:3:\s+SystemExit: 4"),
    ],
    ids=["endless", "asleep", "exit", "sys.exit"],
)
def test_what_a_file_does_to_its_process_harms_nothing(tmp_path, monkeypatch, body, said):
    exercise, path = written(tmp_path, f"def softmax(x):\n    {body}\n")
    monkeypatch.setattr(command, "PATIENCE", 2 if "sleep" in body else 60)
    found = command.verdict(exercise, path, limit=1.0)
    assert not found["passed"] and re.match(said, "\n".join(found["lines"])), found["lines"]


def test_a_python_without_our_packages_is_told_which_to_take(monkeypatch, tmp_path, run):
    monkeypatch.setattr(command, "NEEDED", ("no_such_package",))
    status, said = run("5")
    assert status == 2 and said.count("\n") == 1 and not (tmp_path / "my").exists()
    assert re.search("expected the Python of this .* has no no_such_package; try make exercise N=5, or .venv", said)
    assert run("5", "--solution")[0] == 0


def test_done_survives_a_broken_mark(tmp_path):
    (tmp_path / command.DONE).write_text("{broken")
    assert command.done(tmp_path) == {}
    (tmp_path / command.DONE).write_text(json.dumps(["list"]))
    assert command.done(tmp_path) == {}


def test_the_learners_folder_is_ignored_by_git():
    assert "/my/" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_files_starts_at_once():
    """The command reads a file before it starts a process with NumPy in it."""
    light = ast.parse((BOOK / "files.py").read_text("utf-8"))
    modules = {node.module for node in ast.walk(light) if isinstance(node, ast.ImportFrom)}
    assert modules <= {"dataclasses", "functools", "pathlib"}
