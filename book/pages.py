"""A chapter: Markdown whose Python blocks run in order in one namespace and whose text blocks are what they print.

    ```python                        runs; a ```text block right after it is what it has to print, numbers to 3 digits
    ```python autograd/engine.py     is not run: it stands so, word for word, in that file

So a change of the engine fails the page that quotes it, and a page that shows a number shows the right one.
`python -m book.pages book/12-panels.md` writes into the text blocks of a page what it prints now: read the difference.
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
    """A fenced block: its kind (python, text, mermaid), the file it quotes, its first line in the page."""

    kind: str
    source: str
    code: str
    line: int


class PageError(AssertionError):
    """A page does not say what is so."""


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
        """Of the text, without code."""
        return len(FENCE.sub(" ", self.text).split())

    def where(self, block: Block) -> str:
        return f"{self.path.relative_to(ROOT)}:{block.line}"

    def check_quotations(self) -> None:
        """Raise PageError for a block that is not in the file it names."""
        for block in self.blocks:
            if block.source:
                quoted(self.where(block), block.code, ROOT / block.source)

    def run(self) -> list[tuple[Block, str]]:
        """The blocks that run, and what each prints. PageError for one that raises."""
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
        """Raise PageError for a block that does not print what the text block after it shows."""
        after = dict(zip([b.line for b in self.blocks], self.blocks[1:], strict=False))
        for block, printed in self.run():
            shown = after.get(block.line)
            expected = shown.code if shown and shown.kind == "text" else ""
            if digits(expected) != digits(printed):
                raise PageError(
                    f"{self.where(shown if expected and shown else block)}: the block at line {block.line} prints\n"
                    f"{printed}and the page shows\n{expected}(python -m book.pages {self.path.relative_to(ROOT)})"
                )

    def filled(self) -> str:
        """Its text, with what its blocks print now in the text blocks after them."""
        lines = self.text.split("\n")
        after = dict(zip([b.line for b in self.blocks], self.blocks[1:], strict=False))
        for block, printed in reversed(self.run()):
            shown = after.get(block.line)
            if shown and shown.kind == "text":
                lines[shown.line - 1 : shown.line - 1 + shown.code.count("\n")] = printed.rstrip("\n").split("\n")
        return "\n".join(lines)

    def told(self) -> list[str]:
        """Each block that runs, with what it prints."""
        lines = []
        for block, printed in self.run():
            lines += ["", *("    " + line for line in block.code.splitlines()), "", *printed.splitlines()]
        return lines[1:]


def digits(text: str) -> list[str]:
    """Words, of which numbers count to three digits."""
    return NUMBER.sub(lambda found: f"{float(found[0]):.3g}", text).split()


def quoted(where: str, code: str, source: Path) -> None:
    """Raise PageError unless these lines stand in a file, together, indented as they may be."""
    if not source.is_file():
        raise PageError(f"{where}: quotes {source.relative_to(ROOT)}, which is not there any more")
    wanted = code.splitlines()
    lines = source.read_text(encoding="utf-8").splitlines()
    for start in range(len(lines) - len(wanted) + 1):
        if lines[start].strip() == wanted[0].strip():
            here = lines[start : start + len(wanted)]
            if textwrap.dedent("\n".join(here)) == textwrap.dedent("\n".join(wanted)):
                return
    stripped = [line.strip() for line in lines]
    lost = [line for line in wanted if line.strip() not in stripped]
    changed = lost[0] if lost else wanted[0]
    now = difflib.get_close_matches(changed.strip(), stripped, 1, 0.5)
    raise PageError(
        f"{where}: the page quotes {source.relative_to(ROOT)}, which now says something else: "
        "bring the page up to date\n"
        f"  quoted  {changed.strip()}\n  there   {now[0] if now else 'nothing like it'}"
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Page(Path(name).resolve())
        page.path.write_text(page.filled(), encoding="utf-8")
