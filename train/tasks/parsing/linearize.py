"""Convert trees to token sequences for a decoder, and any token sequence to a tree (Vinyals and Kaiser et al., 2015).

    (TOP (S (NP (PRP It)) (VP (VBD rained)) (. .)))    (S (NP XX )NP (VP XX )VP XX )S

The order is depth first. A bracket and its label are one token, and a word is the token XX, as in section 6.3 of the
paper. For a small set of training trees, a word can be written as its tag instead of XX. `TOP` is not written.
"""

from collections.abc import Sequence

from train.tasks.parsing.trees import PUNCTUATION, TOP, UNTAGGED, Leaf, Tree, punctuation_tags, walk

TAGS_OF_PUNCTUATION = frozenset(PUNCTUATION.values())


def linearize(tree: Tree, uses_tags: bool = False) -> list[str]:
    """Return the tokens of a clean tree; `uses_tags` writes a word as its tag instead of XX."""
    tokens = []
    for part in walk(tree):
        if isinstance(part, Leaf):
            tokens.append(part.tag if uses_tags else UNTAGGED)
        else:
            tokens.append(f"({part.label}" if isinstance(part, Tree) else f"){part}")
    return tokens[1:-1]


def tree_from_tokens(tokens: Sequence[str], words: Sequence[str]) -> tuple[Tree, bool]:
    """Turn any `tokens` into a tree over exactly `words`; return the tree and whether it had to be repaired.

    A closing bracket also closes the constituents inside the one that it matches; without a match, it is dropped.
    Surplus leaves and empty constituents are dropped. Missing words are added to the outermost open constituent, or to
    the last one if none is open. Open constituents are closed at the end. Punctuation gets the tag that
    `punctuation_tags` returns; any other word gets the predicted tag, unless that is a punctuation tag.
    """
    fixed_tags = punctuation_tags(words)
    stack = [Tree(TOP)]
    n_used = 0
    is_repaired = False

    def close() -> None:
        closed = stack.pop()
        if closed.children:
            stack[-1].children.append(closed)

    def add_leaf(tag: str) -> None:
        nonlocal n_used
        tag = fixed_tags[n_used] or (UNTAGGED if tag in TAGS_OF_PUNCTUATION else tag)
        stack[-1].children.append(Leaf(tag, words[n_used]))
        n_used += 1

    for token in tokens:
        bracket, label = token[:1], token[1:]
        if bracket == "(" and label:
            stack.append(Tree(label))
        elif bracket == ")" and label:
            height = next((i for i in reversed(range(1, len(stack))) if stack[i].label == label), 0)
            is_repaired |= height != len(stack) - 1 or not height or not stack[-1].children
            while 0 < height < len(stack):
                close()
        elif n_used < len(words) and token:
            add_leaf(token)
        else:
            is_repaired = True
    is_repaired |= len(stack) > 1 or n_used < len(words)
    while len(stack) > 2:
        close()
    if len(stack) == 1 and n_used < len(words) and stack[0].children and isinstance(stack[0].children[-1], Tree):
        stack.append(stack[0].children.pop())  # type: ignore[arg-type]
    while n_used < len(words):
        add_leaf(UNTAGGED)
    while len(stack) > 1:
        close()
    return stack[0], is_repaired
