"""The files of an exercise, and checks of a learner's file without running it. This module imports no large package."""

import ast
import re
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

BOOK = Path(__file__).parent
ROOT = BOOK.parent
MY = ROOT / "my"


class WrongAnswer(NamedTuple):
    """A known wrong answer: its name, the hint for a learner who makes the same mistake, and its source."""

    name: str
    hint: str
    source: str


@dataclass(frozen=True)
class Exercise:
    """An exercise: a folder in `exercises/`, its chapter, and the learner's copy in `my/`."""

    name: str  # "05_softmax"

    @property
    def number(self) -> int:
        return int(self.name[:2])

    @property
    def folder(self) -> Path:
        return BOOK / "exercises" / self.name

    @property
    def chapter(self) -> Path:
        return next(BOOK.glob(f"{self.number:02}-*.md"))

    @property
    def blank(self) -> Path:
        return self.folder / "blank.py"

    @property
    def solution(self) -> Path:
        return self.folder / "solution.py"

    @property
    def also_right(self) -> list[Path]:
        return sorted((self.folder / "also_right").glob("*.py"))

    @cached_property
    def wrong_answers(self) -> list[WrongAnswer]:
        """The known wrong answers, which `wrong.txt` describes as changes to the solution.

        Each has a name, a hint and changes. A change replaces the `-` text, which must occur exactly once in the
        solution, by the `+` text. Without `-` text, the `+` text replaces the function that it defines.
        """
        answers = []
        for entry in re.split(r"^## ", (self.folder / "wrong.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            head, *changes = entry.strip().split("\n\n")
            name, hint = head.split("\n", 1)
            source = self.solution.read_text(encoding="utf-8")
            for change in changes:
                old, new = ("\n".join(x[2:] for x in change.splitlines() if x[0] == sign) for sign in "-+")
                old = old or function_source(source, new)
                if source.count(old) != 1:
                    raise ValueError(
                        f"{self.name}, {name}: expected the text once in the solution; found {source.count(old)}: {old}"
                    )
                source = source.replace(old, new)
            answers.append(WrongAnswer(name, hint.replace("\n", " "), source))
        return answers

    @cached_property
    def title(self) -> str:
        """The chapter's title, which is a question."""
        first = next(line for line in self.chapter.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        return first.removeprefix("# ").split(". ", 1)[-1]

    def mine(self, folder: Path) -> Path:
        return folder / f"{self.name}.py"

    def start(self, folder: Path) -> bool:
        """Create the learner's copy; return False if it already exists."""
        mine = self.mine(folder)
        if mine.exists():
            return False
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = mine.with_suffix(".new")
        shutil.copyfile(self.blank, unfinished)
        unfinished.rename(mine)
        return True

    def reset(self, folder: Path) -> Path | None:
        """Create a fresh copy; rename the old file with the next free number and return its path."""
        mine = self.mine(folder)
        if not mine.exists():
            self.start(folder)
            return None
        number = 1
        while (backup := mine.with_suffix(f".py.{number}")).exists():
            number += 1
        mine.rename(backup)
        self.start(folder)
        return backup


def function_source(source: str, replacement: str) -> str:
    """Return the text of the function in `source` that has the same name as the one in `replacement`."""
    name = ast.parse(replacement).body[0].name  # type: ignore[attr-defined]
    node = next(node for node in ast.parse(source).body if name in defined(node))
    return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])


def exercises() -> list[Exercise]:
    """Return all exercises in chapter order."""
    return [Exercise(path.parent.name) for path in sorted((BOOK / "exercises").glob("*/blank.py"))]


def shown(path: Path) -> str:
    """Return a path relative to the current folder, as a user would type it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def first_problem(exercise: Exercise, path: Path) -> list[str] | None:
    """Check a file without running it; return the first problem as lines to print, or None."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [f"{shown(path)}: expected a text file in UTF-8; got '{getattr(error, 'strerror', None) or error}'"]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        source_line = (text.splitlines() or [""])[min(line, text.count("\n") + 1) - 1].strip()
        return [
            f"{shown(path)}:{line}: Python cannot parse this: {getattr(error, 'msg', error)}",
            "",
            f"    {source_line}",
        ]
    blank = ast.parse(exercise.blank.read_text(encoding="utf-8"))
    wanted = [node for node in blank.body if isinstance(node, ast.FunctionDef)]
    definitions = {name: node for node in tree.body for name in defined(node)}
    for function in wanted:
        signature = f"def {function.name}({ast.unparse(function.args)})"
        if function.name not in definitions:
            return [f"{shown(path)}: expected {signature}; found no {function.name}"]
        answer = definitions[function.name]
        if isinstance(answer, ast.FunctionDef) and parameters(answer)[: len(parameters(function))] != parameters(
            function
        ):
            actual = f"def {answer.name}({ast.unparse(answer.args)})"
            return [f"{shown(path)}:{answer.lineno}: expected {signature}; found {actual}"]
    answers = [(function.name, definitions[function.name]) for function in wanted]
    left = [(getattr(x, "lineno", 0), name) for name, top in answers for x in ast.walk(top) if is_blank(x)]
    if left:
        line, name = min(left)
        return [f"{shown(path)}:{line}: unfinished: {name} still contains `...`"]
    allowed = {module for module, _ in imported(blank)} | {"numpy"} | set(sys.stdlib_module_names)
    for module, line in imported(tree):
        if module not in allowed and module.split(".")[0] not in allowed:
            return [
                f"{shown(path)}:{line}: expected only numpy, the standard library and what the blank imports; "
                f"found {module}",
                "Write the function yourself.",
            ]
    return None


def defined(node: ast.AST) -> list[str]:
    """Return the names defined by a statement: function, class, assignment or import."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [alias.asname or alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the parameter names in order."""
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args)]


def is_blank(node: ast.AST) -> bool:
    """Return whether a node is a `...` placeholder, as opposed to an index such as x[..., None]."""
    gives = isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return))
    value = node.body if isinstance(node, ast.Lambda) else getattr(node, "value", None) if gives else None

    def empty(x: ast.AST | None) -> bool:
        if isinstance(x, (ast.Tuple, ast.List)):
            return any(map(empty, x.elts))
        return isinstance(x, ast.Constant) and x.value is Ellipsis

    return empty(value)


def imported(tree: ast.AST) -> list[tuple[str, int]]:
    """Return the modules imported anywhere in a file, with line numbers."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(("." * node.level + (node.module or ""), node.lineno))
    return modules
