"""What the README shows works as it stands there."""

import contextlib
import io
import re
from pathlib import Path

from autograd import OPERATIONS
from book.pages import Page
from npx import KERNELS
from npx.settings import SETTINGS
from tests import house_picture

ROOT = Path(__file__).parents[1]


def test_the_ten_lines_learn_their_sentence() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Ten lines\n")[1].split("\n## ")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert float(printed.getvalue()) < 0.05


def test_links_and_files_named_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "design.md"):
        text = page.read_text(encoding="utf-8")
        linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
        named = re.findall(r"`((?:npx|autograd|models|train|tests|configs|docs)/[\w./-]+\.\w+)`", text)
        for target in linked:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        for target in named:
            assert (ROOT / target).exists(), f"{page.name} names {target}"


def test_the_picture_of_the_house_is_drawn_from_the_imports() -> None:
    shown = house_picture.place((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    assert shown == house_picture.picture(), "bring it up to date: python -m tests.house_picture"


def test_every_switch_of_the_environment_stands_in_the_table() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Switches\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    read = set()
    for folder in ("npx", "autograd", "models", "train", "benchmarks", "tests", "book"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            read |= set(re.findall(r"""environ(?:\.get\(|\[)["']((?:NPX|HYPOTHESIS|BOOK)_\w+)""", text))
            read |= set(re.findall(r"""["']((?:NPX|HYPOTHESIS|BOOK)_\w+)["'] in os\.environ""", text))
    read |= SETTINGS.keys()
    assert named == read


def test_the_page_of_additions_runs() -> None:
    page, operations, kernels = Page(ROOT / "docs" / "add.md"), dict(OPERATIONS), dict(KERNELS)
    try:
        page.check_quotations()
        page.check_output()
    finally:
        for registry, before in ((OPERATIONS, operations), (KERNELS, kernels)):
            for name in registry.keys() - before.keys():
                del registry[name]
