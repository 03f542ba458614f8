"""Constituency trees: Penn Treebank brackets read and written, cleaned for parsing, and the words of a sentence.

    (TOP (S (NP (PRP It)) (VP (VBD rained)) (. .)))

A leaf is a part-of-speech tag and a word. No function here recurses, so that a tree may be as deep as it likes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from os import PathLike
from typing import NamedTuple

from train.errors import UserError
from train.text.lines import read_lines

TOP = "TOP"  # above every cleaned tree; EVALB's parameters do not count it
TRACE = "-NONE-"
UNTAGGED = "XX"
COMMENTS = ("#", "%", ";", "*")  # outside of a tree, a line that begins so is none
# White space is what C's isspace says, as in EVALB: U+00A0 belongs to a word.
_PIECES = re.compile(r"\(([^ \t\n\v\f\r()]*)|(\))|([^ \t\n\v\f\r()]+)")
_SPACES = re.compile(r"[ \t\n\v\f\r]+")
_FUNCTION = re.compile(r"(?<=.)[-=].*")

# EVALB leaves punctuation out by its tag, so what is punctuation has to have its tag although no other word needs one.
# In the Penn Treebank the tag follows from the word, but for ' (see `punctuation`).
PUNCTUATION = (
    dict.fromkeys(",", ",")
    | dict.fromkeys([".", "?", "!"], ".")
    | dict.fromkeys([":", ";", "--", "...", "-", "—", "–", "…"], ":")
    | dict.fromkeys(["``", "`", "“", "‘"], "``")
    | dict.fromkeys(["''", "”", '"'], "''")
)


class Leaf(NamedTuple):
    """A word under its tag."""

    tag: str
    word: str


class Tree:
    """A constituent: its label, "" for none, and its parts in order. Equal trees are written alike."""

    __slots__ = ("label", "children")

    def __init__(self, label: str, children: "Iterable[Tree | Leaf]" = ()) -> None:
        self.label, self.children = label, list(children)

    def __str__(self) -> str:
        return write_tree(self)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]  # its parts may change

    def leaves(self) -> list[Leaf]:
        """The leaves from left to right."""
        return [part for part in walk(self) if isinstance(part, Leaf)]

    def words(self) -> list[str]:
        """The sentence."""
        return [leaf.word for leaf in self.leaves()]


def walk(tree: Tree) -> Iterator[Tree | Leaf | str]:
    """The parts of a tree, itself among them, as they are written: a constituent, what is in it, its label again."""
    waiting: list[Tree | Leaf | str] = [tree]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, Tree):
            waiting.append(part.label)
            waiting.extend(reversed(part.children))


def write_tree(tree: Tree) -> str:
    """A tree in brackets, on one line."""
    written: list[str] = []
    for part in walk(tree):
        if isinstance(part, Leaf):
            written.append(f" ({part.tag} {part.word})")
        else:
            written.append(f" ({part.label}" if isinstance(part, Tree) else ")")
    return "".join(written)[1:].replace("( (", "((")


# ---- reading


class _Reader:
    """Takes in pieces of text, and gives out the trees that they close."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.open: list[tuple[int, Tree, list[str]]] = []  # line, constituent, its own word

    def line(self, number: int, text: str) -> Iterator[Tree | Leaf]:
        """The trees that end on a line; at the top a leaf may stand alone."""
        if not self.open and text.lstrip().startswith(COMMENTS):
            return
        for piece in _PIECES.finditer(text):
            label, close, word = piece.groups()
            if label is not None:
                if self.open and self.open[-1][2]:
                    raise self.wrong(number, f"')' after the word {self.open[-1][2][0]!r}", f"'({label}'")
                self.open.append((number, Tree(label), []))
            elif not self.open:
                raise self.wrong(number, "'('", repr(word or close))
            elif word:
                _, tree, own = self.open[-1]
                if own or tree.children:
                    where = f"the word {own[0]!r}" if own else "what stands in brackets"
                    raise self.wrong(number, f"')' or '(' after {where}", repr(word))
                own.append(word)
            else:
                _, tree, own = self.open.pop()
                part = Leaf(tree.label, own[0]) if own else tree
                if self.open:
                    self.open[-1][1].children.append(part)
                else:
                    yield part

    def end(self) -> None:
        """UserError where a tree is not closed."""
        if self.open:
            number, tree, _ = self.open[0]
            raise UserError(
                f"{self.path}, line {number}: expected every bracket of the tree that begins here closed; "
                f"got {len(self.open)} open at the end of the file, the outermost '({tree.label}'; try adding ')'"
            )

    def wrong(self, number: int, expected: str, got: str) -> UserError:
        return UserError(
            f"{self.path}, line {number}: expected {expected}; got {got}; "
            "try Penn Treebank brackets: (S (NP (PRP It)) (VP (VBD rained)))"
        )


