"""Constituency trees: read and write Penn Treebank brackets, clean trees, and recognize punctuation.

    (TOP (S (NP (PRP It)) (VP (VBD rained)) (. .)))

A leaf is a part-of-speech tag and a word. No function here recurses, so trees may have any depth.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import NamedTuple

from train.errors import UserError
from train.text.lines import MAX_LINE_BYTES, numbered_lines

TOP = "TOP"  # root of every clean tree; EVALB's parameters ignore it
MAX_WORD = 1000  # maximum number of characters of a word or label
TRACE = "-NONE-"
UNTAGGED = "XX"
ROOT_LABELS = ("", TOP, "ROOT", "S1")  # in treebanks
COMMENTS = ("#", "%", ";", "*")  # first characters of comment lines between trees
# ASCII whitespace, as in EVALB, which uses C's isspace: U+00A0 is part of a word.
_TOKENS = re.compile(r"\(([^ \t\n\v\f\r()]*)|(\))|([^ \t\n\v\f\r()]+)")
_FUNCTION_TAGS = re.compile(r"(?<=.)[-=].*")

# EVALB recognizes punctuation by its tag, so a parser that writes no tags must still tag punctuation. In the Penn
# Treebank the word determines the tag, except for ' (see `punctuation_tags`).
PUNCTUATION = (
    dict.fromkeys(",", ",")
    | dict.fromkeys([".", "?", "!"], ".")
    | dict.fromkeys([":", ";", "--", "...", "-", "—", "–", "…"], ":")
    | dict.fromkeys(["``", "`", "“", "‘"], "``")
    | dict.fromkeys(["''", "”", '"'], "''")
)


class Leaf(NamedTuple):
    """A word and its part-of-speech tag."""

    tag: str
    word: str


class Tree:
    """A constituent: its label ("" for none) and its children in order.

    Trees are equal if they are written identically.
    """

    __slots__ = ("label", "children")

    def __init__(self, label: str, children: "Iterable[Tree | Leaf]" = ()) -> None:
        self.label, self.children = label, list(children)

    def __str__(self) -> str:
        return write_tree(self)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and str(self) == str(other)

    __hash__ = None  # type: ignore[assignment]  # trees are mutable

    def leaves(self) -> list[Leaf]:
        """Return the leaves from left to right."""
        return [part for part in walk(self) if isinstance(part, Leaf)]

    def words(self) -> list[str]:
        """Return the words of the sentence."""
        return [leaf.word for leaf in self.leaves()]


def walk(tree: Tree) -> Iterator[Tree | Leaf | str]:
    """Yield the parts of a tree in written order: a constituent precedes its children, and its label follows them."""
    stack: list[Tree | Leaf | str] = [tree]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, Tree):
            stack.append(part.label)
            stack.extend(reversed(part.children))


def write_tree(tree: Tree) -> str:
    """Return a tree in brackets, on one line."""
    parts: list[str] = []
    for part in walk(tree):
        if isinstance(part, Leaf):
            parts.append(f" ({part.tag} {part.word})")
        else:
            parts.append(f" ({part.label}" if isinstance(part, Tree) else ")")
    return "".join(parts)[1:].replace("( (", "((")


# ---- reading


class _Reader:
    """Incremental parser of brackets, which takes lines and yields the trees that they complete."""

    def __init__(self, path: str) -> None:
        self.path = path
        # For each open bracket: its line, its constituent, and the word if it is a leaf.
        self.open_parts: list[tuple[int, Tree, list[str]]] = []
        self.size = 0  # number of characters in the lines of the open tree

    def read_line(self, number: int, text: str) -> Iterator[Tree | Leaf]:
        """Yield the trees, and top-level leaves, that end on a line."""
        if not self.open_parts and text.lstrip().startswith(COMMENTS):
            return
        self.size = len(text) + 1 + (self.size if self.open_parts else 0)  # with its line feed
        if self.size > MAX_LINE_BYTES:
            raise self.error(number, f"a tree of at most {MAX_LINE_BYTES:,} characters", "a longer tree")
        for token in _TOKENS.finditer(text):
            label, close, word = token.groups()
            if len(token[0]) > MAX_WORD:
                raise self.error(number, f"words and labels of at most {MAX_WORD:,} characters", f"{len(token[0]):,}")
            if label is not None:
                if self.open_parts and self.open_parts[-1][2]:
                    raise self.error(number, f"')' after the word {self.open_parts[-1][2][0]!r}", f"'({label}'")
                self.open_parts.append((number, Tree(label), []))
            elif not self.open_parts:
                raise self.error(number, "'('", repr(word or close))
            elif word:
                _, tree, leaf_word = self.open_parts[-1]
                if leaf_word or tree.children:
                    previous = f"the word {leaf_word[0]!r}" if leaf_word else "a closing bracket"
                    raise self.error(number, f"')' or '(' after {previous}", repr(word))
                leaf_word.append(word)
            else:
                _, tree, leaf_word = self.open_parts.pop()
                part = Leaf(tree.label, leaf_word[0]) if leaf_word else tree
                if self.open_parts:
                    self.open_parts[-1][1].children.append(part)
                else:
                    yield part

    def end(self, n_lines: int, is_empty: bool) -> None:
        """Raise UserError if a tree is not closed, or if the file has no tree."""
        if self.open_parts:
            number, tree, _ = self.open_parts[0]
            raise UserError(
                f"{self.path}, line {number}: expected the tree that begins here to be closed; "
                f"got the end of the file with {len(self.open_parts)} of the tree's brackets still open "
                f"(the first is '({tree.label}'); try adding ')'"
            )
        if is_empty:
            raise UserError(
                f"{self.path}: expected at least one tree; got {n_lines} lines without a tree; try (S (NN word))"
            )

    def error(self, number: int, expected: str, got: str) -> UserError:
        return UserError(
            f"{self.path}, line {number}: expected {expected}; got {got}; "
            "try Penn Treebank brackets: (S (NP (PRP It)) (VP (VBD rained)))"
        )


def read_trees(
    path: str | PathLike[str], on_bytes: Callable[[bytes], object] | None = None
) -> Iterator[tuple[int, Tree]]:
    """Yield (number of the last line, tree) for each tree of a file. Trees may be divided into lines in any way.

    A top-level leaf becomes a child of a `TOP`. `on_bytes` receives all bytes. Raises UserError for a file without a
    tree and, with the line number, for invalid or unclosed brackets.
    """
    reader = _Reader(str(path))
    number = 0
    is_empty = True
    for number, line in numbered_lines(path, on_bytes):
        for tree in reader.read_line(number, line):
            is_empty = False
            yield number, Tree(TOP, [tree]) if isinstance(tree, Leaf) else tree
    reader.end(number, is_empty)


def read_sentences(path: str | PathLike[str]) -> list[tuple[int, list[Tree | Leaf]]]:
    """Return (line number, trees) for each sentence of a file to score.

    As in EVALB, if no tree spans several lines, each line is a sentence, and an empty line is a sentence without a
    tree. Otherwise each tree is a sentence. Raises UserError in the same cases as `read_trees`.
    """
    reader = _Reader(str(path))
    sentences = []
    one_per_line = True
    for number, line in numbered_lines(path):
        is_comment = not reader.open_parts and line.lstrip().startswith(COMMENTS)
        one_per_line &= not reader.open_parts
        trees = list(reader.read_line(number, line))
        if trees or one_per_line and not is_comment:
            sentences.append((number, trees))
    reader.end(len(sentences), not any(trees for _, trees in sentences))
    return sentences if one_per_line else [(number, [tree]) for number, trees in sentences for tree in trees]


# ---- cleaning


def clean(tree: Tree) -> Tree:
    """Return the tree for training, with root `TOP` and without traces, empty constituents and function tags.

    NP-SBJ=2 becomes NP. A treebank's root, (TOP ...), (ROOT ...) or (S1 ...), becomes `TOP`. Brackets without a label
    are removed, and a word without a tag gets the tag XX. The result has no children if the sentence has only traces.
    """
    stack: list[Tree] = [Tree(TOP)]
    for part in walk(tree):
        if isinstance(part, Tree):
            stack.append(Tree(_FUNCTION_TAGS.sub("", part.label)))
        elif isinstance(part, Leaf):
            if part.tag != TRACE:
                stack[-1].children.append(part if part.tag else Leaf(UNTAGGED, part.word))
        else:
            closed = stack.pop()
            if closed.children:
                stack[-1].children += [closed] if closed.label else closed.children
    (top,) = stack
    while len(top.children) == 1 and isinstance(top.children[0], Tree) and top.children[0].label in ROOT_LABELS:
        top = top.children[0]
    return Tree(TOP, top.children)


def escape_brackets(sentence: str) -> str:
    """Replace the round brackets in a sentence with -LRB- and -RRB-, as in the Penn Treebank."""
    return sentence.replace("(", "-LRB-").replace(")", "-RRB-")


def punctuation_tags(words: Sequence[str]) -> list[str]:
    """Return the tag of each word that is punctuation, and "" for the other words.

    A single quote ' is the closing quotation mark if a ` precedes it, and otherwise a possessive.
    """
    tags = []
    n_open = 0
    for word in words:
        tag = PUNCTUATION.get(word, "")
        if word in ("`", "‘"):
            n_open += 1
        elif word in ("'", "’") and n_open:
            tag = "''"
            n_open -= 1
        tags.append(tag)
    return tags
