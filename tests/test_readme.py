"""What the README shows works as it stands there."""

import contextlib
import io
import re
from pathlib import Path

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
