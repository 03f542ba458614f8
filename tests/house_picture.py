"""The picture of the house in the README, drawn from the imports: `python -m tests.house_picture` writes it there.

A box is a folder, an arrow leads from what is used to what uses it; one that goes without saying (a way of several
arrows) is left out. What `__init__` and `__main__` files import is not looked at: they collect names for users.
"""

import re
from pathlib import Path

from tests.test_imports import FILES, PACKAGES, ROOT, files_imported

LABELS = {  # what each folder is for, in a few words
    "npx": "arrays, kernels, cores, GPU",
    "autograd": "the engine, operations",
    "autograd/testing": "the gradient kit",
    "models": "modules, parameters, configurations",
    "models/layers": "attention, norms, positions",
    "models/architectures": "Transformer, decoder, parser",
    "models/search": "greedy, beam, sampling",
    "train": "errors",
    "train/text": "tokenizers, batches",
    "train/scores": "BLEU, brackets",
    "train/tasks": "translation, language, parsing",
    "train/run": "a run on disk",
    "train/learn": "Adam, updates, the loop",
    "train/formats": "other frameworks' files",
    "train/show": "pictures",
    "train/experiments": "the paper's figures",
    "train/cli": "commands",
}
COLLECTIONS = ("__init__.py", "__main__.py")  # they stand above the files whose names they collect, in one folder
ONE_BOX = ("npx", "autograd/testing")  # with all that lies below


def box(path: Path) -> str:
    """The folder that a file is drawn in."""
    folder = path.parent.relative_to(ROOT).as_posix()
    return next((name for name in ONE_BOX if folder == name or folder.startswith(name + "/")), folder)


def uses() -> dict[str, set[str]]:
    """Box -> the boxes whose files it imports."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        mine = found.setdefault(box(path), set())
        if path.name not in COLLECTIONS:
            mine |= {box(other) for other in files_imported(path)} - {box(path)}
    return found


def below(graph: dict[str, set[str]], name: str) -> set[str]:
    """All that a box uses, also through others."""
    found, waiting = set(), [*graph[name]]
    while waiting:
        here = waiting.pop()
        if here not in found:
            found.add(here)
            waiting += graph[here]
    return found


def picture() -> str:
    """The house as a mermaid flowchart."""
    graph = uses()
    reached = {name: below(graph, name) for name in graph}
    lines = ["flowchart BT"]
    for package in PACKAGES:
        lines.append(f"    subgraph {package}_[{package}]")
        for name in sorted(graph):
            if name.split("/")[0] == package:
                lines.append(f'        {name.replace("/", "_")}["{name}<br/>{LABELS[name]}"]')
        lines.append("    end")
    for name in sorted(graph):
        for used in sorted(graph[name]):
            if not any(used in reached[other] for other in graph[name] - {used}):
                lines.append(f"    {used.replace('/', '_')} --> {name.replace('/', '_')}")
    return "\n".join(lines) + "\n"


def place(readme: str) -> re.Match[str]:
    """Where the picture stands in the README."""
    found = re.search(r"(?<=```mermaid\n)flowchart BT\n.*?(?=```)", readme, re.DOTALL)
    assert found, "the README has no picture of the house"
    return found


if __name__ == "__main__":
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    here = place(text)
    page.write_text(text[: here.start()] + picture() + text[here.end() :], encoding="utf-8")
