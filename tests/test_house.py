"""The house: who imports whom, where the engines may be named, and files that are read in one sitting."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["npx", "autograd", "models", "train"]  # each may import itself and those before it
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES = 430  # about 400
ENGINES = {
    "numpy": {"npx", "train"},
    "cupy": {"npx"},
    "cupyx": {"npx"},
    "cupy_backends": {"npx"},
}  # who may import them
NOWHERE = {"torch", "tensorflow", "jax", "pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}

files = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def imported(path):
    """Top-level names of everything a file imports, at its head, inside functions, or by importlib."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: expected an absolute import"
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value.split(".")[0]


def package_of(path):
    return path.relative_to(ROOT).parts[0]


def test_the_files_are_found():
    assert {package_of(path) for path in FILES} == set(PACKAGES) and len(FILES) > 20


@files
def test_imports_run_one_way(path):
    """npx <- autograd <- models <- train."""
    later = PACKAGES[PACKAGES.index(package_of(path)) + 1 :]
    assert not set(imported(path)) & {*later, "tests", "benchmarks"}


@files
def test_engines_are_imported_where_they_belong_and_no_framework_anywhere(path):
    names = set(imported(path))
    for engine, packages in ENGINES.items():
        assert engine not in names or package_of(path) in packages, f"{engine} belongs in {', '.join(packages)}"
    assert not names & NOWHERE


@files
def test_nothing_is_pickled(path):
    """Nor read back so: NumPy unpickles only where it is told to."""
    assert "allow_pickle=True" not in path.read_text(encoding="utf-8").replace(" ", "")


@files
def test_each_file_opens_with_what_it_is_for_and_is_read_in_one_sitting(path):
    text = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring and len(docstring) > 20 and text.startswith(('"""', 'r"""', "#!"))
    assert text.count("\n") <= MOST_LINES, f"{text.count(chr(10))} lines"


def test_the_engine_is_read_in_one_sitting():
    assert (ROOT / "autograd" / "engine.py").read_text(encoding="utf-8").count("\n") <= 330
