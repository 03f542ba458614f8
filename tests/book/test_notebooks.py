"""Test the notebooks of the book: the same code and prose as the chapters, and exercises that check themselves."""

import importlib.util
import json

import pytest

from book import notebooks
from book.files import Exercise, exercises
from book.pages import Page, PageError
from tests.book.test_exercises import SOLUTION

ALL = exercises()


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.name)
def test_notebook_has_the_code_and_the_prose_of_its_chapter(exercise):
    content = notebooks.notebook(exercise)
    code = [cell["source"] for cell in content["cells"] if cell["cell_type"] == "code"]
    page = Page(exercise.chapter)
    blocks = [block.code.rstrip("\n") for block in page.blocks if block.kind == "python" and not block.source]
    magic = f"%%exercise {exercise.number}\n" + exercise.blank.read_text(encoding="utf-8").rstrip("\n")
    assert sorted(code) == sorted([notebooks.SETUP, *blocks, magic])
    prose = "\n\n".join(cell["source"] for cell in content["cells"] if cell["cell_type"] == "markdown")
    command = f"python -m book {exercise.number}"
    lines = [line for line in page.text.splitlines() if line and not line.startswith(("<!--", "```", "    " + command))]
    outputs = {line for block in page.blocks for line in block.code.splitlines() if not block.source}
    assert [line for line in lines if line not in prose and line not in outputs] == []
    assert "<!--" not in prose and "```text" not in prose


def test_command_writes_a_notebook_once(tmp_path):
    path = notebooks.write(Exercise("05_softmax"), tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4 and len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    with pytest.raises(FileExistsError):
        notebooks.write(Exercise("05_softmax"), tmp_path)


def test_submitted_answer_is_checked_and_nothing_is_lost(tmp_path, capsys, monkeypatch):
    exercise, checked = Exercise("05_softmax"), []
    mine = exercise.mine(tmp_path)
    monkeypatch.setattr(notebooks, "check", lambda exercise, folder: checked.append(exercise.mine(folder).read_text()))
    notebooks.submit(exercise, exercise.blank.read_text(encoding="utf-8"), tmp_path)
    assert "unfinished" in capsys.readouterr().out and not mine.exists() and not checked
    notebooks.submit(exercise, SOLUTION, tmp_path)
    assert checked == [SOLUTION] and capsys.readouterr().out == ""
    mine.write_text("# edited outside\n")
    notebooks.submit(exercise, SOLUTION + "# again\n", tmp_path)
    assert "Backup" in capsys.readouterr().out and mine.read_text() == SOLUTION + "# again\n"
    assert (tmp_path / "05_softmax.py.1").read_text() == "# edited outside\n"
    notebooks.submit(exercise, exercise.blank.read_text(encoding="utf-8"), tmp_path)
    assert mine.read_text() == SOLUTION + "# again\n", "the blank replaced an answer"


class Shell:
    """The part of IPython that the extension needs."""

    def register_magic_function(self, function, kind, name):
        assert (kind, name) == ("cell", "exercise")
        self.magic = function

    def run_cell(self, body):
        self.body = body


def test_magic_runs_and_submits_the_cell(monkeypatch, capsys):
    calls, shell = [], Shell()
    monkeypatch.setattr(notebooks, "submit", lambda *args: calls.append(args))
    notebooks.load_ipython_extension(shell)
    shell.magic(" 5 ", "x = 1\n\n")
    assert shell.body == "x = 1\n\n" and calls == [(Exercise("05_softmax"), "x = 1\n", notebooks.MY)]
    shell.magic("five", "x = 1\n")
    assert "expected a number from 1 to 13; got five" in capsys.readouterr().out and len(calls) == 1


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("nbclient"), reason="needs nbclient (extra docs)")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("exercise", ALL[:2], ids=lambda exercise: exercise.name)
def test_notebook_runs_with_the_outputs_of_its_chapter(exercise, monkeypatch):
    content = notebooks.executed(exercise)
    exercise_cell = next(cell for cell in content["cells"] if cell["source"].startswith("%%exercise"))
    assert "unfinished" in exercise_cell["outputs"][0]["text"]
    if exercise is ALL[0]:
        monkeypatch.setattr(notebooks, "digits", lambda text: text)
        monkeypatch.setattr(notebooks, "Page", lambda path: Page(ALL[1].chapter))
        with pytest.raises(PageError, match="the notebook prints"):
            notebooks.executed(exercise)
