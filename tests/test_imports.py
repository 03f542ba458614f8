"""Architecture: the direction of imports, where NumPy and CuPy may be imported, no import cycles, short files."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["npx", "autograd", "models", "train"]  # each may import itself and those before it
SUBPACKAGES = [
    "text",
    "metrics",
    "tasks",
    "run",
    "learn",
    "formats",
    "viewer",
    "experiments",
    "cli",
]  # packages of train, in the same order
COMMON = [
    "errors.py",
    "files.py",
    "json_files.py",
    "lock.py",
    "progress.py",
]  # modules of train that all subpackages may import
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 400
LIBRARIES = {
    "numpy": {"npx", "train"},
    "cupy": {"npx"},
    "cupyx": {"npx"},
    "cupy_backends": {"npx"},
    "mpi4py": {"npx"},
}  # library -> packages that may import it
UNPICKLER = "train/formats/torch_file.py"  # reads PyTorch's files; it rejects names of functions
FORBIDDEN = {"torch", "tensorflow", "jax", "pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}


def imports(text, name="file"):
    """Yield (module, name or None) for every import of a file, including imports in functions and by importlib."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: expected an absolute import"
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value, None


@cache
def imported(path):
    """Return the top-level packages that a file imports."""
    return {module.split(".")[0] for module, _ in imports(path.read_text(encoding="utf-8"), path.name)}


@cache
def imported_files(path, root=ROOT):
    """Return the files of the project that a file imports.

    `from a.b import c` is a/b/c.py if that file exists, else a/b.py or a/b/__init__.py, which defines c. The __init__
    files that Python runs on the way (a/__init__.py) do not count. So a package's `__init__` counts as above its
    modules, and a module that imports from it creates a cycle.
    """
    return files_of(imports(path.read_text(encoding="utf-8"), path.name), root)


def files_of(modules, root=ROOT):
    """Return the files of the project among (module, name or None); see `imported_files`."""
    files = set()
    for module, name in modules:
        target = root.joinpath(*module.split("."))
        candidates = [target / f"{name}.py", target / str(name) / "__init__.py"] if name else []
        candidates += [target.with_name(f"{target.name}.py"), target / "__init__.py"]
        files |= set([candidate for candidate in candidates if candidate.is_file()][:1])
    return frozenset(files)


def import_cycle(path, root=ROOT):
    """Return a chain of imports from a file back to itself, or an empty list."""
    importers, stack = {}, [path]
    while stack:
        importer = stack.pop()
        for file in imported_files(importer, root):
            if file == path:
                chain = [file, importer]
                while chain[-1] != path:
                    chain.append(importers[chain[-1]])
                return [str(step.relative_to(root)) for step in reversed(chain)]
            if file not in importers:
                importers[file] = importer
                stack.append(file)
    return []


def package_of(path):
    return path.relative_to(ROOT).parts[0]


def level_of(path):
    """Return the position of a module of train in SUBPACKAGES; -1 for COMMON, the highest for other top-level files."""
    parts = path.relative_to(ROOT / "train").parts
    return SUBPACKAGES.index(parts[0]) if len(parts) > 1 else -1 if parts[0] in COMMON else len(SUBPACKAGES)


def reading_order():
    """Return {file: row} for the table "Reading order" of docs/architecture.md; a folder contains all its files."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Reading order")[2]
    table, order = re.findall(r"^\| (`.*?) \|", page.partition("\n## ")[0], re.M), {}
    for row, cell in enumerate(table):
        folder = ROOT
        for name in re.findall("`(.*?)`", cell):
            path = ROOT / name if "/" in name and (ROOT / name).exists() else folder / name
            assert path.exists(), f"{cell}: no such file {name}"
            folder = path.parent
            new = path.rglob("*.py") if path.is_dir() else [path]
            order.update((file, row) for file in new if file.name != "__init__.py")
        if cell.endswith("the other kernels"):
            order.update((file, row) for file in folder.glob("*.py") if file.name != "__init__.py")
    return order


def imports_at_the_top(path):
    """Return the files of the project that a file imports outside of functions, classes and conditions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return files_of(imports(ast.unparse(tree), path.name))


