"""Files use plain English: phrases of the project's former private vocabulary are rejected."""

import re
import subprocess

import pytest

from tests import ROOT

SUFFIXES = (".py", ".md", ".js", ".html", ".cu", ".cuh", ".toml")
# Each phrase has no legitimate use; the comment is what to write instead.
PHRASES = (
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
    r"\b(bytes|tokens|updates|microseconds|ns|s) a (second|step|token|number)\b",  # per
    r"[;.] (?-i:[A-Z])\w+Error (if|for|unless|outside)\b",  # a sentence: "Raises ValueError if ..."
)
# A comment after code that begins with "of" does not name its subject: "bytes of a line" instead of "of a line".
FRAGMENT = re.compile(r"\S +# of [a-z]")
THIS = "tests/test_language.py"


def text_files():
    """Return the paths of all files of the repository that people read or write."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listing.stdout.split() if name.endswith(SUFFIXES) and name != THIS]


def occurrences(text):
    """Return "line: phrase" for each former phrase in a text, also across a line break and a comment sign."""
    results = []
    for phrase in PHRASES:
        for match in re.finditer(phrase.replace(" ", r"(?:\s|#|//|\*|>)+"), text, re.IGNORECASE):
            words = " ".join(re.findall(r"[\w-]+", match[0]))
            results.append(f"{text.count(chr(10), 0, match.start()) + 1}: {words}")
    return results


def test_no_file_uses_the_former_vocabulary():
    lines = []
    for name in text_files():
        path = ROOT / name
        if path.is_file():
            lines += [f"{name}:{line}" for line in occurrences(path.read_text(encoding="utf-8"))]
    assert not lines, "expected plain terms; got\n" + "\n".join(lines)


def test_comments_name_their_subject():
    lines = []
    for name in text_files():
        path = ROOT / name
        if name.endswith(".py") and path.is_file():
            text = path.read_text(encoding="utf-8").splitlines()
            lines += [f"{name}:{number}" for number, line in enumerate(text, 1) if FRAGMENT.search(line)]
    assert not lines, 'expected comments that name their subject; got "# of ..." in ' + ", ".join(lines)


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
