"""The command of the book, `python -m book`: from a blank file to a correct answer, and answers that hang."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest

from book import __main__ as command
from book.files import BOOK, ROOT, Exercise, exercises
from book.judging import MAX_LINES
from tests.book.test_exercises import SOLUTION, write_answer

ALL = exercises()
pytestmark = pytest.mark.usefixtures("registry", "default_rematerialization")  # answers register operations


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command in this process; answers are still checked in a separate one."""

    def run(*words):
        try:
            status = command.main([*words, "--folder", str(tmp_path / "my")])
        except SystemExit as exit:
            status = exit.code
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def test_a_learner_starts_fails_passes_and_resets(tmp_path, run):
    mine = tmp_path / "my" / "05_softmax.py"
    assert " 5  open " in run()[1]
    status, output = run("5")
    assert status == 0 and str(mine) in output and "05-softmax.md" in output
    assert mine.read_text() == Exercise("05_softmax").blank.read_text()
    status, output = run("5")
    assert status == 1 and "unfinished" in output and len(output.splitlines()) == 1

    wrong = next(wrong for wrong in Exercise("05_softmax").wrong_answers if wrong.name == "diagonal_only")
    mine.write_text('print("hello")\n' + wrong.source)
    status, output = run("5", "--hint")
    assert status == 1 and "each output's derivative with respect to its own input" in output.replace("\n", " ")
    assert "yours" in output and "'hello'" in output and len(output.splitlines()) <= MAX_LINES

    mine.write_text(SOLUTION)
    status, output = run("5")
    assert status == 0 and "05_softmax: correct." in output and "npx/kernels/softmax.py" in output
    assert " 5  done " in run()[1]
    mine.write_text(SOLUTION + "# more\n")
    assert " 5  started" in run()[1]

    run("5", "--reset")
    assert mine.read_text() == Exercise("05_softmax").blank.read_text()
    assert (tmp_path / "my" / "05_softmax.py.1").read_text() == SOLUTION + "# more\n"


def test_general_hint_for_an_unrecognized_error(tmp_path, run):
    run("5")
    (tmp_path / "my" / "05_softmax.py").write_text("def softmax(x):\n    return 3 * x, lambda g: (g,)\n")
    status, output = run("5", "--hint")
    assert status == 1 and "Hint: Each output depends on every input of its row" in output


def test_command_runs_in_any_folder(tmp_path):
    output = subprocess.run(
        [sys.executable, "-m", "book"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert len(re.findall(r"^ *\d+  (?:open|started|done) ", output, re.MULTILINE)) == len(ALL)


def test_solution_chapter_and_usage_errors(tmp_path, run):
    assert run("5", "--solution") == (0, SOLUTION)
    assert "1000.31" in run("5", "--chapter")[1]
    status, output = run("14")
    assert (status, output) == (2, "python -m book: expected an exercise from 1 to 13; got 14\n")
    assert run("--hint")[0] == 2 and not (tmp_path / "my").exists()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "while True:\n        pass",
            r"Your code did not finish within 1 s.*\n.*05_softmax\.py:[23]: at `(while|pass).*`",
        ),
        (
            "import time\n    time.sleep(99)",
            r"Your code did not finish within 1 s.*\n.*05_softmax\.py:3: at `time.sleep",
        ),
        ("import os\n    os._exit(3)", r".*05_softmax\.py: the process exited with status 3"),
        (
            "import sys\n    sys.exit(4)",
            r"Not yet: your code raises an exception here(?s:.*)05_softmax\.py:3:\s+SystemExit: 4",
        ),
    ],
    ids=["endless", "sleep", "exit", "sys.exit"],
)
def test_an_answer_cannot_hang_or_kill_the_command(tmp_path, monkeypatch, body, expected):
    exercise, path = write_answer(tmp_path, f"def softmax(x):\n    {body}\n")
    monkeypatch.setattr(command, "WALL_PER_CPU", 2 if "sleep" in body else 60)
    verdict = command.verdict(exercise, path, limit=1.0)
    assert not verdict["passed"] and re.match(expected, "\n".join(verdict["lines"])), verdict["lines"]


def test_missing_package_names_the_right_python(monkeypatch, tmp_path, run):
    monkeypatch.setattr(command, "REQUIRED", ("no_such_package",))
    status, output = run("5")
    assert status == 2 and output.count("\n") == 1 and not (tmp_path / "my").exists()
    assert re.search("expected the Python of this .* without no_such_package; try `make exercise N=5`, or", output)
    assert run("5", "--solution")[0] == 0


def test_invalid_progress_file_counts_as_empty(tmp_path):
    (tmp_path / command.DONE).write_text("{broken")
    assert command.load_done(tmp_path) == {}
    (tmp_path / command.DONE).write_text(json.dumps(["list"]))
    assert command.load_done(tmp_path) == {}


def test_git_ignores_the_answers():
    assert "/my/" in (ROOT / ".gitignore").read_text("utf-8").splitlines()


def test_files_module_imports_only_light_modules():
    """Keep the static check of an answer fast: it runs before any process imports NumPy."""
    tree = ast.parse((BOOK / "files.py").read_text("utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= {"dataclasses", "functools", "pathlib", "typing"}
