"""Text, comments and messages use the terms of the field.

A reader from outside cannot guess what a metaphor or a term of our own means: "the kit" for the gradient checker,
"formed again" for "recomputed". The phrases below were once in the project. The tests reject them, so that they do not
return with copied text.
"""

import ast
import re
import subprocess

import pytest

from tests import ROOT

SUFFIXES = (".py", ".md", ".js", ".html", ".cu", ".cuh", ".toml")
# Regular expressions of the rejected phrases; each comment says what to write instead.
REJECTED = (
    r"\bon (the|its|their) way back\b",  # in the backward pass
    r"\bform(s|ed)? (again|anew|once more)\b",  # recompute
    r"\b(?-i:got none)\b",  # say what is missing
    r"\bnone such\b",  # invalid
    r"\bby heart\b",  # memorized
    r"\bit is young\b",  # experimental
    r"\bstand-ins?\b",  # fake
    r"\bsurroundings\b",  # environment
    r"\bhow-manieth\b",  # position, index
    r"\brooms? of the\b",  # packages of
    r"\bof the house\b",  # of the project
    r"\b(goes|go|went) on (from|where) (it|they|the)\b",  # resumes, continues
    r"\b(is|are|be) told (of|what|where)\b",  # is reported
    r"\bnewcomers?\b",  # first-time user
    r"\bplanted mistakes?\b|\bmistakes? (is|are) planted\b",  # mutant, planted bug
    r"\bthe gradient kit\b|\bthe kit (finds|says|has|checks|itself|derives)\b",  # the gradient checker
    r"\bheld to (the|a|its) (reference|slope|truth)\b",  # compared with
    r"\bnumbers of 16 bits\b",  # 16-bit floats
    r"\bfirst values of (the )?(parameters|weights)\b",  # initialization
    r"\bswitched off heads?\b",  # ablated
    r"\bwarm-up\b",  # warmup
    r"\bhandwritten\b",  # hand-written
    r"\bGEMMs\b",  # matmuls
    r"\btry (another (model|copy|prompt)|the original file)\b",  # what the user can do
    r"\b(bytes|tokens|updates|microseconds|ns|s) a (second|step|token|number)\b",  # per
    r"[;.] (?-i:[A-Z])\w+Error (if|for|unless|outside)\b",  # a sentence: "Raises ValueError if ..."
)
# A trailing comment that begins with "of" does not name its subject; write "bytes of a line" instead of "of a line".
FRAGMENT = re.compile(r"\S +# of [a-z]")
THIS = "tests/test_language.py"


def text_files():
    """Return the paths of all files of the repository that people read or write."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listing.stdout.split() if name.endswith(SUFFIXES) and name != THIS]


def occurrences(text):
    """Return "line: phrase" for each rejected phrase in a text, even across a line break and a comment sign."""
    results = []
    for phrase in REJECTED:
        for match in re.finditer(phrase.replace(" ", r"(?:\s|#|//|\*|>)+"), text, re.IGNORECASE):
            words = " ".join(re.findall(r"[\w-]+", match[0]))
            results.append(f"{text.count(chr(10), 0, match.start()) + 1}: {words}")
    return results


def test_no_file_contains_a_rejected_phrase():
    lines = []
    for name in text_files():
        path = ROOT / name
        if path.is_file():
            lines += [f"{name}:{line}" for line in occurrences(path.read_text(encoding="utf-8"))]
    assert not lines, "expected the usual terms (see REJECTED); got\n" + "\n".join(lines)


def test_comments_name_their_subject():
    lines = []
    for name in text_files():
        path = ROOT / name
        if name.endswith(".py") and path.is_file():
            text = path.read_text(encoding="utf-8").splitlines()
            lines += [f"{name}:{number}" for number, line in enumerate(text, 1) if FRAGMENT.search(line)]
    assert not lines, 'expected comments that name their subject; got "# of ..." in ' + ", ".join(lines)


def names_of(node):
    """Return the parameters of a function, or those of a class and its fields."""
    if isinstance(node, ast.FunctionDef):
        a = node.args
        return {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x} - {"self"}
    fields = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    methods = (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__")
    return fields.union(*map(names_of, methods))


def misplaced_entries(source):
    """Return "line: name" for each parameter or field that a docstring describes outside its list of entries.

    Parameters are listed under "Args:" and fields under "Attributes:", each in a line of its own; further lines of an
    entry are indented.
    """
    results = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or not (text := ast.get_docstring(node)):
            continue
        names = "|".join(map(re.escape, names_of(node))) or "(?!)"
        for entry in re.finditer(rf"(?:\A|[.;] |[.;]\n {{8}}|\n)`?({names})`?(?:, \w+)*: ", text):
            results.append(f"{node.body[0].lineno + text.count(chr(10), 0, entry.start(1))}: {entry[1]}")
    return results


def test_docstrings_list_each_parameter_in_a_line_of_its_own():
    lines = []
    for name in text_files():
        if name.endswith(".py") and (ROOT / name).is_file():
            lines += [f"{name}:{x}" for x in misplaced_entries((ROOT / name).read_text(encoding="utf-8"))]
    assert not lines, 'expected entries under "Args:" or "Attributes:"; got\n' + "\n".join(lines)


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Do.\n\n    Args:\n        x: one\n            line. Default: y.\n        y: another.\n    ", []),
        ("Do x: one.", []),
        ("Do. x: one.", ["2: x"]),
        ("Do.\n\n    x, y: both.\n    ", ["4: x"]),
        ("Do.\n\n    Args:\n        x: one. y: another.\n    ", ["5: y"]),
        ("Do.\n\n    Args:\n        x: one.\n            y: another.\n    ", ["6: y"]),
    ],
)
def test_misplaced_entries_are_recognized(docstring, expected):
    assert misplaced_entries(f'def f(x, y):\n    """{docstring}"""\n') == expected


@pytest.mark.parametrize(
    ("line", "is_fragment"),
    [
        ("LIMIT = 8  # of a line", True),
        ("LIMIT = 8  # bytes of a line", False),
        ("# of a longer comment", False),
        ("x = y  # noqa: E501", False),
    ],
)
def test_fragments_are_recognized(line, is_fragment):
    assert bool(FRAGMENT.search(line)) == is_fragment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x is recomputed in the backward pass", []),
        ("first\nit is formed on the way\n    # back", ["2: on the way back"]),
        ("got none\nby heart", ["1: got none", "2: by heart"]),
        ("a stand-in for CuPy", ["1: stand-in"]),
        ("100 tokens a second", ["1: tokens a second"]),
        ("Read x. Raises OSError if it fails.\nRead x; OSError if it fails.", ["2: OSError if"]),
    ],
)
def test_phrases_are_recognized(text, expected):
    assert occurrences(text) == expected