def numbered_lines(
    path: str | PathLike[str], watch: Callable[[bytes], object] | None = None
) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of a text file, as `read_lines`."""
    numbers = count(1)
    return ((next(numbers), line) for lines in read_lines(path, watch=watch) for line in lines)


def read_trees(path: str | PathLike[str], watch: Callable[[bytes], object] | None = None) -> Iterator[tuple[int, Tree]]:
    """Yield (line on which it ends, tree) of a file of any layout: one tree a line, over many lines, several a line.

    A leaf that stands alone comes below a `TOP`. `watch` sees every byte. UserError, with the line, for what is no tree
    or not closed, and for a file without any.
    """
    reader, number = _Reader(str(path)), 0
    found = False
    for number, line in numbered_lines(path, watch):
        for tree in reader.line(number, line):
            found = True
            yield number, Tree(TOP, [tree]) if isinstance(tree, Leaf) else tree
    reader.end()
    if not found:
        raise UserError(f"{path}: expected at least one tree; got {number} lines without any; try another file")


def read_sentences(path: str | PathLike[str]) -> list[tuple[int, list[Tree | Leaf]]]:
    """(line, what stands on it) of each sentence of a file to be scored.

    As EVALB reads: where no tree reaches over a line's end, each line is a sentence, an empty one a sentence without a
    tree. Otherwise each tree is one. UserError as `read_trees`.
    """
    reader, sentences, whole = _Reader(str(path)), [], True
    for number, line in numbered_lines(path):
        comment = not reader.open and line.lstrip().startswith(COMMENTS)
        whole &= not reader.open
        trees = list(reader.line(number, line))
        if not comment:
            sentences.append((number, trees))
    reader.end()
    if not any(trees for _, trees in sentences):
        raise UserError(f"{path}: expected at least one tree; got {len(sentences)} lines without any; try another file")
    return sentences if whole else [(number, [tree]) for number, trees in sentences for tree in trees]


# ---- cleaning


def clean(tree: Tree) -> Tree:
    """The tree that a parser learns, below `TOP`: no traces, nothing empty, no function tags (NP-SBJ=2 is NP).

    What tops a tree in a treebank, (TOP ...), (ROOT ...), (S1 ...) or brackets without a label, is that `TOP`.
    A sentence that is nothing but traces has no parts.
    """
    stack: list[Tree] = [Tree(TOP)]
    for part in walk(tree):
        if isinstance(part, Tree):
            stack.append(Tree(_FUNCTION.sub("", part.label)))
        elif isinstance(part, Leaf):
            if part.tag != TRACE:
                stack[-1].children.append(part)
        else:
            done = stack.pop()
            if done.children:
                stack[-1].children.append(done)
    (top,) = stack
    while len(top.children) == 1 and isinstance(top.children[0], Tree) and top.children[0].label in TOPS:
        top = top.children[0]
    return Tree(TOP, top.children)


TOPS = ("", TOP, "ROOT", "S1")


def split_words(line: str) -> list[str]:
    """The words of a tokenised sentence."""
    return [word for word in _SPACES.split(line) if word]


def punctuation(words: Sequence[str]) -> list[str]:
    """For each word the tag that it has as punctuation, "" for another word.

    A single quote ' closes what a ` before it opened; without one it is a possessive.
    """
    tags, opened = [], 0
    for word in words:
        tag = PUNCTUATION.get(word, "")
        if word in ("`", "‘"):
            opened += 1
        elif word in ("'", "’") and opened:
            tag, opened = "''", opened - 1
        tags.append(tag)
    return tags
