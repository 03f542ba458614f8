"""Tests of the README and the pages around it: sizes, code, links, and the commands and options they name."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tests import ROOT
from tests.readme_blocks import session, shell_blocks
from train.cli.main import COMMANDS, app, load_commands

README = ROOT / "README.md"
CLI = ROOT / "docs" / "cli.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGES = "npx|autograd|models|train|tests|configs|docs|benchmarks|book"


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return FENCE.sub("", text(page))


def blocks(page: Path, language: str) -> list[str]:
    return [code for kind, code in FENCE.findall(text(page)) if kind == language]


def test_readme_is_short() -> None:
    assert len(text(README).splitlines()) <= 110
    assert len(text(README).split()) <= 850


def test_readme_python_blocks_run() -> None:
    printed = []
    for code in blocks(README, "python"):  # a training loop and a gradient check
        assert len(code.splitlines()) <= 12
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
        printed.append(output.getvalue())
    assert printed[0] == "[[6 5 4 2]]\n"
    (report,) = re.findall(r"# (right: .*); \.\.\.$", text(README), re.MULTILINE)
    assert printed[1].startswith(report)


def test_readme_quotes_the_source() -> None:
    (code,) = blocks(README, "py")
    assert code in text(ROOT / "npx" / "kernels" / "softmax.py")


def test_readme_gradient_check_fails_without_its_factor() -> None:
    code = blocks(README, "python")[1]
    assert "2 * g * x" in code
    with pytest.raises(AssertionError, match="wrong gradient"):
        exec(compile(code.replace("2 * g * x", "g * x"), "README.md", "exec"), {"__name__": "__main__"})


def test_shell_blocks_stop_at_the_first_failure() -> None:
    assert len(shell_blocks(text(README))) >= 2
    assert shell_blocks("```sh\na\n```\n```text\nb\n```\n```sh\nc\nd\n```\n") == ["a\n", "c\nd\n"]
    assert session(["a\n"]).startswith("set -e\n")


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r'<a id="([^"]+)">', text(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", prose(page)):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name} links to {target}#{anchor}"
    for target in re.findall(rf"`((?:{PACKAGES})/[\w./-]+\.\w+)`", prose(page)):
        assert "NAME" in target or (ROOT / target).exists(), f"{page.name} names {target}"


def commands() -> dict[str, set[str]]:
    """Return the options of each command; commands of a group are named "group command"."""
    options = {}
    load_commands(*COMMANDS)
    for name, command in typer.main.get_command(app).commands.items():
        group = getattr(command, "commands", {})
        for full_name, member in [(name, command), *((f"{name} {sub}", member) for sub, member in group.items())]:
            options[full_name] = {option for param in member.params for option in param.opts} | {"--help"}
    return options


def command_lines(page: Path) -> Iterator[str]:
    """Yield every npx-transformer command in the page's blocks and code spans, without the program's name."""
    for kind, code in FENCE.findall(text(page)):
        for line in code.replace("\\\n", " ").splitlines():
            if "npx-transformer " in line and (kind == "sh" or line.startswith("$ ")):
                yield line.split("npx-transformer ", 1)[1]
    for span in re.findall(r"`([^`]+)`", prose(page)):
        if "npx-transformer " in span:
            yield span.split("npx-transformer ", 1)[1]


def options_in(line: str) -> set[str]:
    return set(re.findall(r"(?<!\S)--[a-z][a-z-]*", line))


def command_of(line: str, known: dict[str, set[str]]) -> str:
    """Return the command that a command line calls: its first word, or its first two words for a group."""
    words = [*shlex.split(line, comments=True), "", ""]
    return pair if (pair := f"{words[0]} {words[1]}") in known else words[0]


@pytest.mark.parametrize("page", [README, CLI], ids=lambda page: page.name)
def test_named_commands_and_options_exist(page: Path) -> None:
    known = commands()
    lines = list(command_lines(page))
    assert lines
    for line in lines:
        command = command_of(line, known)
        if command == "COMMAND":
            continue
        assert command in known or command.startswith("--"), f"{page.name}: npx-transformer {line}"
        assert options_in(line) <= known.get(command, {"--help", "--version"}), f"{page.name}: npx-transformer {line}"
    every_option = set().union(*known.values())
    for span in re.findall(r"`([^`]+)`", text(README) if page == README else ""):
        assert options_in(span) <= every_option, f"{page.name}: {span}"


def test_every_command_has_a_section_with_its_own_options() -> None:
    known = commands()
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", prose(CLI), re.MULTILINE | re.DOTALL))
    names = {name for name in known if " " not in name}
    assert names <= sections.keys()
    for name in names:
        for span in re.findall(r"`([^`]+)`", sections[name]):
            if "npx-transformer " in span:
                continue  # checked above
            command = name if span.startswith("-") else command_of(span, known)
            allowed = set().union(*(known[key] for key in known if key == command or key.startswith(f"{command} ")))
            assert options_in(span) <= allowed, f"cli.md, {name}: {span}"
