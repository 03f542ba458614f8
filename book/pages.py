"""Check a page: Markdown whose Python blocks run in order in one namespace and whose text blocks are their output.

    ```python                        runs; a ```text block right after it is its output, compared to 3 digits
    ```python autograd/engine.py     is a quotation: these lines must be in that file, word for word

So a change to the engine breaks the test of any page that quotes it, and every number on a page is right.
`python -m book.pages book/12-panels.md` updates the text blocks of a page; review the diff.
"""

import contextlib
import difflib
import io
import re
import sys
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from book.files import ROOT

FENCE = re.compile(r"^```(?P<kind>\w*)(?: (?P<source>\S+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e[-+]?\d+)?(?![\w])")


@dataclass
class Block:
    """A fenced block: its kind (python, text, mermaid), the file it quotes, and the page line on which it begins."""

    kind: str
    source: str
    code: str
    line: int


class PageError(AssertionError):
    """Raised if a page disagrees with the code."""


class Page:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def blocks(self) -> list[Block]:
        return [
            Block(m["kind"], m["source"] or "", m["code"], self.text.count("\n", 0, m.start()) + 2)
            for m in FENCE.finditer(self.text)
        ]

    @property
    def words(self) -> int:
        """Return the number of words outside code blocks."""
        return len(FENCE.sub(" ", self.text).split())

    def where(self, block: Block) -> str:
        return f"{self.path.relative_to(ROOT)}:{block.line}"

    def check_quotations(self) -> None:
        """Raise PageError if a quotation is not in its file."""
        for block in self.blocks:
            if block.source:
                quoted(self.where(block), block.code, ROOT / block.source)

    def run(self) -> list[tuple[Block, str]]:
        """Run the Python blocks and return each with its output. Raises PageError if a block raises an exception."""
        scope: dict[str, Any] = {"__name__": self.path.stem}
        results = []
        for block in self.blocks:
            if block.kind == "python" and not block.source:
                printed = io.StringIO()
                try:
                    code = compile("\n" * (block.line - 1) + block.code, str(self.path), "exec")
                    with contextlib.redirect_stdout(printed):
                        exec(code, scope)
                except Exception as error:
                    raise PageError(f"{self.where(block)}: {type(error).__name__}: {error}") from error
                results.append((block, printed.getvalue()))
        return results

    def check_output(self) -> None:
        """Raise PageError if a block's output differs from the text block after it."""
        after = dict(zip([b.line for b in self.blocks], self.blocks[1:], strict=False))
        for block, printed in self.run():
            shown = after.get(block.line)
            expected = shown.code if shown and shown.kind == "text" else ""
            if digits(expected) != digits(printed):
                raise PageError(
                    f"{self.where(shown if expected and shown else block)}: the block at line {block.line} prints\n"
                    f"{printed}and the page shows\n{expected}try `python -m book.pages {self.path.relative_to(ROOT)}`"
                )

    def updated(self) -> str:
        """Return the page with its text blocks replaced by the current output."""
        lines = self.text.split("\n")
        after = dict(zip([b.line for b in self.blocks], self.blocks[1:], strict=False))
        for block, printed in reversed(self.run()):
            shown = after.get(block.line)
            if shown and shown.kind == "text":
                lines[shown.line - 1 : shown.line - 1 + shown.code.count("\n")] = printed.rstrip("\n").split("\n")
        return "\n".join(lines)

    def transcript(self) -> list[str]:
        """Return each Python block followed by its output."""
        lines = []
        for block, printed in self.run():
            lines += ["", *("    " + line for line in block.code.splitlines()), "", *printed.splitlines()]
        return lines[1:]


def digits(text: str) -> list[str]:
    """Split text into words, with numbers rounded to three digits."""
    return NUMBER.sub(lambda match: f"{float(match[0]):.3g}", text).split()


def quoted(where: str, code: str, source: Path) -> None:
    """Raise PageError unless these lines appear consecutively in a file, at any indentation."""
    if not source.is_file():
        raise PageError(f"{where}: quotes {source.relative_to(ROOT)}, which no longer exists")
    wanted = code.splitlines()
    lines = source.read_text(encoding="utf-8").splitlines()
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start].strip() == wanted[0].strip():
            here = lines[start : start + len(wanted)]
            if textwrap.dedent("\n".join(here)) == textwrap.dedent("\n".join(wanted)):
                return
    stripped = [line.strip() for line in lines]
    missing = [line for line in wanted if line.strip() not in stripped]
    changed = missing[0] if missing else wanted[0]
    similar = difflib.get_close_matches(changed.strip(), stripped, 1, 0.5)
    raise PageError(
        f"{where}: the page quotes {source.relative_to(ROOT)}, which has changed: "
        "update the page\n"
        f"  quoted  {changed.strip()}\n  file    {similar[0] if similar else 'nothing similar'}"
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Page(Path(name).resolve())
        page.path.write_text(page.updated(), encoding="utf-8")
