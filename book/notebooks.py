"""Convert chapters to Jupyter notebooks, in which one cell contains the exercise and checks the answer.

`python -m book 5 --notebook` writes one; `make docs` executes all of them and puts them on the site. A notebook needs a
clone of this repository. Its first cell finds the clone and loads this module as an IPython extension. The cell magic
`%%exercise 5` defines the functions of its cell, saves the cell in `my/`, and checks it as `python -m book 5` does.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from book.__main__ import check, say
from book.files import MY, ROOT, Exercise, exercises, shown
from book.pages import FENCE, Page, PageError, digits

SETUP = """\
# Run this notebook in a clone of the repository.
import sys
from pathlib import Path

here = Path.cwd().resolve()
root = next((folder for folder in (here, *here.parents) if (folder / "book" / "notebooks.py").exists()), None)
assert root, f"expected a folder inside a clone of the repository; got {here}"
sys.path.insert(0, str(root))
%load_ext book.notebooks"""


def notebook(exercise: Exercise) -> dict[str, Any]:
    """Return a chapter as a notebook (format 4.5) without outputs."""
    cells = [cell("code", SETUP)]
    text, end, follows_code = exercise.chapter.read_text(encoding="utf-8"), 0, False
    for fence in FENCE.finditer(text):
        before = text[end : fence.start()]
        is_code = fence["kind"] == "python" and not fence["source"]
        is_output = fence["kind"] == "text" and follows_code and not before.strip()
        cells += prose(exercise, before)
        if is_code:
            cells.append(cell("code", fence["code"].rstrip("\n")))
        elif not is_output:  # execution creates the outputs
            cells.append(cell("markdown", fence[0].replace(f"```python {fence['source']}", "```python")))
        end, follows_code = fence.end(), is_code
    cells += prose(exercise, text[end:])
    for number, each in enumerate(cells):
        each["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def cell(kind: str, source: str) -> dict[str, Any]:
    outputs: dict[str, Any] = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": source, **outputs}


def prose(exercise: Exercise, text: str) -> list[dict[str, Any]]:
    """Return the cells of a piece of text; the command that starts the exercise becomes a cell with its blank."""
    text = re.sub(r"<!--.*?-->\n*", "", text, flags=re.DOTALL)
    command = f"    python -m book {exercise.number}\n"
    before, found, after = text.partition(command)
    cells = [cell("markdown", before.strip())] if before.strip() else []
    if found:
        blank = exercise.blank.read_text(encoding="utf-8").rstrip("\n")
        after = "Fill in the cell above and run it: it is saved in `my/` and checked.\n\n" + after.strip()
        cells += [cell("code", f"%%exercise {exercise.number}\n{blank}"), cell("markdown", after)]
    return cells


def executed(exercise: Exercise) -> dict[str, Any]:
    """Return a chapter as a notebook with its outputs. Raises PageError if these outputs differ from the chapter's."""
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    content = nbformat.from_dict(notebook(exercise))
    # Another process may take a TCP port after it is chosen and before it is bound.
    transport = "tcp" if os.name == "nt" else "ipc"
    options = Config({"KernelManager": {"transport": transport}})
    NotebookClient(content, timeout=300, resources={"metadata": {"path": str(ROOT)}}, config=options).execute()
    printed = "".join(
        output["text"]
        for each in content.cells
        if each.cell_type == "code" and not each.source.startswith("%%exercise")
        for output in each.outputs
        if output.output_type == "stream" and output.name == "stdout"
    )
    expected = "".join(block.code for block in Page(exercise.chapter).blocks if block.kind == "text")
    if digits(printed) != digits(expected):
        raise PageError(f"{shown(exercise.chapter)}: the notebook prints\n{printed}and the page shows\n{expected}")
    return dict(content)


def write(exercise: Exercise, folder: Path) -> Path:
    """Write a chapter's notebook to a folder and return its path. Raises FileExistsError if the file exists."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{exercise.name}.ipynb"
    with path.open("x", encoding="utf-8") as file:
        json.dump(notebook(exercise), file, indent=1, ensure_ascii=False)
    return path


def submit(exercise: Exercise, answer: str, folder: Path) -> None:
    """Save an answer as the learner's file and check it. A file with other content is renamed first."""
    mine, blank = exercise.mine(folder), exercise.blank.read_text(encoding="utf-8")
    if answer == blank:
        say(f"{exercise.name}: unfinished: replace each `...`")
        return
    if mine.exists() and mine.read_text(encoding="utf-8") not in (answer, blank, submitted.get(mine)):
        say(f"Backup  {shown(exercise.reset(folder) or mine)}")
    folder.mkdir(parents=True, exist_ok=True)
    mine.write_text(answer, encoding="utf-8")
    submitted[mine] = answer
    check(exercise, folder)


submitted: dict[Path, str] = {}  # maps a learner's file to the text that this kernel wrote there


def load_ipython_extension(shell: Any) -> None:
    """Register the cell magic `%%exercise NUMBER`."""

    def exercise_magic(line: str, body: str) -> None:
        by_number = {str(exercise.number): exercise for exercise in exercises()}
        if line.strip() not in by_number:
            say(f"%%exercise: expected a number from 1 to {len(by_number)}; got {line.strip() or 'no number'}")
            return
        shell.run_cell(body)
        submit(by_number[line.strip()], body.rstrip("\n") + "\n", MY)

    shell.register_magic_function(exercise_magic, "cell", "exercise")
