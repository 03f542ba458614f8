"""The defaults that docstrings name are those of the signatures."""

import ast
import re
from functools import cache

import pytest

from tests import ROOT

PACKAGES = ("npx", "autograd", "models", "train")
ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.M)  # an entry of "Args:", with its further lines
DEFAULT = re.compile(r"\bDefault (?P<after>\S+?)[.,:;]?(?=\s|$)|(?P<before>\S+) \(default\b")
SEE_METHOD = re.compile(r"Other\s+arguments:\s+see\s+`(\w+)\.(\w+)`")


def literal(text):
    """Return the value of a Python literal; raise ValueError for other text."""
    try:
        return ast.literal_eval(text)
    except SyntaxError as error:
        raise ValueError(text) from error


def literal_defaults(node, constants):
    """Return the defaults of a function, or of a class and its fields, that are literals or constants of the module."""
    if isinstance(node, ast.ClassDef):
        fields = [(part.target.id, part.value) for part in node.body if isinstance(part, ast.AnnAssign)]
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
        pairs = fields + [pair for method in methods for pair in parameters(method)]
    else:
        pairs = parameters(node)
    defaults = {}
    for name, value in pairs:
        try:
            defaults[name] = ast.literal_eval(constants.get(value.id) if isinstance(value, ast.Name) else value)
        except (ValueError, TypeError):  # another expression, or no default
            continue
    return defaults


def parameters(function):
    """Return (name, node of the default) for each parameter, with None for a parameter without a default."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(positional) - len(a.defaults)) + a.defaults
    return [(x.arg, d) for x, d in zip([*positional, *a.kwonlyargs], [*defaults, *a.kw_defaults], strict=True)]


def definitions(tree):
    """Yield (class or None, node, docstring, defaults) for each class and function with a docstring."""
    assignments = [x for x in tree.body if isinstance(x, ast.Assign) and isinstance(x.targets[0], ast.Name)]
    constants = {x.targets[0].id: x.value for x in assignments}
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield (
                    parent if isinstance(parent, ast.ClassDef) else None,
                    node,
                    text,
                    literal_defaults(node, constants),
                )


def wrong_defaults(tree):
    """Return a description of each default in a docstring that differs from the signature's."""
    results = []
    for _, node, text, defaults in definitions(tree):
        for entry in ENTRY.finditer(text):
            for name in entry[1].split(", "):
                for match in DEFAULT.finditer(entry[2]):
                    try:
                        documented = literal(match["after"] or match["before"].strip("`"))
                    except ValueError:  # prose, such as "Default H"
                        continue
                    if name in defaults and defaults[name] != documented:
                        results.append(f"{node.name}: {name} = {defaults[name]!r}; documented as {documented!r}")
    return results


@cache
def trees():
    """Return the syntax tree of each file of the packages that documents arguments, by its path."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return {path: ast.parse(text) for path, text in texts.items() if "Args:" in text}


def test_documented_defaults_are_those_of_the_signatures():
    lines = [f"{path}: {x}" for path, tree in trees().items() for x in wrong_defaults(tree)]
    assert not lines, "\n".join(lines)


def test_a_method_that_others_refer_to_has_the_same_defaults():
    """A docstring that refers to another method for "other arguments" documents those with another default itself."""
    documented_objects = [x for tree in trees().values() for x in definitions(tree)]
    bases = {
        x.name: [ast.unparse(base) for base in x.bases]
        for _, x, _, _ in documented_objects
        if isinstance(x, ast.ClassDef)
    }
    methods = {(parent.name, node.name): defaults for parent, node, _, defaults in documented_objects if parent}

    def method_of(name, method):
        if (name, method) in methods:
            return methods[name, method]
        return next(filter(None, (method_of(base, method) for base in bases.get(name, ()))), None)

    references = [(x[1], x[3], x[2], match) for x in documented_objects if (match := SEE_METHOD.search(x[2]))]
    lines = []
    for node, defaults, text, match in references:
        listed = {name for entry in ENTRY.finditer(text) for name in entry[1].split(", ")}
        other = method_of(match[1], match[2])
        assert other is not None, f"{node.name} refers to {match[1]}.{match[2]}, which has no docstring"
        lines += [
            f"{node.name}: {name} = {value!r}; in {match[1]}.{match[2]}: {other[name]!r}"
            for name, value in defaults.items()
            if name not in listed and other.get(name, value) != value
        ]
    assert references and not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("signature", "entry", "n_wrong"),
    [
        ("x=1e-6", "x: a number. Default 1e-6.", 0),
        ("x=1e-6", "x: a number. Default 1e-5.", 1),
        ("x=K", "x: a number. Default 2.", 1),
        ("x='a'", 'x: "b" (default), or\n            "a".', 1),
        ("*, x=None", "x: a number. Default: the number of rows.", 0),
        ("*, x, y=0", "x, y: numbers. Default 1, or\n            none.", 1),
    ],
)
def test_wrong_defaults_are_recognized(signature, entry, n_wrong):
    source = f'K = 3\ndef f({signature}):\n    """Do.\n\n    Args:\n        {entry}\n    """\n'
    assert len(wrong_defaults(ast.parse(source))) == n_wrong
