"""The diagram in docs/architecture.md, drawn from the imports: `python -m tests.import_diagram --write`.

A box is a folder. An arrow leads from a folder to one that imports it; arrows that follow from others are left out
(transitive reduction). Imports in `__init__` and `__main__` files are ignored: they only collect names for users.
"""

import re
import sys
from pathlib import Path

from tests.test_imports import FILES, PACKAGES, ROOT, imported_files

PAGE = ROOT / "docs" / "architecture.md"
DIAGRAM = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)
COMPACT = '%%{init: {"flowchart": {"nodeSpacing": 8, "rankSpacing": 30, "padding": 5}}}%%'  # so the text stays legible
LABELS = {
    "npx": "arrays, kernels, CUDA, processes",
    "autograd": "engine, operations",
    "autograd/draw": "graphs as SVG",
    "autograd/testing": "gradient checker",
    "models": "modules, parameters, configuration",
    "models/layers": "attention, norms, positions",
    "models/architectures": "Transformer, decoder, encoder",
    "models/search": "greedy, beam, sampling",
    "train": "errors, files, progress",
    "train/text": "tokenizers, batches",
    "train/text/download": "corpora",
    "train/metrics": "BLEU, brackets",
    "train/tasks": "translation, language",
    "train/tasks/parsing": "constituency trees",
    "train/run": "a run on disk",
    "train/learn": "Adam, updates, the loop",
    "train/learn/parallel": "gradient reduction",
    "train/formats": "other checkpoints",
    "train/viewer": "pictures, the page",
    "train/experiments": "the paper's tables",
    "train/cli": "commands",
}
COLLECTIONS = ("__init__.py", "__main__.py")
ONE_BOX = ("npx", "autograd/testing")  # folders drawn together with their subfolders


def box(path: Path) -> str:
    """Return the folder that a file is drawn in."""
    folder = path.parent.relative_to(ROOT).as_posix()
    return next((name for name in ONE_BOX if folder == name or folder.startswith(name + "/")), folder)


def imported_boxes() -> dict[str, set[str]]:
    """Return box -> the boxes whose files it imports."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        targets = graph.setdefault(box(path), set())
        if path.name not in COLLECTIONS:
            targets |= {box(target) for target in imported_files(path)} - {box(path)}
    return graph


def reachable(graph: dict[str, set[str]], name: str) -> set[str]:
    """Return all boxes that a box imports, directly or through others."""
    result: set[str] = set()
    pending = [*graph[name]]
    while pending:
        target = pending.pop()
        if target not in result:
            result.add(target)
            pending += graph[target]
    return result


def arrows(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Return the pairs (box, imported box) that do not follow from others.

    A pair is left out if a path leads through a third box. A third box in a cycle with one of the two does not count,
    because the return path would leave out its own pair too.
    """
    closure = {name: reachable(graph, name) for name in graph}
    mutual = {name: {other for other in closure[name] if name in closure[other]} | {name} for name in graph}
    return {
        (name, target)
        for name, targets in graph.items()
        for target in targets
        if not any(target in closure[other] for other in closure[name] - mutual[name] - mutual[target])
    }


def diagram() -> str:
    """Return the Mermaid flowchart."""
    graph = imported_boxes()
    lines = [COMPACT, "flowchart BT"]
    for package in PACKAGES:
        lines.append(f"    subgraph {package}_[{package}]")
        for name in sorted(graph):
            if name.split("/")[0] == package:
                label = f"<br/>{LABELS[name]}" if name in LABELS else ""
                lines.append(f'        {name.replace("/", "_")}["{name}{label}"]')
        lines.append("    end")
    for name, target in sorted(arrows(graph)):
        lines.append(f"    {target.replace('/', '_')} --> {name.replace('/', '_')}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(DIAGRAM.sub(lambda _: diagram(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(diagram())