def test_the_reading_order_follows_the_imports():
    order = reading_order()
    skipped = {ROOT / "npx/testing"}
    missing = {path for path in FILES if path.name[:2] != "__" and not skipped & set(path.parents)} - order.keys()
    assert not missing, sorted(str(path.relative_to(ROOT)) for path in missing)
    later = [
        f"{path.relative_to(ROOT)} imports {file.relative_to(ROOT)}"
        for path in order
        for file in imports_at_the_top(path)
        if order.get(file, -1) > order[path]
    ]
    assert not later, later


def test_the_files_are_found():
    assert {package_of(path) for path in FILES} == set(PACKAGES) and len(FILES) > 20
    subpackages = {path.relative_to(ROOT / "train").parts[0] for path in (ROOT / "train").glob("*/*.py")}
    assert subpackages <= set(SUBPACKAGES) and {"text", "tasks", "run", "learn", "cli"} <= subpackages


def test_imports_run_one_way():
    """A package imports only from the left in npx, autograd, models, train."""
    for path in FILES:
        later = PACKAGES[PACKAGES.index(package_of(path)) + 1 :]
        assert not imported(path) & {*later, "tests", "benchmarks"}, path


def test_subpackages_of_train_import_only_earlier_ones():
    for path in (ROOT / "train").rglob("*.py"):
        later = [
            str(file.relative_to(ROOT))
            for file in imported_files(path)
            if package_of(file) == "train" and level_of(file) > level_of(path)
        ]
        assert not later, f"{path.relative_to(ROOT)} imports {', '.join(later)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_there_are_no_import_cycles(package):
    """Imports inside functions, imports for type checking only, and imports through other packages count too."""
    for path in (ROOT / package).rglob("*.py"):
        assert not import_cycle(path), " -> ".join(import_cycle(path))


def test_import_cycles_are_detected(tmp_path):
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
    cycles = {path.stem: import_cycle(path, tmp_path) for path in (tmp_path / "p").iterdir()}
    assert cycles["a"] == ["p/a.py", "p/b.py", "p/d.py", "p/a.py"] and len(cycles["b"]) == len(cycles["d"]) == 4
    assert cycles["c"] == cycles["__init__"] == cycles["e"] == []
    (tmp_path / "p" / "c.py").write_text("from p import f")  # imports a name from __init__, not from a module
    imported_files.cache_clear()
    assert import_cycle(tmp_path / "p" / "c.py", tmp_path) == ["p/c.py", "p/__init__.py", "p/a.py", "p/c.py"]


def test_libraries_are_imported_only_in_their_packages():
    for path in FILES:
        names = imported(path)
        for library, packages in LIBRARIES.items():
            assert library not in names or package_of(path) in packages, f"{path}: {library} belongs in {packages}"
        allowed = {"pickle"} if str(path.relative_to(ROOT)) == UNPICKLER else set()
        assert not names & FORBIDDEN - allowed, path


def test_nothing_is_pickled():
    """Nothing is unpickled either: NumPy unpickles only with allow_pickle=True."""
    for path in FILES:
        assert "allow_pickle=True" not in path.read_text(encoding="utf-8").replace(" ", ""), path


def test_each_file_has_a_docstring_and_a_limited_length():
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(text))
        assert docstring and len(docstring) > 20 and text.startswith(('"""', 'r"""', "#!")), path
        assert text.count("\n") <= MAX_LINES, f"{path}: {text.count(chr(10))} lines"


def test_the_engine_has_a_limited_length():
    assert (ROOT / "autograd" / "engine.py").read_text(encoding="utf-8").count("\n") <= 330
