"""The pages of the book: outputs and quotations are current, and nothing is used before it is introduced."""

import ast
import re
from functools import cache

import numpy as np
import pytest

from autograd import OPERATIONS, Tensor
from autograd import operations as ops
from book import mini_engine
from book.files import BOOK, exercises
from book.pages import Page, PageError, digits, quoted
from npx import KERNELS

ALL = exercises()
for_each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
for_each_page = pytest.mark.parametrize("page", [Page(e.chapter) for e in ALL], ids=lambda page: page.path.stem)
pytestmark = pytest.mark.usefixtures("registry", "default_rematerialization")  # chapters register operations


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
