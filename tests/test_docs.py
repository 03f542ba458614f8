"""The pages of docs/ agree with the code."""

import re
import runpy

import pytest
import setuptools

from autograd import OPERATIONS, AnomalyError, GradientError
from book.pages import Page
from npx import KERNELS
from npx.settings import SETTINGS
from tests import ROOT, configuration_page, import_diagram
from tests.configuration_page import MEANINGS, OTHERS

PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def test_the_configuration_page_is_current() -> None:
    text = configuration_page.PAGE.read_text(encoding="utf-8")
    assert text == configuration_page.page(), "run python -m tests.configuration_page --write"


def test_every_environment_variable_is_documented() -> None:
    used = set(SETTINGS)
    for folder in ("npx", "autograd", "models", "train", "benchmarks", "tests", "book"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            used |= set(re.findall(r"""environ(?:\.get\(|\[)["']((?:NPX|HYPOTHESIS|BOOK)_\w+)""", text))
            used |= set(re.findall(r"""["']((?:NPX|HYPOTHESIS|BOOK)_\w+)["'] in os\.environ""", text))
    assert set(MEANINGS) == used == SETTINGS.keys() | OTHERS.keys()


def test_every_extra_is_documented_and_named_extras_exist(monkeypatch) -> None:
    extras: dict[str, list[str]] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: extras.update(keywords["extras_require"]))
    runpy.run_path(str(ROOT / "setup.py"))
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page[page.index("| extra | needed for |") :].partition("\n\n")[0]
    assert {*re.findall(r"`([\w-]+)`", table)} >= extras.keys() > set()
    for folder in ("npx", "autograd", "models", "train"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            named = {*re.findall(r"""pip_install\(['"]([\w-]+)['"]\)""", text)}
            assert named <= extras.keys() and not re.search(r"pip install.*npx-transformer\[\w", text), path


def test_the_diagram_matches_the_imports() -> None:
    shown = import_diagram.DIAGRAM.findall(import_diagram.PAGE.read_text(encoding="utf-8"))
    assert shown == [import_diagram.diagram()], "run python -m tests.import_diagram --write"


def test_the_arrows_of_the_diagram_imply_every_import() -> None:
    graph = import_diagram.imported_boxes()
    drawn: dict[str, set[str]] = {name: set() for name in graph}
    for name, target in import_diagram.arrows(graph):
        drawn[name].add(target)
    assert all(import_diagram.reachable(drawn, name) == import_diagram.reachable(graph, name) for name in graph)


def test_an_arrow_that_others_imply_is_left_out() -> None:
    assert import_diagram.arrows({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {("a", "b"), ("b", "c")}
    cycle = {"a": {"b", "c"}, "b": {"a", "c"}, "c": set()}
    assert import_diagram.arrows(cycle) == {("a", "b"), ("b", "a"), ("a", "c"), ("b", "c")}


@pytest.fixture
def registries():
    """Remove the operations and kernels that a test registers from the registries."""
    before = {id(registry): set(registry) for registry in (OPERATIONS, KERNELS)}
    yield
    for registry in (OPERATIONS, KERNELS):
        for name in registry.keys() - before[id(registry)]:
            del registry[name]


def test_the_examples_of_additions_run(registries) -> None:
    page = Page(ROOT / "docs" / "extending.md")
    page.check_quotations()
    page.check_output()


def test_the_examples_of_the_faq_report_their_bugs(registries) -> None:
    blocks = [block.code for block in Page(ROOT / "docs" / "faq.md").blocks if block.kind == "python"]
    (wrong_gradient,) = [code for code in blocks if "check_operation" in code]
    (not_finite,) = [code for code in blocks if "anomaly" in code]
    with pytest.raises(GradientError, match="wrong gradient of input 0"):
        exec(wrong_gradient + "\ntest_square()", {"__name__": "faq"})
    with pytest.raises(AnomalyError, match="log"):
        exec(not_finite, {"__name__": "faq"})


MARKDOWN = [path for folder in (".", "docs", "book", "benchmarks") for path in sorted((ROOT / folder).glob("*.md"))]


def lists_within_paragraphs(text: str) -> list[str]:
    """Return the lines that interrupt a paragraph because they start like a list item.

    CommonMark, and thus GitHub, starts a list at a bullet or at the number 1. Python-Markdown does not.
    """
    lines = FENCE.sub("", text).splitlines()
    item, paragraph = re.compile(r" {0,3}([-+*]|1[.)]) "), re.compile(r"(?! {0,3}([-+*]|\d+[.)]) )[^\s|#<>]")
    return [
        line for line, before in zip(lines[1:], lines, strict=False) if item.match(line) and paragraph.match(before)
    ]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.name)
def test_no_wrapped_line_starts_like_a_list_item(page) -> None:
    assert lists_within_paragraphs(page.read_text(encoding="utf-8")) == []


def test_lists_within_paragraphs_are_recognized() -> None:
    assert lists_within_paragraphs("the initial value of\n1. For\n") == ["1. For"]
    assert lists_within_paragraphs("a sum\n- b\n") == ["- b"]
    assert lists_within_paragraphs("A list:\n\n- one\n- two\n1. of\n") == []
    assert lists_within_paragraphs("the year\n1999. And -1 or\n-1 is no item\n") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page) -> None:
    folders = "npx|autograd|models|train|tests|configs|docs|book|benchmarks"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
