"""Where everything lies, and what can be said of a learner's file without running it. Imports nothing heavy."""

import ast
import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

BOOK = Path(__file__).parent
ROOT = BOOK.parent
MY = ROOT / "my"


@dataclass(frozen=True)
class Exercise:
    """One folder of `exercises/`, the chapter it belongs to, and the learner's copy in `my/`."""

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

    def others(self, kind: str) -> list[Path]:
        """The files of `also_right` or `wrong`."""
        return sorted((self.folder / kind).glob("*.py"))

    @cached_property
    def title(self) -> str:
        """The question that the chapter asks: the first line of its text."""
        first = next(line for line in self.chapter.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        return first.removeprefix("# ").split(". ", 1)[-1]

    def mine(self, folder: Path) -> Path:
        return folder / f"{self.name}.py"

    def begin(self, folder: Path) -> bool:
        """Make the learner's copy; False where there is one already, which stays as it is."""
        mine = self.mine(folder)
        if mine.exists():
            return False
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = mine.with_suffix(".new")
        shutil.copyfile(self.blank, unfinished)
        unfinished.rename(mine)
        return True

    def reset(self, folder: Path) -> Path | None:
        """A fresh copy; the old file is kept beside it, under the first free number."""
        mine = self.mine(folder)
        if not mine.exists():
            self.begin(folder)
            return None
        number = 1
        while (kept := mine.with_suffix(f".py.{number}")).exists():
            number += 1
        mine.rename(kept)
        self.begin(folder)
        return kept


def exercises() -> list[Exercise]:
    """All of them, in the order of the chapters."""
    return [Exercise(path.parent.name) for path in sorted((BOOK / "exercises").glob("*/blank.py"))]


def shown(path: Path) -> str:
    """A path as a person here would type it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def first_refusal(exercise: Exercise, path: Path) -> list[str] | None:
    """What is wrong with a file as it is written, in lines to print; None for nothing. It is not run."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return [f"{shown(path)}: expected a text file in UTF-8; {getattr(error, 'strerror', None) or error}"]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        found = (text.splitlines() or [""])[min(line, text.count("\n") + 1) - 1].strip()
        return [f"{shown(path)}:{line}: Python cannot read this: {getattr(error, 'msg', error)}", "", f"    {found}"]
    blank = ast.parse(exercise.blank.read_text(encoding="utf-8"))
    wanted = [node for node in blank.body if isinstance(node, ast.FunctionDef)]
    own = {name: node for node in tree.body for name in defined(node)}
    for function in wanted:
        signature = f"def {function.name}({ast.unparse(function.args)})"
        if function.name not in own:
            return [f"{shown(path)}: expected {signature}; found no {function.name}"]
        it = own[function.name]
        if isinstance(it, ast.FunctionDef) and names(it)[: len(names(function))] != names(function):
            found = f"def {it.name}({ast.unparse(it.args)})"
            return [f"{shown(path)}:{it.lineno}: expected {signature}; found {found}"]
    mine = [(function.name, own[function.name]) for function in wanted]
    left = [(getattr(x, "lineno", 0), name) for name, top in mine for x in ast.walk(top) if is_blank(x)]
    if left:
        line, name = min(left)
        return [f"{shown(path)}:{line}: not done yet: {name} still has its `...`"]
    allowed = {module for module, _ in imported(blank)} | {"numpy"} | set(sys.stdlib_module_names)
    for module, line in imported(tree):
        if module not in allowed and module.split(".")[0] not in allowed:
            return [
                f"{shown(path)}:{line}: expected only numpy, the standard library and what the blank imports; "
                f"found {module}",
                "The exercise is to write it.",
            ]
    return None


def defined(node: ast.AST) -> list[str]:
    """The names that a statement of a file gives: a function, a class, an assignment, an import."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [alias.asname or alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def names(function: ast.FunctionDef) -> list[str]:
    """Those of its parameters, in order."""
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args)]


def is_blank(node: ast.AST) -> bool:
    """Whether a `...` stands here where something is to be written; x[..., None] has one that says something."""
    gives = isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return))
    value = node.body if isinstance(node, ast.Lambda) else getattr(node, "value", None) if gives else None

    def empty(x: ast.AST | None) -> bool:
        if isinstance(x, (ast.Tuple, ast.List)):
            return any(map(empty, x.elts))
        return isinstance(x, ast.Constant) and x.value is Ellipsis

    return empty(value)


def imported(tree: ast.AST) -> list[tuple[str, int]]:
    """The modules that a file imports, anywhere in it, and the lines."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(("." * node.level + (node.module or ""), node.lineno))
    return found
