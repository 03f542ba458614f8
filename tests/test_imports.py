"""The house: who imports whom, where the engines may be named, no circles, and files that are read in one sitting."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["npx", "autograd", "models", "train"]  # each may import itself and those before it
ROOMS = ["text", "metrics", "tasks", "run", "learn", "formats", "viewer", "experiments", "cli"]  # of train, the same
ON_TOP = ["errors.py", "files.py"]  # files of train that every room may import
WITHOUT_CIRCLES = PACKAGES  # in which no file reaches itself
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES = {"npx": 430, "autograd": 430, "models": 430, "train": 400}  # about 400
ENGINES = {
    "numpy": {"npx", "train"},
    "cupy": {"npx"},
    "cupyx": {"npx"},
    "cupy_backends": {"npx"},
    "mpi4py": {"npx"},
}  # who may import them
NOWHERE = {"torch", "tensorflow", "jax", "pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}

files = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def imports(text, name="file"):
    """(module, name or None) of everything a file imports: at its head, inside functions, for types, by importlib."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: expected an absolute import"
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value, None


def imported(path):
    """Top-level names of everything a file imports."""
    return {module.split(".")[0] for module, _ in imports(path.read_text(encoding="utf-8"), path.name)}


@cache
def files_imported(path, root=ROOT):
    """The files of the house that a file imports, each by its full path.

    `from a.b import c` is a/b/c.py where there is such a file, else a/b.py or a/b/__init__.py, which has the name c.
    The __init__ files that Python runs on the way there (a/__init__.py) are not counted, only those that are named: so
    an __init__ that collects names for users stands above its files, and a circle through it is one where a file of
    the package takes a name from the collection.
    """
    found = set()
    for module, name in imports(path.read_text(encoding="utf-8"), path.name):
        place = root.joinpath(*module.split("."))
        choices = [place / f"{name}.py", place / str(name) / "__init__.py"] if name else []
        choices += [place.with_name(f"{place.name}.py"), place / "__init__.py"]
        found |= set([choice for choice in choices if choice.is_file()][:1])
    return frozenset(found)


def circle(path, root=ROOT):
    """A way along imports from a file back to itself, as a list of files; empty where there is none."""
    before, waiting = {}, [path]
    while waiting:
        here = waiting.pop()
        for there in files_imported(here, root):
            if there == path:
                way = [there, here]
                while way[-1] != path:
                    way.append(before[way[-1]])
                return [str(step.relative_to(root)) for step in reversed(way)]
            if there not in before:
                before[there] = here
                waiting.append(there)
    return []


def package_of(path):
    return path.relative_to(ROOT).parts[0]


def room_of(path):
    """The room of a file of train: -1 what stands before all rooms, their number what stands above them all."""
    inside = path.relative_to(ROOT / "train").parts
    return ROOMS.index(inside[0]) if len(inside) > 1 else -1 if inside[0] in ON_TOP else len(ROOMS)


def test_the_files_are_found():
    assert {package_of(path) for path in FILES} == set(PACKAGES) and len(FILES) > 20
    rooms = {path.parent.name for path in (ROOT / "train").glob("*/*.py")}
    assert rooms <= set(ROOMS) and {"text", "tasks", "run", "learn", "cli"} <= rooms


@files
def test_imports_run_one_way(path):
    """npx <- autograd <- models <- train."""
    later = PACKAGES[PACKAGES.index(package_of(path)) + 1 :]
    assert not imported(path) & {*later, "tests", "benchmarks"}


@pytest.mark.parametrize("path", sorted((ROOT / "train").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_of_train_imports_its_own_files_and_the_rooms_before_it(path):
    later = [
        str(other.relative_to(ROOT))
        for other in files_imported(path)
        if package_of(other) == "train" and room_of(other) > room_of(path)
    ]
    assert not later, f"{path.relative_to(ROOT)} imports {', '.join(later)}"


@pytest.mark.parametrize("package", WITHOUT_CIRCLES)
def test_no_file_reaches_itself(package):
    """Over all imports: those inside functions, those for types alone, those through other packages."""
    for path in (ROOT / package).rglob("*.py"):
        assert not circle(path), " -> ".join(circle(path))


def test_a_circle_is_found_wherever_the_import_stands(tmp_path):
    (tmp_path / "p").mkdir()
    for name, text in (
        ("__init__", "from p.a import f"),
        ("a", "from p import b\nimport p.c"),
        ("b", "def g():\n    from p.d import h"),
        ("c", "import numpy"),
        ("d", "if TYPE_CHECKING:\n    from p.a import f"),
        ("e", "from p import f"),
    ):
        (tmp_path / "p" / f"{name}.py").write_text(text)
    found = {path.stem: circle(path, tmp_path) for path in (tmp_path / "p").iterdir()}
    assert found["a"] == ["p/a.py", "p/b.py", "p/d.py", "p/a.py"] and len(found["b"]) == len(found["d"]) == 4
    assert found["c"] == found["__init__"] == found["e"] == []
    (tmp_path / "p" / "c.py").write_text("from p import f")  # a name of the collection, not a file
    files_imported.cache_clear()
    assert circle(tmp_path / "p" / "c.py", tmp_path) == ["p/c.py", "p/__init__.py", "p/a.py", "p/c.py"]


@files
def test_engines_are_imported_where_they_belong_and_no_framework_anywhere(path):
    names = imported(path)
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
    assert text.count("\n") <= MOST_LINES[package_of(path)], f"{text.count(chr(10))} lines"


def test_the_engine_is_read_in_one_sitting():
    assert (ROOT / "autograd" / "engine.py").read_text(encoding="utf-8").count("\n") <= 330
